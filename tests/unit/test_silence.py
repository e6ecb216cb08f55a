"""Which nodes count as silent, by what rank 0's agent and the nodes themselves say."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from ddpjob.controller import silence
from ddpjob.controller.agenthttp import session
from ddpjob.controller.memory import Head, JobRecord
from ddpjob.controller.silence import LEASE_PART, LEAST_MISSED, Evidence, Silence
from ddpjob.plan.model import Made, Order, PodRecord, Report, RoundStatus
from ddpjob_agent.nodes.lease import LEASE
from tests.builders import failed, job, record_of_job, running, summary
from tests.cluster.webserver import listening
from tests.localplay import side_by_side, until

T = 15.0


def evidence(**unheard: float) -> Evidence:
    """What is known at 100 s, when rank 0's agent says for how long it has not heard nodes."""
    found = Evidence(T, heard_at=100.0)
    found.answer(100.0, {int(name[1:]): seconds for name, seconds in unheard.items()})
    return found


def missing(found: Evidence, rank: int, *times: float) -> Evidence:
    """The same once these requests have had no answer."""
    for at in times:
        found.miss(rank, at)
    return found


def test_a_node_is_silent_if_neither_rank_0_nor_the_operator_hears_it() -> None:
    found = missing(evidence(n1=6.0), 1, 101.5, 104.0, 106.5)
    assert found.suspects() == [1]
    assert found.silent(108.9) == frozenset()  # rank 0 heard it at 94
    assert found.silent(109.0) == {1}


def test_rank_0s_word_alone_is_not_enough() -> None:
    found = evidence(n1=1000.0, n2=1000.0)
    assert found.silent(100.0) == frozenset()
    missing(found, 1, 100.0, 100.1, 100.2)
    missing(found, 2, *[101.0 + number for number in range(LEAST_MISSED - 1)])
    assert found.silent(104.9) == frozenset()  # not for long enough, by the operator's own clock
    assert found.silent(110.0) == {1}  # of the other one too few requests were lost
    found.found(1, 110.0)
    assert found.silent(110.0) == frozenset()


def test_nodes_that_fail_together_are_silent_together() -> None:
    found = missing(evidence(n1=6.0, n2=3.0, n3=5.0), 1, 101.5, 104.0, 106.5)  # 94, 97 and 95
    missing(found, 2, 102.0, 104.5, 107.0)
    assert found.silent(109.5) == frozenset()  # the operator hears 3, and 2 has yet to be missed
    assert found.silent(112.0) == {1, 2}
    missing(found, 3, 112.5)
    assert found.silent(113.0) == frozenset()
    assert found.silent(115.0) == {1, 2}  # so long nobody is waited for who may answer
    missing(found, 3, 115.5, 118.0)
    assert found.silent(118.0) == {1, 2, 3}


def test_a_node_that_was_heard_much_later_is_not_waited_for() -> None:
    found = missing(evidence(n1=14.0, n2=6.0), 1, 98.0, 100.5, 103.0)  # 86 and 94
    missing(found, 2, 101.0)
    assert found.silent(104.0) == {1}


def test_the_operators_word_alone_is_not_enough() -> None:
    found = missing(evidence(), 1, *range(101, 161))
    assert found.suspects() == [] and found.silent(200.0) == frozenset()


def test_a_node_that_rank_0_hears_again_is_no_suspect() -> None:
    found = missing(evidence(n1=14.0), 1, 101.0, 104.0, 107.0)
    assert found.silent(108.0) == {1}
    found.answer(108.0, {})
    assert found.suspects() == [] and found.silent(108.0) == frozenset()


def test_nobody_else_is_judged_by_a_rank_0_that_is_not_heard_itself() -> None:
    found = missing(evidence(n1=14.0), 1, 101.0, 104.0, 107.0)
    missing(found, 0, 107.5)
    assert found.suspects() == [0, 1] and found.silent(120.0) == frozenset()


def unheard_rank_0() -> Evidence:
    """Rank 0's agent answers no more since 100 s."""
    return missing(evidence(), 0, 104.0, 106.0, 108.0)


def test_rank_0_is_silent_if_another_node_has_lost_it_too() -> None:
    found = unheard_rank_0()
    assert found.silent(200.0) == frozenset()  # the operator may be cut off itself
    found.witness(1, 110.0, 10.0)  # since 100
    assert found.silent(116.4) == frozenset()
    assert found.silent(116.5) == {0}


def test_who_is_missing_beside_a_silent_rank_0_has_lost_it_too() -> None:
    found = missing(unheard_rank_0(), 2, 104.0, 106.0, 108.0)
    missing(found, 3, 115.0, 115.1, 115.2)  # not for long yet
    assert found.silent(200.0) == frozenset()
    found.witness(1, 110.0, 10.0)
    assert found.silent(116.5) == {0, 2}


