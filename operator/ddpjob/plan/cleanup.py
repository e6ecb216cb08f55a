"""Which pods are ended or deleted, how, and with how much time. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from ddpjob.api import DDPJob, Status
from ddpjob.plan.decision import Deletion, Plan, look_again
from ddpjob.plan.observed import DEADLINE, OVERDUE_SECONDS, PodRecord
from ddpjob.plan.status import with_summary
from ddpjob.times import seconds_since

FENCE_SECONDS = 10.0  # from the loss of a node to the forced deletion of its pods
SURVIVOR_GRACE = 5  # s; survivors of a failed rank have nothing to save that the failed one did not
_ORDERLY = ("PodDeleted", "Evicted", "Preempted")


def clean_up(job: DDPJob, status: Status, pods: Sequence[PodRecord], now: float) -> Plan:
    """Pods of a finished job to end or delete, and at last the job."""
    status = with_summary(status)  # somebody may have written there
    ttl = job.spec.ttl_seconds_after_finished
    left = None if ttl is None else ttl - seconds_since(status.completion_time, now)
    if left is not None and left <= 0:
        return Plan(status, delete_job=True)
    policy = job.spec.clean_pod_policy
    failed = status.condition("Failed")
    step, kept = Plan(status), set[str]()
    if failed and failed.reason == DEADLINE:
        # Deleted pods lose their logs, so kubelets end them; those without a node have none.
        kept = {pod.uid for pod in pods if _occupies(pod) and pod.node and not _is_lost(pod)}
        late = (pod for pod in pods if pod.uid in kept and not _expires(pod, now))
        step = replace(step, expire=tuple(pod for pod in late if not pod.deleting))
    doomed = [
        pod
        for pod in pods
        if pod.uid not in kept
        and (policy == "All" or policy == "Running" and _occupies(pod) or _is_lost(pod))
    ]
    return look_again(delete(step, doomed, SURVIVOR_GRACE, now), left)


def delete(step: Plan, doomed: Sequence[PodRecord], grace: int | None, now: float) -> Plan:
    """`step`, and these pods deleted; those that nobody is there to end by force, in time.

    Whatever still runs on a lost node does no harm: names, rendezvous and checkpoints carry the
    attempt.
    """
    deletions = [Deletion(pod, grace) for pod in doomed if not pod.deleting]
    for pod in doomed:
        if (wait := _seconds_to_force(pod, now)) is None:
            continue
        if wait > 0:
            step = look_again(step, wait)
        else:
            deletions.append(Deletion(pod, 0))
    return replace(step, delete=(*step.delete, *deletions))


def _seconds_to_force(pod: PodRecord, now: float) -> float | None:
    """Until the pod, which is being deleted, is to be deleted by force; None if it is not.

    That is a pod of a lost node, and one that no kubelet has ever taken: it runs nowhere, and only
    somebody's finalizer keeps it, or a node that does not exist. Once is enough for each.
    """
    if _is_lost(pod):
        return FENCE_SECONDS - seconds_since(pod.unreachable_since, now)
    if pod.deleting and not pod.forced and pod.started_at is None and pod.live:
        return OVERDUE_SECONDS - seconds_since(pod.deletion_deadline, now)
    return None


def _is_lost(pod: PodRecord) -> bool:
    """Whether the pod is deleted and nobody is there to end it."""
    return pod.deleting and pod.unreachable_since is not None and not pod.forced


def _expires(pod: PodRecord, now: float) -> bool:
    """Whether its kubelet ends the pod by itself; somebody else's limit may be longer than ours."""
    limit = pod.deadline_seconds
    return limit is not None and limit <= max(1, int(seconds_since(pod.started_at, now)))


def _occupies(pod: PodRecord) -> bool:
    """Whether something in the pod still runs: the trainer, or a sidecar after it."""
    return (pod.live or not pod.ended) and not pod.forced


def remains(status: Status, older: Sequence[PodRecord]) -> list[PodRecord]:
    """Pods of older attempts to delete.

    The live, and the dead but for those of the last failure, kept for their logs. Not what is
    deleted already and stays by somebody's finalizer.
    """
    kept = status.failure.attempt if status.failure else None
    rest = (pod for pod in older if not pod.forced)
    return [pod for pod in rest if _occupies(pod) or pod.attempt != kept]


def grace_of(status: Status, older: Sequence[PodRecord]) -> int | None:
    """How long survivors of the last attempt have to end; None: as long as the job says.

    A pod that is ended in order saves together with the others, so they need as long as it has.
    Beside a dead rank there is nothing to wait for.
    """
    orderly = status.failure is not None and status.failure.reason in _ORDERLY
    saving = any(pod.deleting and pod.live and pod.disruption != "NodeLost" for pod in older)
    return None if orderly and saving else SURVIVOR_GRACE
