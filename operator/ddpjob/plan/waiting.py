"""Finds the pod that keeps a group from running, and what it waits for. Pure."""

import math
from collections.abc import Iterator, Sequence

from ddpjob.plan.observed import IN_TURN, UNREMARKABLE, PodRecord
from ddpjob.times import seconds_since, timestamp

# A pod whose image is there starts within some seconds after the kubelet has taken the pod.
SLOW_SECONDS = 10.0


def first_stuck(current: Sequence[PodRecord]) -> PodRecord | None:
    """Return the pod of lowest rank that cannot start. One that is pulling its image can."""
    stuck = [
        pod for pod in current if pod.live and not pod.running and pod.reason not in UNREMARKABLE
    ]
    return min(stuck, key=lambda pod: pod.rank, default=None)


def slowest(current: Sequence[PodRecord], now: float) -> PodRecord | None:
    """Return the pod that is furthest from its start, of those that are slow to start.

    By this order the reason for which a group waits changes a few times at most.
    """
    begun = timestamp(now - SLOW_SECONDS)
    slow = ((since, pod) for since, pod in _in_turn(current) if since <= begun)
    found = min(slow, key=lambda each: (IN_TURN.index(each[1].reason), each[0]), default=None)
    return found[1] if found else None


def seconds_to_slow(current: Sequence[PodRecord], now: float) -> float:
    """Return the seconds until the next pod counts as slow to start; infinity without one.

    If the clock of its kubelet is ahead, it counts later.
    """
    begun = timestamp(now - SLOW_SECONDS)
    first = min((since for since, _ in _in_turn(current) if since > begun), default=None)
    return (
        math.inf if first is None else min(SLOW_SECONDS, SLOW_SECONDS - seconds_since(first, now))
    )


def _in_turn(current: Sequence[PodRecord]) -> Iterator[tuple[str, PodRecord]]:
    """Yield the pods whose containers are about to start, and since when their kubelets have them.

    There may be thousands, so these times are compared as texts.
    """
    for pod in current:
        if pod.started_at and not pod.running and pod.live and pod.reason in IN_TURN:
            yield pod.started_at, pod
