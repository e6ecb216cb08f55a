"""Decides what to do next for one job. Pure: the same job, observation and time give the same plan.

A plan is one step. Its status comes first: where that differs in more than counts, it is written,
under the resource version that the decision was made from, before anything else happens; then the
same question is asked again. So whatever is done rests on a status that is stored, and a controller
that dies between any two writes goes on where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpjob import api
from ddpjob.api import DDPJob, Status
from ddpjob.errors import AlreadyExists, InvalidJob
from ddpjob.observed import Observed, PodRecord
from ddpjob.ranks import format_ranks, parse_ranks
from ddpjob.status import (
    count_nodes,
    waiting_reason,
    with_condition,
    with_progress,
    with_summary,
)
from ddpjob.summary import failure, final_report, first_cause, is_noise, stamp

SURVIVOR_GRACE = 5  # s; survivors of a failed rank have nothing to save that the failed one did not
NOISE_SECONDS = 5.0  # while only peers' noise is seen, the cause may still be on its way


@dataclass(frozen=True)
class Deletion:
    """Delete this pod; `grace_seconds` of None is the pod's own."""

    pod: PodRecord
    grace_seconds: int | None = None


@dataclass(frozen=True)
class Note:
    """An Event for people: CamelCase reason and a sentence."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Plan:
    """One step: the status first, then the rest."""

    status: Status
    delete: tuple[Deletion, ...] = ()
    prepare: bool = False
    """Create the Service and the agent's ConfigMap."""
    create: tuple[int, ...] = ()
    """Node ranks whose pods to create."""
    drop_agent: bool = False
    """The job has just finished: its agent's ConfigMap is of no more use."""
    notes: tuple[Note, ...] = ()
    noise: bool = False
    """Only peers' noise has been seen so far."""
    look_again: float | None = None
    """Seconds after which to plan again even if nothing happens."""


def plan(job: DDPJob, observed: Observed, now: float) -> Plan:
    """The next step for `job`.

    Empty (same status, nothing to do) when everything is as it should be.
    """
    uid, status = job.uid, job.status
    pods = [pod for pod in observed.pods if pod.owner_uid == uid]
    if job.metadata.deletion_timestamp or any(pod.attempt > status.attempt for pod in pods):
        return Plan(
            status
        )  # being collected; or our view of the job is older than that of its pods
    if status.state in api.FINISHED:
        return Plan(status, delete=_clean_up(job, pods))
    status = _begin(job)

    current = [pod for pod in pods if pod.attempt == status.attempt]
    older = [pod for pod in pods if pod.attempt < status.attempt]
    succeeded = parse_ranks(status.succeeded_ranks)
    succeeded |= {pod.rank for pod in current if pod.result == "succeeded"}
    status = status.model_copy(update={"succeeded_ranks": format_ranks(succeeded)})
    status = with_progress(status, final_report(current) or observed.report)

    if len(succeeded) == job.spec.nnodes:
        return _complete(status, current, succeeded, now)
    if job.spec.suspend:
        return _suspend(job, status, pods, now)
    trouble = _failure(job, status, current, succeeded, observed, now)
    if trouble is not None and not trouble.noise:
        return trouble
    status = _counted(job, status, current, succeeded, now)
    step = _missing(job, status, current, older, succeeded, observed, now)
    if trouble is not None:
        step = replace(step, noise=True, look_again=trouble.look_again)
    return step


def _begin(job: DDPJob) -> Status:
    """The status to start from; a new job's says Pending."""
    update: dict[str, object] = {"observed_generation": job.metadata.generation}
    if job.status.state is None:
        update |= {"state": "Pending", "nodes": api.Nodes(desired=job.spec.nnodes)}
    return job.status.model_copy(update=update)


def _clean_up(job: DDPJob, pods: Sequence[PodRecord]) -> tuple[Deletion, ...]:
    """Pods of a finished job to delete, by `cleanPodPolicy`."""
    policy = job.spec.clean_pod_policy
    doomed = [
        pod
        for pod in pods
        if not pod.deleting and (policy == "All" or policy == "Running" and _occupies(pod))
    ]
    return tuple(Deletion(pod, SURVIVOR_GRACE) for pod in doomed)


def _occupies(pod: PodRecord) -> bool:
    """Whether something in the pod still runs: the trainer, or a sidecar after it."""
    return pod.live or not pod.ended


def _complete(
    status: Status, current: Sequence[PodRecord], succeeded: set[int], now: float
) -> Plan:
    message = "all ranks have ended with exit code 0"
    status = status.model_copy(
        update={
            "state": "Succeeded",
            "completion_time": stamp(now),
            "nodes": count_nodes(status.nodes.desired, current, succeeded),
        }
    )
    status = with_condition(status, "Running", False, "Finished", message, now=now)
    status = with_condition(status, "Complete", True, "AllRanksSucceeded", message, now=now)
    note = Note("Succeeded", message)
    return Plan(with_summary(status), drop_agent=True, notes=(note,))


