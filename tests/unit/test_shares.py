"""No namespace's agents take the operator's time from the others'."""

from collections import defaultdict
from heapq import heapify, heapreplace

import pytest

from ddpjob.controller.shares import PART, Shares

COST = 0.004  # s of an answer


class Loop:
    """Jobs of namespaces whose agents answer again as soon as they may, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shares = Shares(lambda: self.now)
        self.spent = defaultdict[str, float](float)
        self.waits = defaultdict[str, float](float)

    def run(self, seconds: float, jobs: dict[str, int], pause: dict[str, float]) -> None:
        """Let them answer for so long; `pause` has the seconds between one job's requests."""
        due = [
            (number * pause[namespace] / count, namespace)
            for namespace, count in jobs.items()
            for number in range(count)
        ]
        heapify(due)
        while due[0][0] < seconds:
            self.now, namespace = due[0]
            wait = self.shares.take(namespace, COST)
            self.waits[namespace] += wait
            self.spent[namespace] += COST
            heapreplace(due, (self.now + wait + pause[namespace], namespace))


def test_nobody_waits_while_all_take_less_than_their_part() -> None:
    loop = Loop()
    loop.run(30, {"team": 100}, {"team": 100 * COST / PART * 1.01})
    assert loop.waits["team"] == 0


def test_a_namespace_that_takes_more_waits_and_the_others_do_not() -> None:
    loop = Loop()
    loop.run(30, {"ill": 110, "team": 10}, {"ill": 0.01, "team": 5.0})
    assert loop.waits["team"] == 0
    assert sum(loop.spent.values()) / 30 == pytest.approx(PART, rel=0.15)


def test_namespaces_that_all_want_more_get_the_same() -> None:
    loop = Loop()
    loop.run(30, {"many": 200, "few": 20}, {"many": 0.01, "few": 0.01})
    assert loop.spent["few"] == pytest.approx(loop.spent["many"], rel=0.15)


def test_one_that_has_waited_is_forgotten() -> None:
    loop = Loop()
    loop.run(5, {"ill": 110}, {"ill": 0.01})
    loop.now += 100
    loop.shares.take("team", COST)
    assert loop.shares._turns == {}
