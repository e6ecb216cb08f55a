"""Reads a training runtime of Kubeflow Trainer v2: the trainer's pod, and fields of the job."""

from dataclasses import dataclass

from ddpjob.convert.failures import capped
from ddpjob.convert.fields import Fields, Notes
from ddpjob.convert.processes import read_processes
from ddpjob.convert.runtimes import ANCESTOR_LABEL
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

_OTHER_POLICIES = ("mpi", "jax", "xgboost", "flux")
_NOT_ELASTIC = "a DDPJob is not elastic, it trains on nnodes nodes or not at all"
_IGNORED = "the JobSet's own; a DDPJob makes its pods, its Service and their restarts itself"


_OF_JOB = ("replicas", "dependsOn", "groupName")


@dataclass(frozen=True)
class Runtime:
    """What a runtime says of the jobs that refer to it."""

    nnodes: int
    processes: int | str
    """Processes on each node: a number, `auto`, `cpu` or `gpu`."""
    is_torch: bool
    """Whether Trainer makes a number of `auto`, from the CPUs in the trainer's resources."""
    metadata: Body
    """Labels and annotations of the JobSet."""
    spec: Body
    """Fields of a DDPJob's spec."""
    job: str
    """The name of the trainer's job, at which patches aim."""
    pod: Body
    """The template of the trainer's pod."""
    claims: tuple[str, ...]
    """The volumes for which the JobSet makes claims."""


def read_runtime(body: Body, notes: Notes) -> Runtime:
    """Return what the runtime with the spec `body` says.

    Raises InvalidJob, with the path, if it is no runtime, or none that starts PyTorch.
    """
    source = Fields(body, "runtime.spec", notes)
    policy, template = source.part("mlPolicy"), source.part("template")
    for name in _OTHER_POLICIES:
        if name in policy:
            rule = "must be absent, because a DDPJob runs PyTorch and not this framework"
            raise policy.error(name, rule, policy.take(name, object))
    is_torch = "torch" in policy
    torch = policy.part("torch")
    torch.leave_out("RANK, PET_* and the like are set in the trainer alone", ("envInjection",))
    processes = read_processes(torch, "numProcPerNode") or "auto"
    restarts = _read_elastic(torch.part("elasticPolicy"))
    jobset = template.part("spec")
    job, pod, own = _read_jobs(jobset)
    spec = own | _read_jobset(jobset) | _read_group(source.part("podGroupPolicy"))
    if restarts is not None:
        spec["failurePolicy"] = {"maxRestarts": capped(restarts, torch.path, notes)}
    metadata, claims = _read_metadata(template.part("metadata")), _read_claims(jobset)
    nnodes = policy.take("numNodes", int)
    source.end()
    nodes = 1 if nnodes is None else nnodes
    return Runtime(nodes, processes, is_torch, metadata, spec, job, pod, claims)


def _read_elastic(policy: Fields) -> int | None:
    policy.leave_out(_NOT_ELASTIC, ("minNodes", "maxNodes", "metrics"))
    return policy.take("maxRestarts", int)


def _read_metadata(metadata: Fields) -> Body:
    return {
        kind: rest for kind in ("labels", "annotations") if (rest := metadata.part(kind).rest())
    }


def _read_group(policy: Fields) -> Body:
    """Return the deadline of a pod group, the only part of it that a DDPJob has too."""
    seconds = policy.part("coscheduling").take("scheduleTimeoutSeconds", int)
    reason = "ddpjob is no gang scheduler; startupDeadlineSeconds frees the nodes of half a group"
    policy.leave_out(reason, ("volcano",))
    if not seconds:
        return {}
    path = policy.where("coscheduling.scheduleTimeoutSeconds")
    policy.notes.changed(path, f"{seconds}: is startupDeadlineSeconds, without a gang scheduler")
    return {"startupDeadlineSeconds": seconds}


def _read_jobset(jobset: Fields) -> Body:
    """Return the fields of a DDPJob's spec that the JobSet of the runtime has."""
    found: Body = {}
    if (seconds := jobset.take("ttlSecondsAfterFinished", int)) is not None:
        found["ttlSecondsAfterFinished"] = seconds
    policy = jobset.part("failurePolicy")
    if (restarts := policy.take("maxRestarts", int)) is not None:
        limit = capped(restarts, policy.where("maxRestarts"), jobset.notes)
        found["failurePolicy"] = {"maxRestarts": limit}
    policy.leave_out("see failurePolicy.rules", ("rules", "restartStrategy"))
    own = ("successPolicy", "startupPolicy", "network", "suspend", "coordinator", "managedBy")
    jobset.leave_out(_IGNORED, own)
    return found


def _read_claims(jobset: Fields) -> tuple[str, ...]:
    found = []
    for policy in jobset.parts("volumeClaimPolicies"):
        for template in policy.parts("templates"):
            metadata = template.part("metadata")
            found.append(metadata.need("name", str))
            for part in (metadata, template):
                part.rest()
        policy.rest()
    return tuple(found)


def _read_jobs(jobset: Fields) -> tuple[str, Body, Body]:
    """Return the trainer's job: its name, the template of its pod, and fields of the spec."""
    found = None
    for job in jobset.parts("replicatedJobs"):
        name = job.need("name", str)
        job.take("name", str)
        template = job.part("template")
        ancestor = template.part("metadata").part("labels").take(ANCESTOR_LABEL, str)
        if ancestor == "trainer" and found is None:
            found = (name, *_read_job(job, template))
        else:
            job.notes.lost(job.path, "a DDPJob is one group of pods, so run this job before it")
            for part in (job, template):
                part.rest()
    if found is None:
        rule = f"must have a job with the label {ANCESTOR_LABEL}: trainer"
        raise InvalidJob(jobset.where("replicatedJobs"), rule)
    return found


def _read_job(job: Fields, template: Fields) -> tuple[Body, Body]:
    spec, found = template.part("spec"), Body()
    for name in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if (seconds := spec.take(name, int)) is not None:
            found[name] = seconds
    if (limit := spec.take("backoffLimit", int)) is not None:
        path = spec.where("backoffLimit")
        spec.notes.changed(path, f"{limit}: counts restarts of the group without progress")
        found["failurePolicy"] = {"maxRestarts": capped(limit, path, spec.notes)}
    pod = spec.take("template", dict)
    if pod is None:
        raise InvalidJob(spec.where("template"), "is required")
    job.leave_out("a DDPJob is one group of pods, which starts at once", _OF_JOB)
    spec.leave_out(_IGNORED, list(spec))
    return pod, found