def test_rank_0_is_not_silent_while_a_node_hears_it() -> None:
    found = unheard_rank_0()
    found.witness(1, 110.0, 10.0)
    found.witness(2, 110.0, 1.0)
    found.witness(3, 110.0, None)
    assert found.silent(200.0) == frozenset()
    found.witness(2, 118.0, 9.0)
    assert found.silent(200.0) == {0}
    found.witness(1, 201.0, 0.5)
    assert found.silent(202.0) == frozenset()


def test_a_node_that_has_ended_for_want_of_rank_0_has_lost_it() -> None:
    found = unheard_rank_0()
    found.ended[1] = 113.0
    assert found.silent(116.7) == frozenset()  # rank 0 may end a little later
    assert found.silent(116.8) == {0}


def test_what_a_rank_0_has_lost_that_heard_nobody_is_silent() -> None:
    found = missing(Evidence(T, heard_at=100.0, is_over=True), 1, 101.5, 104.0, 106.5)
    missing(found, 2, 108.0, 108.1, 108.2)
    found.ended[0], found.hearing = 105.0, {1}  # nothing that it has said before counts any more
    assert found.silent(108.7) == frozenset()  # another node may end a little later
    assert found.silent(108.8) == {1}
    found.found(1, 110.0)
    assert found.silent(108.8) == frozenset()
    assert found.silent(113.1) == {2}


def test_operator_and_agent_agree_when_a_node_ends_its_ranks() -> None:
    assert LEASE_PART == LEASE


def test_rank_0_is_heard_if_it_answers_anything() -> None:
    found = unheard_rank_0()
    found.witness(1, 110.0, 10.0)
    found.found(0, 110.0)
    assert found.silent(200.0) == frozenset()


def test_many_missed_requests_need_no_memory() -> None:
    found = missing(evidence(n1=6.0), 1, *range(101, 3000))
    assert len(found.missed[1]) <= LEAST_MISSED + 1 and found.missed[1][0] == 101


class Nodes:
    """Agents of a job's nodes, on a loopback address each; and what the operator is told."""

    def __init__(self, timeout: int) -> None:
        self.pages: dict[int, dict[str, Any] | None] = {}
        self.by_rank: dict[int, PodRecord] = {}
        self.timeout = timeout
        self.told: list[frozenset[int]] = []
        self.ended: list[Head] = []
        self.asked: list[int] = []
        self.record = record_of_job(job())
        self.silence = Silence(self)

    def heads(self) -> list[Head]:
        return self.ended

    def pods(self, job: JobRecord) -> list[PodRecord]:
        return [*self.by_rank.values()]

    async def program(self, job: JobRecord, wanted: str) -> bytes:
        raise AssertionError

    async def old_token(self, job: JobRecord, pod: PodRecord) -> str:
        raise AssertionError

    def take_answer(self, job: JobRecord, report: Report | None, group: RoundStatus | None) -> None:
        raise AssertionError

    def take_silent(self, job: JobRecord, made: Made, silent: frozenset[int]) -> None:
        self.told.append(silent)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        rank = int(request.host.split(":")[0].rpartition(".")[2]) - 10
        self.asked.append(rank)
        page = self.pages[rank]
        if page is None:
            await asyncio.sleep(60)
        return web.Response(text=json.dumps({"attempt": 0, "node_rank": rank, **(page or {})}))

    def heard(self, **unheard: float) -> None:
        """Rank 0's agent has answered."""
        seconds = {int(name[1:]): value for name, value in unheard.items()}
        self.silence.heard(Head(self.record, self.by_rank[0], Order()), seconds)

    def missed(self) -> None:
        """Rank 0's agent has not."""
        self.silence.heard(Head(self.record, self.by_rank[0], Order()), None)

    def over(self, words: str) -> None:
        """Rank 0 has ended with this message."""
        self.by_rank[0] = replace(failed(0, words), node_timeout=self.timeout)
        self.ended = [Head(self.record, self.by_rank[0], Order())]


@asynccontextmanager
async def nodes(count: int, timeout: int = 1, alone: float = 0.0) -> AsyncIterator[Nodes]:
    found = Nodes(timeout)
    hosts = [f"127.0.0.{10 + rank}" for rank in range(count)]
    async with listening(*hosts, progress=found.answer) as port, session(2) as http:
        for rank, host in enumerate(hosts):
            found.pages[rank] = {}
            pod = replace(running(rank), ip=host, agent_port=port, node_timeout=timeout)
            found.by_rank[rank] = pod
        async with side_by_side(found.silence.run(http, alone)):
            await asyncio.sleep(0)
            yield found


async def test_a_suspect_that_does_not_answer_is_silent_until_it_does() -> None:
    async with nodes(3) as seen:
        seen.pages[1] = None
        seen.heard(n1=60.0, n2=60.0)
        await until(lambda: frozenset((1,)) in seen.told)  # 2 may be late on a busy machine
        assert 2 in seen.asked and 0 not in seen.asked
        seen.pages[1] = {}
        await until(lambda: seen.told[-1] == frozenset())
        seen.heard()
        seen.asked.clear()
        await until(lambda: not seen.silence._inquiries)


