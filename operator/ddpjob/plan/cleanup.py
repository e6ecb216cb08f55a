"""Which pods are ended or deleted, and with how much grace: the job's own, and strays. Pure."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from ddpjob.api import DDPJob, Status
from ddpjob.plan.model import OVERDUE_SECONDS, Decision, Deletion, Observed, PodRecord, requeue
from ddpjob.plan.own import Pods
from ddpjob.plan.reasons import (
    DEADLINE_EXCEEDED,
    EVICTED,
    NAME_TAKEN,
    NODE_LOST,
    POD_DELETED,
    PREEMPTED,
)
from ddpjob.plan.status import with_condition
from ddpjob.times import seconds_since

# From the loss of a node to the forced deletion of its pods.
FENCE_SECONDS = 10.0
# Seconds; survivors of a failed rank have nothing to save that the failed one did not.
SURVIVOR_GRACE = 5
# So long a sidecar has to end after its trainer, before its pod is deleted, and the log with it.
SIDECAR_SECONDS = 30.0
# Losses of a pod that ends in order, with its grace period.
_ORDERLY = (POD_DELETED, EVICTED, PREEMPTED)


def clean_up(job: DDPJob, status: Status, pods: Sequence[PodRecord], now: float) -> Decision:
    """Return the pods of a finished job to end or delete, and at last the job's own deletion."""
    ttl = job.spec.ttl_seconds_after_finished
    left = None if ttl is None else ttl - seconds_since(status.completion_time, now)
    if left is not None and left <= 0:
        return Decision(status, delete_job=True)
    policy = job.spec.clean_pod_policy
    failed = status.condition("Failed")
    is_late = failed is not None and failed.reason == DEADLINE_EXCEEDED.name
    kept = {
        pod.uid: pod
        for pod in pods
        if _can_expire(pod) and (is_late or policy == "Running" and _has_time(pod, now))
    }
    doomed = [
        pod
        for pod in pods
        if pod.uid not in kept
        and (policy == "All" or policy == "Running" and _occupies(pod) or _is_lost(pod))
    ]
    decision = expire(Decision(status), kept.values(), now)
    return requeue(delete(decision, doomed, SURVIVOR_GRACE, now), left)


def expire(decision: Decision, kept: Iterable[PodRecord], now: float) -> Decision:
    """Return `decision` with the end of these pods by their kubelets: deletion takes their logs."""
    kept = [pod for pod in kept if not pod.deleting]
    for pod in kept:
        if _has_time(pod, now):
            decision = requeue(decision, SIDECAR_SECONDS - seconds_since(pod.finished_at, now))
    return replace(decision, expire=tuple(pod for pod in kept if not _expires(pod, now)))


def end_older(
    status: Status, older: Sequence[PodRecord], now: float, silent: Set[str] = frozenset()
) -> Decision:
    """Return the end of the pods of older attempts, all but those of the last failure deleted."""
    stale, grace, last = stale_pods(status, older), grace_of(status, older), status.failure
    kept = {
        pod.uid: pod
        for pod in stale
        if last and pod.attempt == last.attempt and _can_expire(pod) and _has_time(pod, now)
    }
    doomed = [pod for pod in stale if pod.uid not in kept]
    return expire(delete(Decision(status), doomed, grace, now, silent), kept.values(), now)


def delete(
    decision: Decision,
    doomed: Sequence[PodRecord],
    grace: int | None,
    now: float,
    silent: Set[str] = frozenset(),
) -> Decision:
    """Return `decision` with the deletion of these pods; `silent` has the names of silent nodes.

    A pod that no kubelet can end is deleted by force, in time. A process that still runs on a lost
    node does no harm, because names, rendezvous and checkpoints carry the attempt.
    """
    unheard = {pod.uid for pod in doomed if pod.live and pod.node in silent}
    deletions = [
        Deletion(pod, 0 if pod.uid in unheard else grace)
        for pod in doomed
        if not pod.deleting or pod.uid in unheard
    ]
    for pod in doomed:
        if pod.uid in unheard or (wait := _seconds_to_force(pod, now)) is None:
            continue
        if wait > 0:
            decision = requeue(decision, wait)
        else:
            deletions.append(Deletion(pod, 0))
    return replace(decision, delete=(*decision.delete, *deletions))


