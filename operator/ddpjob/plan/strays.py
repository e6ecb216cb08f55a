"""Pods that are not the job's own, and would be in its way. Pure."""

from ddpjob.api import Status
from ddpjob.plan.cleanup import SURVIVOR_GRACE, delete
from ddpjob.plan.decision import Decision, requeue
from ddpjob.plan.observed import Observed, PodRecord
from ddpjob.plan.own import Pods
from ddpjob.plan.reasons import NAME_TAKEN
from ddpjob.plan.status import with_condition
from ddpjob.times import seconds_since

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
