"""Which pod keeps a group from running, if its containers wait in their turn."""

import math
from dataclasses import replace

import pytest

from ddpjob.plan.model import PodRecord
from ddpjob.plan.podrecord import SLOW_SECONDS, first_stuck, seconds_to_slow, slowest
from ddpjob.times import timestamp
from tests.builders import NOW, pod, running, succeeded


def waits(rank: int, reason: str = "Pulling", *, since: float = 60.0) -> PodRecord:
    """A pod that its kubelet has had for so many seconds."""
    return pod(rank, node="node-1", reason=reason, started_at=timestamp(NOW - since))


def test_a_pod_that_waits_in_its_turn_is_not_stuck_but_slow_after_a_while() -> None:
    pulls = waits(1)
    assert first_stuck([waits(0), pulls]) is None
    assert slowest([running(0), pulls], NOW) is pulls
    assert slowest([waits(0, since=SLOW_SECONDS - 1)], NOW) is None
    assert slowest([waits(0, since=SLOW_SECONDS)], NOW) is not None


@pytest.mark.parametrize(
    "other",
    [
        pod(0, reason="Pulling"),  # no kubelet has it
        replace(waits(0), running=True),
        replace(waits(0), forced=True),
        replace(succeeded(0), started_at=timestamp(NOW - 60)),
        waits(0, "ErrImagePull"),
        waits(0, ""),
        waits(0, since=-3600.0),  # by a clock that is ahead
        replace(waits(0), started_at="zzz"),
    ],
)
def test_other_pods_are_not_slow(other: PodRecord) -> None:
    assert slowest([other], NOW) is None
    assert slowest([other, waits(1)], NOW) == waits(1)


def test_the_furthest_from_its_start_is_named_and_of_those_the_first() -> None:
    pods = [
        waits(0, "Pulling", since=90),
        waits(1, "PodInitializing", since=50),
        waits(2, "ContainerCreating", since=40),
        waits(3, "ContainerCreating", since=60),
        waits(4, "ContainerCreating", since=60),
        waits(5, "ContainerCreating", since=5),
    ]
    named = []
    while (found := slowest(pods, NOW)) is not None:
        named.append(found.rank)
        pods.remove(found)
    assert named == [3, 4, 2, 1, 0]


def test_the_reason_of_a_wide_group_changes_a_few_times_whatever_the_order_of_its_pods() -> None:
    """Each change is a write. Pods end their turns one after the other, the first ones last."""
    stages = ["ContainerCreating", "PodInitializing", "Pulling"]
    pods = {rank: waits(rank, stages[0]) for rank in range(200)}
    changes, last = 0, ""
    for stage in range(1, 4):
        for rank in reversed(range(200)):
            if stage < 3:
                pods[rank] = waits(rank, stages[stage])
            else:
                del pods[rank]
            found = slowest(list(pods.values()), NOW)
            reason = found.reason if found else ""
            changes, last = changes + (reason != last), reason
    assert changes <= 4


def test_a_decision_is_made_again_when_the_next_pod_becomes_slow() -> None:
    assert seconds_to_slow([waits(0, since=4), waits(1, since=7), waits(2)], NOW) == 3
    assert seconds_to_slow([waits(2), running(0), pod(1)], NOW) == math.inf
    for odd in (waits(0, since=-3600), replace(waits(0), started_at="zzz")):
        assert seconds_to_slow([odd], NOW) == SLOW_SECONDS, "not at once, and not in an hour"
