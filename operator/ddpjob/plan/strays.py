"""Pods that are not the job's own, and would be in its way. Pure."""

from ddpjob.api import Status
from ddpjob.plan.cleanup import SURVIVOR_GRACE, delete
from ddpjob.plan.decision import Plan, look_again
from ddpjob.plan.observed import Observed, PodRecord
from ddpjob.plan.own import Pods
from ddpjob.plan.status import with_condition
from ddpjob.times import seconds_since

SPARED_SECONDS = 60.0  # until a stray whose deletion was refused is deleted again
UNHEARD_SECONDS = 60.0  # beyond any delay of a watch, and of clocks
STRAY_SECONDS = 5.0  # as long as another operator may need to be heard of


def delete_strays(status: Status, pods: Pods, observed: Observed, now: float) -> Plan:
    """Delete what is not the job's own, and would be in its way.

    Pods of attempts that it has not begun are somebody else's, or its status has been put back,
    from a backup say. But none that is new, for another operator may just have made it.
    """
    step, ripe = Plan(status), list[PodRecord]()
    for pods_of, seconds in ((pods.ahead, UNHEARD_SECONDS), (pods.strays, STRAY_SECONDS)):
        for pod in pods_of:
            wait = seconds - seconds_since(pod.created_at, now) if pod.created_at else 0.0
            if wait > 0 and not pod.deleting:
                step = look_again(step, wait)
            elif pod.uid in observed.spared:
                step = look_again(step, SPARED_SECONDS)
            else:
                ripe.append(pod)
    return delete(step, ripe, SURVIVOR_GRACE, now)


def name_taken(status: Status, stray: PodRecord, words: str, now: float) -> Status:
    """Say that somebody else's pod is in the way; `words`: what it is, and what becomes of it."""
    words = f"pod {stray.name} {words}"
    if stray.forced:
        words += "; a finalizer of somebody else's keeps it"
    return with_condition(status, "Accepted", False, "NameTaken", words, now=now)
