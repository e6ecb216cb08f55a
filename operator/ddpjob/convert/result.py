"""Checks the result of a conversion: it is a DDPJob that its operator can make pods of."""

from typing import Any

import orjson

from ddpjob import api, names
from ddpjob.api.spec import Spec
from ddpjob.convert.fields import Notes
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy, refusals

# The order of the fields of a spec.
_ORDER = {str(field.alias): place for place, field in enumerate(Spec.model_fields.values())}


def finished(metadata: Body, spec: Body, notes: Notes) -> Body:
    """Return the DDPJob with this metadata and spec, and note what an installation must allow.

    Raises InvalidJob, with the path in the DDPJob, if it breaks a rule.
    """
    ordered = {name: spec[name] for name in sorted(spec, key=lambda name: _ORDER[name])}
    job = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": metadata,
        "spec": ordered,
    }
    for problem in api.validate(job):
        raise _of_result(problem)
    parsed = api.DDPJob.parse(job)
    try:
        pods = render.pods(parsed, render.Agent(b""), everything(spec))
    except InvalidJob as problem:
        raise _of_result(problem) from None
    for rank in (0, 1):
        for refusal in refusals(orjson.loads(pods.body(rank)), Policy()):
            notes.changed(
                refusal.path, f"in the DDPJob, but by the chart's defaults {refusal.rule}"
            )
    return job


def _of_result(problem: InvalidJob) -> InvalidJob:
    return InvalidJob(f"DDPJob {problem.path}", problem.rule, problem.value)


def everything(spec: Body) -> Policy:
    """Return an allow-list that refuses nothing of the spec."""
    overlays: list[Any] = [spec.get("template"), (spec.get("master") or {}).get("template")]
    parts = [overlay["spec"] for overlay in overlays if overlay and "spec" in overlay]
    # Kubernetes' own classes are not among "*".
    classes = [str(part.get(name)) for part in parts for name in ("priorityClassName",)]
    return Policy(
        service_account_names=["*"],
        priority_class_names=["*", *classes],
        runtime_class_names=["*", *classes],
        volume_types=["*"],
        capabilities=["*"],
        host_network=True,
        host_pid=True,
        host_ipc=True,
        host_ports=True,
        node_name=True,
        privileged=True,
    )
