"""What the ranks of a job run, as its agents get it for a later round. Pure.

That is the arguments, the variables that have values in the job, and the code. Of the rest of a pod
nothing can change while it runs.
"""

import hashlib

import orjson

from ddpjob.api import DDPJob
from ddpjob.json_depth import Body
from ddpjob.pods import code, overlay
from ddpjob.why import part


def line_of(job: DDPJob, pod: Body) -> bytes:
    """Return what the ranks in a rendered `pod` run, as a line of JSON.

    It has nothing of this version's: an upgrade that changes it restarts the ranks of all jobs.
    """
    trainer, own = overlay.trainer(pod), job.spec.code
    # An overlay may give one another value.
    free = _free_names(job)
    env = {e["name"]: e["value"] for e in trainer["env"] if e["name"] in free and "value" in e}
    found = {
        "args": trainer.get("args") or [],
        "env": env,
        "code": own.sha256 if own else "",
        "path": code.variables(own)["DDPJOB_CODE_PARTS"] if own and own.path else "",
    }
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS)


def _free_names(job: DDPJob) -> set[str]:
    """Return the variables that kept pods can get: no other text of the pod is made of them."""
    env = [variable for variable in job.spec.env if variable.value is not None]
    paths = [mount.sub_path_expr for mount in job.spec.volume_mounts]
    texts = [*(variable.value for variable in env), *paths, job.spec.template]
    text = orjson.dumps(texts).decode()
    names = {each.name for each in env if each.value is not None and "$" not in each.value}
    names -= {"no_proxy", "NO_PROXY"}  # which agents have completed
    return {name for name in names if f"$({name})" not in text}


def print_of(line: bytes) -> str:
    """Return the 16 characters by which status and orders name what the ranks run."""
    return hashlib.sha256(line).hexdigest()[:16]


def takes_programs(job: DDPJob) -> bool:
    """Whether what the ranks run can change while their pods run.

    A rank 0 of its own kind may have other arguments. And without a NetworkPolicy, which the node's
    own network knows nothing of, whoever may read the job's token could have them run anything.
    """
    spec = job.spec
    is_apart = spec.network_policy.enabled and not part(spec.template, "spec", "hostNetwork")
    return spec.restarts_in_place and spec.master is None and is_apart


def without_program(job: DDPJob) -> DDPJob:
    """Return the job with something that stands for all that its pods can get while they run.

    Two jobs that differ in this alone are the same then.
    """
    spec, own = job.spec, job.spec.code
    if not takes_programs(job):
        return job
    free = _free_names(job)
    env = [v.model_copy(update={"value": ""}) if v.name in free else v for v in spec.env]
    update: Body = {"args": ["-"], "env": env}
    if own is not None:
        stands = {"config_maps": own.config_maps and ["-"], "path": own.path and "-"}
        update["code"] = own.model_copy(update={**stands, "sha256": "0" * 64})
    return job.model_copy(update={"spec": spec.model_copy(update=update)})
