"""Agents' answers are written by somebody's pod: none may cost more than itself."""

import asyncio
import gzip
import json
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from ddpjob.controller.agenthttp import MAX_BYTES, is_of_a_pod, session
from ddpjob.controller.agents import ANSWER_SECONDS, fetch
from ddpjob.controller.controller import Controller
from ddpjob.controller.memory import Memory
from ddpjob.local.cluster import LocalCluster
from ddpjob.settings import Settings
from tests.builders import job, record_of_job, running
from tests.cluster.processes import free_ports
from tests.cluster.webserver import Handler, listening

GOOD = {"attempt": 0, "source": "file", "step": 7, "total_steps": 10}
OTHERS: list[dict[str, Any]] = [
    *({"attempt": 1}, {"node_rank": 3}, {"job": "other"}),
    {"job": "digits", "namespace": "other"},
]
"""Of whom a page on a node's own network may speak."""


def agent(handler: Handler) -> AbstractAsyncContextManager[int]:
    """An agent that answers so; its port."""
    return listening(progress=handler, elsewhere=answering(json.dumps(GOOD)))


def answering(text: str | bytes, status: int = 200, **headers: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = text if isinstance(text, bytes) else text.encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, status=status, headers=names)

    return answer


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


async def a_byte_now_and_then(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(600):
        await answer.write(b" ")
        await asyncio.sleep(0.1)
    return answer


async def without_end(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b" " * 2**16)


async def asked(handler: Handler, seconds: float = ANSWER_SECONDS) -> Any:
    async with agent(handler) as port, session(seconds) as http:
        return await fetch(http, replace(running(0), ip="127.0.0.1", agent_port=port))


async def test_a_good_answer_is_read() -> None:
    for whose in ({}, {"namespace": "team", "job": "digits", "node_rank": 0}):
        report = await asked(answering(json.dumps({**GOOD, **whose})))
        assert report is not None and (report.step, report.total_steps) == (7, 10)


@pytest.mark.parametrize(
    "handler",
    [
        answering(""),
        answering("null"),
        answering("[]"),
        answering("{"),
        answering("[" * 60_000),
        answering(b"\xff\xfe\x00"),
        answering(json.dumps({**GOOD, "step": -1})),
        answering(json.dumps({**GOOD, "step": 10**400})),
        answering(json.dumps({**GOOD, "step": "7"})),
        answering(json.dumps({**GOOD, "metrics": {str(n): 1.0 for n in range(33)}})),
        answering(json.dumps({**GOOD, "metrics": {"x" * 64: 1.0}})),
        answering(json.dumps({**GOOD, "padding": " " * MAX_BYTES})),
        answering(gzip.compress(b" " * 2**26), Content_Encoding="gzip"),
        answering(b"not gzip", Content_Encoding="gzip"),
        *(answering(json.dumps({**GOOD, **whose})) for whose in OTHERS),
        answering(json.dumps(GOOD), status=500),
        answering("", status=302, Location="/elsewhere"),
        without_end,
        answering(json.dumps(GOOD), X_Long="x" * 2000),
    ],
    ids=range(22),
)
async def test_a_bad_answer_is_none(handler: Handler) -> None:
    assert await asked(handler) is None


async def test_a_head_without_end_is_not_read_on() -> None:
    piece = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000
    sent, gone = 0, asyncio.Event()

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with suppress(OSError):
            while sent < 2**28:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        writer.transport.abort()
        gone.set()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with session(60) as http:
            pod = replace(running(0), ip="127.0.0.1", agent_port=port)
            assert await fetch(http, pod) is None
        await gone.wait()
    assert sent < 2**25, "but for what the system holds on the way"


@pytest.mark.parametrize("handler", [never, a_byte_now_and_then])
async def test_nobody_waits_for_a_slow_agent(handler: Handler) -> None:
    async with asyncio.timeout(200):
        assert await asked(handler, 0.3) is None


async def test_an_agent_that_is_not_there() -> None:
    (port,) = free_ports(1)
    async with session(ANSWER_SECONDS) as http:
        pod = replace(running(0), ip="127.0.0.1", agent_port=port)
        assert await fetch(http, pod) is None


async def test_on_a_cluster_a_pod_does_not_choose_where_requests_go() -> None:
    """Its address and its annotations can be changed by others than its kubelet."""
    async with agent(answering(json.dumps(GOOD))) as port:
        pod = replace(running(0), ip="127.0.0.1", agent_port=port)
        for local in (True, False):
            async with session(60, local=local) as http:
                assert (await fetch(http, pod) is not None) == local


@pytest.mark.parametrize(
    ("ip", "is_of_one"),
    [
        *(
            (ip, True)
            for ip in ("10.244.2.4", "192.168.1.1", "203.0.113.9", "fd00::4", "2001:db8::1")
        ),
        *((ip, False) for ip in ("127.0.0.1", "127.9.9.9", "169.254.169.254", "0.0.0.0", "::1")),
        *((ip, False) for ip in ("fe80::1", "::ffff:127.0.0.1", "::", "224.0.0.1", "x", "")),
    ],
)
def test_an_address_that_no_pod_has(ip: str, is_of_one: bool) -> None:
    assert is_of_a_pod(ip) == is_of_one


def test_only_the_jobs_own_rank_0_is_asked() -> None:
    """Not what somebody else has named like rank 0 of a later attempt, or of another namespace."""
    record = record_of_job(job())
    own, forged = running(0), running(0, attempt=9, uid="forged")
    controller = Controller(LocalCluster(), settings=Settings())
    caches, memories = controller.reconciler.caches, controller.reconciler.memories
    caches.put_job(record)
    caches.put_pod(forged)
    caches.put_pod(own)
    memories[record.uid] = Memory(head=own.uid)
    assert [head.pod.uid for head in controller.heads()] == [own.uid]
    memories[record.uid].head = ""
    assert not list(controller.heads())


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 10.0), (200, 10.0), (1000, 50.0)])
def test_progress_is_written_within_its_budget(jobs: int, seconds: float) -> None:
    """Once in 10 s for one job, twenty times a second for all: docs/operations.md."""
    agents = Controller(LocalCluster()).agents
    agents._running = jobs
    assert agents.write_interval() == seconds