def _last_counts(desired: int, current: Sequence[PodRecord], succeeded: set[int]) -> api.Nodes:
    """Counts for ever: what still runs or waits ends unwatched."""
    nodes = count_nodes(desired, current, succeeded)
    return nodes.model_copy(update={"pending": 0, "running": 0})


def _suspend(job: DDPJob, status: Status, pods: Sequence[PodRecord], now: float) -> Plan:
    """Leave the attempt, then end its pods with their full grace, then say Suspended."""
    leaving = status.condition("Suspended")
    started = status.state not in ("Pending", "Suspended")
    if started and not (leaving and leaving.reason == "Suspending"):
        status = _next_attempt(job, status)
        message = "spec.suspend is true; ranks have their grace period to save"
        status = with_condition(status, "Suspended", False, "Suspending", message, now=now)
        return Plan(with_summary(status), notes=(Note("Suspending", message),))
    left = [pod for pod in pods if _occupies(pod)]
    if left:  # also a pod that came after the job was suspended: its creation was under way
        doomed = tuple(Deletion(pod) for pod in left if not pod.deleting)
        return Plan(with_summary(status), delete=doomed)
    status = status.model_copy(update={"state": "Suspended"})
    message = "spec.suspend is true"
    status = with_condition(status, "Suspended", True, "Suspended", message, now=now)
    status = with_condition(status, "Running", False, "Suspended", message, now=now)
    return Plan(with_summary(status))


def _failure(
    job: DDPJob,
    status: Status,
    current: Sequence[PodRecord],
    succeeded: set[int],
    observed: Observed,
    now: float,
) -> Plan | None:
    """What follows from failed and lost ranks.

    A restart, the end, or a short wait for the cause.
    """
    rest = [pod for pod in current if pod.rank not in succeeded]
    lost = [pod for pod in rest if pod.deleting]
    failed = [pod for pod in rest if pod.result == "failed" and not pod.deleting]
    gone = _gone(job, rest, succeeded)
    own = [pod for pod in failed if not is_noise(pod)]
    if own:
        return _charge(job, status, own, current, succeeded, now)
    if lost or gone:
        return _lose(job, status, lost, gone, now)
    if not failed:
        return None
    waited = now - observed.noise_since if observed.noise_since is not None else 0.0
    if waited < NOISE_SECONDS and any(pod.live for pod in rest):
        return Plan(status, noise=True, look_again=NOISE_SECONDS - waited)
    return _charge(job, status, failed, current, succeeded, now)


def _created(status: Status) -> bool:
    """Whether all pods of the attempt have existed: a missing one is gone then, not yet to come."""
    nodes = status.nodes
    counted = nodes.pending + nodes.running + nodes.succeeded + nodes.failed
    return counted == nodes.desired > 0


def _gone(job: DDPJob, rest: Sequence[PodRecord], succeeded: set[int]) -> list[int]:
    if not _created(job.status):
        return []
    present = {pod.rank for pod in rest} | succeeded
    return [rank for rank in range(job.status.nodes.desired) if rank not in present]


def _charge(
    job: DDPJob,
    status: Status,
    failed: Sequence[PodRecord],
    current: Sequence[PodRecord],
    succeeded: set[int],
    now: float,
) -> Plan:
    """Ranks have failed: restart the group, or fail the job once the budget is used up."""
    found = failure(first_cause(failed))
    charged = status.budget.charged + 1
    allowed = job.spec.failure_policy.max_restarts
    status = status.model_copy(update={"failure": found, "budget": api.Budget(charged=charged)})
    what = f"rank {found.rank} (pod {found.pod}): {found.message or found.reason}"
    if charged > allowed:
        status = status.model_copy(
            update={
                "state": "Failed",
                "completion_time": stamp(now),
                "nodes": _last_counts(status.nodes.desired, current, succeeded),
            }
        )
        message = f"{what}; {charged} failures, failurePolicy.maxRestarts is {allowed}"
        status = with_condition(status, "Running", False, "Finished", what, now=now)
        status = with_condition(status, "Failed", True, "MaxRestartsExceeded", message, now=now)
        note = Note("Failed", message, warning=True)
        return Plan(with_summary(status), drop_agent=True, notes=(note,))
    note = Note("Restarting", f"{what}; failure {charged}, {allowed} allowed", warning=True)
    return _restart(job, status, found.reason, what, note, now)


def _lose(
    job: DDPJob, status: Status, lost: Sequence[PodRecord], gone: Sequence[int], now: float
) -> Plan:
    """A pod was deleted, or went with its result unseen: restart the group, uncharged."""
    if lost:
        pod = min(lost, key=lambda pod: pod.rank)
        rank, name, node, reason = pod.rank, pod.name, pod.node or None, "PodDeleted"
        message = f"pod {name} is being deleted"
    else:
        rank, node, reason = gone[0], None, "ResultUnknown"
        name = f"{job.name}-{status.attempt}-{rank}"
        message = f"pod {name} is gone, and how it ended was never seen"
    found = api.Failure(
        attempt=status.attempt,
        rank=rank,
        pod=name,
        node=node,
        reason=reason,
        message=message,
        time=stamp(now),
    )
    status = status.model_copy(update={"failure": found})
    note = Note("Restarting", f"{message}; not counted against maxRestarts", warning=True)
    return _restart(job, status, reason, message, note, now)


