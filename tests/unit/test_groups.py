"""The operator's long polls: orders are given, and no agent's answer costs more than itself."""

import asyncio
import json
import math
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from ddpjob.controller import groups, silence
from ddpjob.controller.agenthttp import MAX_BYTES, session
from ddpjob.controller.groups import GroupPage, Groups, fetch_group
from ddpjob.controller.memory import Head, JobRecord
from ddpjob.controller.silence import Silence
from ddpjob.handlers import MOST_DESCRIPTORS, raise_descriptors
from ddpjob.plan.model import Made, NodeExit, Order, PodRecord, Report, RoundStatus
from ddpjob.settings import Settings
from tests.builders import job, record_of_job, running
from tests.cluster.webserver import listening
from tests.localplay import until

TOKEN = "t" * 32
PAGE: dict[str, Any] = {
    "namespace": "team",
    "job": "digits",
    "attempt": 0,
    "round": 2,
    "node_rank": 0,
    "serial": 5,
    "running": True,
    "failures": [{"node_rank": 1, "exit_code": 1, "message": {"version": 1, "reason": "Signal"}}],
    "progress": {"attempt": 0, "round": 2, "source": "file", "step": 7},
}
MESSAGE = '{"version":1,"reason":"Signal"}'


class Agent:
    """Rank 0's agent, as far as the operator sees it."""

    def __init__(self) -> None:
        self.page: Any = PAGE
        self.status = 200
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.programs: list[bytes] = []
        self.is_held = asyncio.Event()
        self.holds = False
        self.pod = running(0)

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.programs.append(await request.read())
        self.tokens.append(request.headers.get("Authorization", ""))
        return web.Response(text="{}", status=self.status)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.holds and request.query["after"] == str(self.page["serial"]):
            self.is_held.set()
            await asyncio.sleep(60)
        return web.Response(text=json.dumps(self.page), status=self.status)


@asynccontextmanager
async def serving() -> AsyncIterator[Agent]:
    agent = Agent()
    async with listening(group=agent.answer, program=agent.take) as port:
        agent.pod = replace(running(0), ip="127.0.0.1", agent_port=port, in_place=True, token=TOKEN)
        yield agent


async def fetched(agent: Agent, last: GroupPage | None = None) -> GroupPage | None:
    after, heard = (last.serial, last.stamp) if last else (0, None)
    async with session(5) as http:
        return await fetch_group(http, agent.pod, Order(2), 0, after=after, heard=heard)


async def test_an_answer_says_how_all_nodes_are() -> None:
    async with serving() as agent:
        answer = await fetched(agent)
    assert answer is not None and answer.serial == 5
    assert answer.round_status() == RoundStatus(0, 2, True, (NodeExit(1, 1, MESSAGE),))
    assert answer.progress is not None and (answer.progress.step, answer.progress.round) == (7, 2)
    assert agent.asked == [{"round": "2", "after": "0", "hold": "0", "ends": "0"}]
    assert agent.tokens == [f"Bearer {TOKEN}"]


def failures(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"failures": [{**PAGE["failures"][0], **change} for change in changes]}


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 1},
        {"job": "other"},
        {"namespace": "other"},
        {"node_rank": 1},
        {"serial": -1},
        {"serial": 2**31},
        {"serial": "5"},
        {"round": -1},
        {"running": 1},
        {"failures": {}},
        failures(*[{}] * 65),
        failures({"node_rank": -1}),
        failures({"exit_code": 2**31}),
        failures({"message": "Signal"}),
        {"progress": {"step": -1}},
        {"padding": " " * MAX_BYTES},
        {"stamp": -1.0},
        {"stamp": math.inf},
        {"unheard": [{"node_rank": 1, "seconds": -1}]},
        {"unheard": [{"node_rank": 1, "seconds": math.nan}]},
        {"unheard": [{"node_rank": 1, "seconds": 6}] * 65},
        {"status": 401},  # of HTTP
    ],
    ids=range(22),
)
async def test_a_bad_answer_or_a_refusal_is_none(change: dict[str, Any]) -> None:
    async with serving() as agent:
        agent.status = change.get("status", 200)
        agent.page = {**PAGE, **change}
        assert await fetched(agent) is None


async def test_an_answer_names_the_nodes_that_are_not_heard_and_is_acknowledged() -> None:
    async with serving() as agent:
        agent.page = {
            **PAGE,
            "stamp": 17.25,
            "unheard": [{"node_rank": 3, "seconds": 6.5}, {"node_rank": 1, "seconds": 6}],
        }
        answer = await fetched(agent)
        assert answer is not None
        unheard = {each.node_rank: each.seconds for each in answer.unheard}
        assert unheard == {3: 6.5, 1: 6.0}
        await fetched(agent, answer)
    assert [query.get("heard") for query in agent.asked] == [None, "17.25"]


@pytest.mark.parametrize(
    "message",
    [
        {"a": "x" * (MAX_BYTES - 1000)},
        {"version": 1},
        {**json.loads(MESSAGE), "result": {"size": -1}},
    ],
)
async def test_a_message_that_is_no_agents_is_empty(message: dict[str, Any]) -> None:
    """The node has failed all the same."""
    async with serving() as agent:
        agent.page = {**PAGE, **failures({"message": message}, {})}
        answer = await fetched(agent)
    assert answer is not None
    assert answer.round_status().exits == (NodeExit(1, 1, "{}"), NodeExit(1, 1, MESSAGE))