async def test_the_others_are_asked_about_rank_0() -> None:
    async with nodes(3) as seen:
        seen.pages = {0: None, 1: {"unheard_seconds": 30.0}, 2: {"unheard_seconds": 0.1}}
        seen.heard()
        seen.missed()
        await until(lambda: len(seen.asked) >= 30)
        assert seen.told == []
        seen.pages[2] = {"unheard_seconds": 30.0}
        await until(lambda: seen.told)
        assert seen.told == [frozenset((0,))]


async def test_an_operator_that_reaches_nobody_does_nothing() -> None:
    async with nodes(3) as seen:
        seen.pages = dict.fromkeys(range(3))
        seen.heard()
        seen.missed()
        await until(lambda: len(seen.asked) >= 36)
        assert seen.told == []


def test_what_was_missed_while_nobody_answered_proves_nothing() -> None:
    found = missing(missing(evidence(), 0, 101.0, 104.0, 107.0), 9, 101.0, 104.0, 107.0)
    found.unanswered = 20
    found.found(7, 110.0)
    assert found.missed == {0: [110.0]} and not found.unanswered
    found.witness(7, 110.0, 60.0)
    missing(found, 0, 112.0)
    assert found.silent(200.0) == frozenset()
    missing(found, 0, 113.0)
    assert found.silent(114.9) == frozenset() and found.silent(115.0) == {0}


async def test_an_ended_node_stands_in_for_its_word() -> None:
    async with nodes(2) as seen:
        seen.pages[0] = None
        words = summary(reason="NodeSilent", peer=True)
        seen.by_rank[1] = failed(1, words)
        seen.heard()
        seen.missed()
        await until(lambda: seen.told)
        assert seen.told == [frozenset((0,))]


async def test_an_operator_that_has_just_begun_asks_whom_rank_0_had_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one before was lost with them, so rank 0 heard nobody."""
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.1)
    async with nodes(3) as seen:
        seen.pages[1] = None
        seen.over(summary(reason="NodeSilent", peer=True))
        await until(lambda: seen.told)
        assert seen.told == [frozenset((1,))] and 2 in seen.asked and 0 not in seen.asked
        seen.ended = []
        await until(lambda: not seen.silence._inquiries)
        assert not seen.silence._evidence and seen.told[-1] == frozenset((1,))


async def test_a_silence_before_the_operator_counts_from_when_there_was_none() -> None:
    async with nodes(2, timeout=3600, alone=60.0) as seen:
        seen.pages[0] = None
        seen.missed()
        await until(lambda: 1 in seen.asked)  # it may be new no more, so nothing is waited for
        (found,) = seen.silence._evidence.values()
        assert time.monotonic() - found.heard_at >= 60.0


async def test_nobody_is_asked_for_a_rank_0_that_has_ended_of_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(silence, "LOOK_SECONDS", 0.01)
    async with nodes(2) as seen:
        seen.over(summary(reason="Exception"))
        await asyncio.sleep(0.2)
        seen.over(summary(reason="NodeSilent", peer=True))
        seen.by_rank[1] = failed(1, summary(reason="NodeSilent", peer=True))
        await asyncio.sleep(0.2)
        assert not seen.asked and not seen.silence._evidence


@pytest.mark.parametrize("page", [{"attempt": 1}, {"node_rank": 2}, {"job": "other"}, {"step": -1}])
async def test_another_pod_at_its_address_is_not_the_node(page: dict[str, Any]) -> None:
    async with nodes(2) as seen:
        seen.pages[1] = page
        seen.heard(n1=60.0)
        await until(lambda: seen.told)
        assert seen.told == [frozenset((1,))]


async def test_pods_without_the_time_out_are_not_asked() -> None:
    async with nodes(2) as seen:
        seen.by_rank[0] = replace(seen.by_rank[0], node_timeout=0)
        seen.heard(n1=60.0)
        seen.missed()
        assert not seen.silence._inquiries


def test_an_agent_that_may_still_be_starting_is_not_missed() -> None:
    found = Evidence(T, heard_at=100.0)
    assert not missing(found, 0, 100.5).is_due(101.0)
    assert found.is_due(105.5)  # an operator that has just begun, and never heard it
    found.answer(106.0, {})
    assert not found.is_due(106.0)
    assert missing(found, 0, 107.0).is_due(107.0)


async def test_an_attempt_that_is_over_is_forgotten() -> None:
    async with nodes(2) as seen:
        seen.pages[1] = None
        seen.heard(n1=60.0)
        seen.silence.forget(seen.by_rank[0].uid)
        await until(lambda: not seen.silence._inquiries)
        assert not seen.silence._evidence and seen.told == []
