"""Checks an object by the rules of the API server and of the operator, without a cluster."""

import re
from typing import Any

from ddpjob import api, names
from ddpjob.errors import InvalidJob
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy

# Without one of these it is not known which volumes and mounts a pod would have.
_VOLUMES = {"volumes", "volumeMounts", "checkpoint", "data", "template", "master"}
_ANY = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "any"}}


def check(document: Any, policy: Policy | None = None) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that this object breaks.

    `policy` is the installation's allow-list, by default that of the chart.
    """
    problems = api.validate(document)
    try:
        job = api.DDPJob.parse(_without(document, problems) if problems else document)
    except InvalidJob:
        return problems
    return problems + render.problems(job, policy or Policy())


def _without(document: Any, problems: list[InvalidJob]) -> dict[str, Any]:
    """Return a job with those fields of the spec that no problem is about.

    Its pods can be judged, so that a user reads of what is wrong with them too. It is empty if they
    cannot be judged.
    """
    broken = {match[1] for p in problems if (match := re.match(r"spec[.](\w+)", p.path))}
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict) or broken & _VOLUMES:
        return {}
    kept = {name: value for name, value in spec.items() if name not in broken}
    return _ANY | {"spec": {"image": "any", "args": ["any"]} | kept}