class Watcher:
    """The desk of one job: its order, and what becomes of the answers."""

    def __init__(self, agent: Agent) -> None:
        self.found = [Head(record_of_job(job()), agent.pod, Order())]
        self.answers: list[RoundStatus] = []
        self.programs: dict[str, bytes] = {}
        self.wanted: list[str] = []
        self.groups = Groups(Settings(progress_poll=20), self, Silence(self))

    def heads(self) -> list[Head]:
        return self.found

    def pods(self, job: JobRecord) -> list[PodRecord]:
        return [head.pod for head in self.found]

    async def program(self, job: JobRecord, wanted: str) -> bytes:
        self.wanted.append(wanted)
        return self.programs.get(wanted, b"")

    async def old_token(self, job: JobRecord, pod: PodRecord) -> str:
        return TOKEN

    def take_answer(self, job: JobRecord, report: Report | None, group: RoundStatus | None) -> None:
        if group is not None:
            self.answers.append(group)

    def take_silent(self, job: JobRecord, made: Made, silent: frozenset[int]) -> None:
        raise AssertionError


@asynccontextmanager
async def asking(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watcher]:
    monkeypatch.setattr(groups, "LOOK_SECONDS", 0.02)
    watcher = Watcher(agent)
    async with session(5) as http:
        run = asyncio.create_task(watcher.groups.run(http))
        try:
            yield watcher
        finally:
            run.cancel()
            await asyncio.wait([run])
            assert len(watcher.groups) == 0


async def test_an_agent_of_an_earlier_version_is_asked_with_its_own_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as agent:
        agent.pod = replace(agent.pod, token="")
        async with asking(agent, monkeypatch) as watcher:
            await until(lambda: watcher.answers)
    assert set(agent.tokens) == {f"Bearer {TOKEN}"}


async def test_a_request_is_held_and_another_order_is_given_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as agent, asking(agent, monkeypatch) as watcher:
        agent.holds = True
        await until(agent.is_held.is_set)
        assert [words["round"] for words in agent.asked] == ["0", "0"]
        watcher.found = [watcher.found[0]._replace(order=Order(1, True))]
        watcher.groups.tell(agent.pod.uid, Order(1, True))
        watcher.groups.tell("another", Order(9))
        await until(lambda: len(agent.asked) == 3)
        assert agent.asked[2] == {"round": "1", "after": "5", "hold": "20", "ends": "1"}


async def test_what_ranks_are_to_run_comes_where_it_is_lacking_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "PAUSE_SECONDS", 0.01)
    order = Order(1, program="a" * 16)
    async with serving() as agent, asking(agent, monkeypatch) as watcher:
        agent.holds = True
        await until(agent.is_held.is_set)
        agent.holds = False
        watcher.found = [watcher.found[0]._replace(order=order)]
        watcher.groups.tell(agent.pod.uid, order)
        await until(lambda: len(agent.asked) > 3)
        assert agent.asked[2]["program"] == order.program
        assert not watcher.wanted, "the agent has it"
        agent.page = {**PAGE, "lacks_program": True}
        await until(lambda: len(watcher.wanted) > 2)
        assert not agent.programs, "it was not there"
        watcher.programs = {order.program: b"line\narchive"}
        await until(lambda: agent.programs)
        count = len(agent.asked)
        await until(lambda: len(agent.asked) > count + 2)
    assert agent.programs == [b"line\narchive"]
    assert set(agent.tokens) == {f"Bearer {TOKEN}"}


async def test_a_job_that_has_left_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as agent, asking(agent, monkeypatch) as watcher:
        agent.holds = True
        await until(agent.is_held.is_set)
        watcher.found = []
        await until(lambda: len(watcher.groups) == 0)


async def test_an_agent_that_always_has_news_is_not_asked_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "BURST", 3)
    monkeypatch.setattr(groups, "RATE", 0.01)
    async with serving() as agent, asking(agent, monkeypatch):
        await until(lambda: len(agent.asked) == 3)
        await asyncio.sleep(0.3)
        assert len(agent.asked) == 3


async def test_no_more_requests_are_held_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_HELD", 0)
    async with serving() as agent, asking(agent, monkeypatch) as watcher:
        watcher.groups._settings = Settings(progress_poll=0.05)
        agent.holds = True
        await until(lambda: agent.asked)
        assert agent.asked[0]["hold"] == "0"


@pytest.mark.parametrize(
    ("descriptors", "held"), [(1024, 224), (2**20, 2000), (resource.RLIM_INFINITY, 2000)]
)
def test_requests_are_held_while_descriptors_are_left_for_all_else(
    descriptors: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))
    assert groups.most_held() == held


def test_the_operator_may_open_as_many_files_as_the_system_lets_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, MOST_DESCRIPTORS), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_agent_that_never_answers_is_asked_less_and_less() -> None:
    pauses = [silence.pause_after(missed, 1.0, 8.0) for missed in range(1, 12)]
    assert pauses == [1.0] * silence.PATIENCE + [2.0, 4.0] + [8.0] * 4
    assert silence.pause_after(10**9, 1.0, 8.0) == 8.0