def _restart(
    job: DDPJob, status: Status, reason: str, message: str, note: Note, now: float
) -> Plan:
    status = _next_attempt(job, status)
    status = status.model_copy(update={"state": "Restarting", "restarts": status.restarts + 1})
    status = with_condition(status, "Running", False, reason, message, now=now)
    return Plan(with_summary(status), notes=(note,))


def _next_attempt(job: DDPJob, status: Status) -> Status:
    progress = status.progress
    if progress is not None:  # how far it got stays to be seen; when it would have ended does not
        progress = progress.model_copy(update={"eta_seconds": None})
    return status.model_copy(
        update={
            "progress": progress,
            "attempt": status.attempt + 1,
            "nodes": api.Nodes(desired=job.spec.nnodes),
            "succeeded_ranks": "",
        }
    )


def _counted(
    job: DDPJob, status: Status, current: Sequence[PodRecord], succeeded: set[int], now: float
) -> Status:
    """`status` with counts, and Running once every node runs or has ended well."""
    nodes = count_nodes(job.spec.nnodes, current, succeeded)
    status = status.model_copy(update={"nodes": nodes})
    if nodes.running + nodes.succeeded == nodes.desired and status.state != "Running":
        status = status.model_copy(update={"state": "Running"})
        message = f"{nodes.desired} of {nodes.desired} nodes run"
        status = with_condition(status, "Running", True, "AllNodesRunning", message, now=now)
    elif status.state in ("Starting", "Restarting") and (why := waiting_reason(current)):
        status = with_condition(status, "Running", False, *why, now=now)
    return with_summary(status)


def _missing(
    job: DDPJob,
    status: Status,
    current: Sequence[PodRecord],
    older: Sequence[PodRecord],
    succeeded: set[int],
    observed: Observed,
    now: float,
) -> Plan:
    """Create what is missing, once nothing of an older attempt can still run."""
    doomed = _remains(status, older)
    present = {pod.rank for pod in current} | succeeded
    missing = tuple(rank for rank in range(job.spec.nnodes) if rank not in present)
    if not missing:
        return Plan(_accepted(job, status, now), delete=doomed)
    if any(pod.live for pod in older):
        return Plan(status, delete=doomed)
    if observed.trouble is not None:
        status = _refused(status, observed, now)
    if not observed.children_ready:
        return Plan(with_summary(status), delete=doomed, prepare=True)
    if any(pod.spec_hash != observed.spec_hash for pod in current):
        message = "the job was edited while its pods were being created"
        note = Note("Restarting", message)
        return _restart(job, status, "SpecChanged", message, note, now)
    if status.state not in ("Starting", "Restarting"):
        return Plan(_starting(job, status, now), delete=doomed)
    return Plan(status, delete=doomed, create=missing)


def _remains(status: Status, older: Sequence[PodRecord]) -> tuple[Deletion, ...]:
    """Pods of older attempts to delete.

    The live, and the dead but for those of the last failure, kept for their logs.
    """
    kept = status.failure.attempt if status.failure else None
    return tuple(
        Deletion(pod, SURVIVOR_GRACE)
        for pod in older
        if not pod.deleting and (_occupies(pod) or pod.attempt != kept)
    )


def _starting(job: DDPJob, status: Status, now: float) -> Status:
    """Starting.

    From here on the spec cannot change, so all pods of the attempt are made from one.
    """
    status = status.model_copy(
        update={
            "state": "Starting",
            "world_size": job.spec.world_size,
            "start_time": status.start_time or stamp(now),
            "nodes": status.nodes.model_copy(update={"desired": job.spec.nnodes}),
        }
    )
    status = _accepted(job, status, now)
    if status.condition("Suspended"):
        message = "spec.suspend is false"
        status = with_condition(status, "Suspended", False, "Resumed", message, now=now)
    message = "pods are being created"
    status = with_condition(status, "Running", False, "Starting", message, now=now)
    return with_summary(status)


def _accepted(job: DDPJob, status: Status, now: float) -> Status:
    message = "the job can be rendered and its names are free"
    status = with_condition(status, "Accepted", True, "Accepted", message, now=now)
    if job.spec.has_agent:
        return status
    message = (
        "launcher none without command runs the image's own entry point, without ddpjob's agent: "
        "no progress, no first cause of a failure"
    )
    return with_condition(status, "AgentAbsent", True, "LauncherNone", message, now=now)


def _refused(status: Status, observed: Observed, now: float) -> Status:
    """Say why nothing can be created, in the words of whoever refused it."""
    trouble = observed.trouble
    if isinstance(trouble, InvalidJob):
        return with_condition(status, "Accepted", False, "Invalid", str(trouble), now=now)
    if isinstance(trouble, AlreadyExists):
        return with_condition(status, "Accepted", False, "NameTaken", trouble.message, now=now)
    return with_condition(status, "Running", False, "CreateRefused", str(trouble), now=now)