def _seconds_to_force(pod: PodRecord, now: float) -> float | None:
    """Return the seconds until the deleted pod is deleted by force; None if it never is.

    It is if its node is lost, or if no kubelet has ever taken it: then it runs nowhere, and only a
    finalizer keeps it, or a node that does not exist. Once is enough for each.
    """
    if _is_lost(pod):
        return FENCE_SECONDS - seconds_since(pod.unreachable_since, now)
    if pod.deleting and not pod.forced and pod.started_at is None and pod.live:
        return OVERDUE_SECONDS - seconds_since(pod.deletion_deadline, now)
    return None


def _is_lost(pod: PodRecord) -> bool:
    """Whether the pod is deleted and no kubelet is there to end it."""
    return pod.deleting and pod.unreachable_since is not None and not pod.forced


def _expires(pod: PodRecord, now: float) -> bool:
    """Whether the kubelet ends the pod in time. Somebody else may have set a longer limit."""
    limit = pod.deadline_seconds
    return limit is not None and limit <= max(1, int(seconds_since(pod.started_at, now)))


def _can_expire(pod: PodRecord) -> bool:
    """Whether a kubelet can end what still runs in the pod. Without a node there is no log."""
    return _occupies(pod) and bool(pod.node) and not _is_lost(pod)


def _has_time(pod: PodRecord, now: float) -> bool:
    """Whether the trainer has ended a moment ago, and a sidecar may still do so too."""
    return not pod.live and seconds_since(pod.finished_at, now) < SIDECAR_SECONDS


def _occupies(pod: PodRecord) -> bool:
    """Whether something in the pod still runs: the trainer, or a sidecar after it."""
    return (pod.live or not pod.ended) and not pod.forced


def stale_pods(status: Status, older: Sequence[PodRecord]) -> list[PodRecord]:
    """Return the pods of older attempts to delete.

    These are the live ones, and the dead ones except those of the last failure, which are kept for
    their logs. A pod that is deleted already and that only a finalizer keeps is left out.
    """
    last, rest = status.failure, [pod for pod in older if not pod.forced]

    def is_of_last(pod: PodRecord) -> bool:
        if last is None or pod.attempt != last.attempt:
            return False
        return pod.attempt != status.attempt or pod.name == last.pod  # of those replaced, the one

    return [pod for pod in rest if _occupies(pod) or not is_of_last(pod)]


def grace_of(status: Status, older: Sequence[PodRecord]) -> int | None:
    """Return the survivors' grace period in seconds; None is the one of the job.

    A pod that ends in order saves together with the others, so they need as long as it has. Beside
    a dead rank there is nothing to wait for.
    """
    orderly = status.failure is not None and status.failure.reason in _ORDERLY
    saving = any(pod.deleting and pod.live and pod.disruption != NODE_LOST for pod in older)
    return None if orderly and saving else SURVIVOR_GRACE


# Until a stray whose deletion was refused is deleted again.
SPARED_SECONDS = 60.0
# Until a pod of an attempt that has not begun is deleted: beyond any delay of a watch, and of
# clocks.
UNBEGUN_SECONDS = 60.0
# Until another stray is deleted: another operator's write may take so long to arrive here.
STRAY_SECONDS = 5.0


def delete_strays(status: Status, pods: Pods, observed: Observed, now: float) -> Decision:
    """Return the deletion of pods that are not the job's own and would be in its way.

    A pod of an attempt that has not begun is somebody else's, or the job's status has been put
    back, from a backup for example. New pods stay for now, since another operator may have just
    made them.
    """
    decision, ripe = Decision(status), list[PodRecord]()
    for pods_of, seconds in ((pods.ahead, UNBEGUN_SECONDS), (pods.strays, STRAY_SECONDS)):
        for pod in pods_of:
            wait = seconds - seconds_since(pod.created_at, now) if pod.created_at else 0.0
            if wait > 0 and not pod.deleting:
                decision = requeue(decision, wait)
            elif pod.uid in observed.spared:
                decision = requeue(decision, SPARED_SECONDS)
            else:
                ripe.append(pod)
    return delete(decision, ripe, SURVIVOR_GRACE, now)


def name_taken(status: Status, stray: PodRecord, words: str, now: float) -> Status:
    """Return `status`, not accepted because of a stray; `words` describe the stray."""
    words = f"pod {stray.name} {words}"
    if stray.forced:
        words += "; a finalizer of somebody else's keeps it"
    return with_condition(status, NAME_TAKEN, words, now=now)
