"""What a gateway, or a cut connection, makes of the API server's answers stops nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from ddpjob import kopf_guard as sound_module
from ddpjob.cluster import DDPJOBS
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.informer import Cache, Informer
from ddpjob.cluster.kube import KubeCluster
from ddpjob.controller.jobrecord import JobRecord, job_record
from ddpjob.errors import Unavailable
from ddpjob.kopf_guard import sound_answers
from tests.builders import job_object

JOB = {**job_object("digits"), "status": {}}
JOB["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "7"}
LIST = orjson.dumps({"kind": "DDPJobList", "metadata": {"resourceVersion": "5"}, "items": []})
EVENT = orjson.dumps({"type": "ADDED", "object": JOB}) + b"\n"
ERROR = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}}
PAGE = b"<html>502 Bad Gateway</html>"
NO_LISTS = [
    b'{"kind": "DDPJobList", "metadata": {"resourceVersion": "5"}}',
    b'{"kind": "DDPJobList", "metadata": {}, "items": []}',
    b'{"kind": "DDPJobList", "metadata": {"resourceVersion": "new"}, "items": []}',
    b'{"metadata": {"resourceVersion": "5"}, "items": {}}',
    b"[]",
    b"null",
    LIST[:-10],
    PAGE,
    b"",
]
NO_EVENTS = [
    EVENT[:40],  # cut, and the stream ends
    EVENT[:40] + b"\n",
    b"[]\n",
    b'{"type": "ADDED"}\n',
    b'{"type": "ADDED", "object": {}}\n',
    b'{"type": "ADDED", "object": {"metadata": {}}}\n',
    b'{"type": "ERROR", "object": "?"}\n',
    orjson.dumps(ERROR) + b"\n",
    PAGE + b"\n",
]


@contextlib.asynccontextmanager
async def answering(lists: Sequence[bytes], watches: Sequence[bytes]) -> AsyncIterator[str]:
    """A server that gives these answers in turn, the last for ever, and watches that then stay."""
    turns = {"list": list(lists), "watch": list(watches)}

    async def answer(request: web.Request) -> web.StreamResponse:
        kind = "watch" if "watch" in request.query else "list"
        text = turns[kind].pop(0) if len(turns[kind]) > 1 else turns[kind][0]
        if kind == "list":
            return web.Response(body=text, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(text)
        if len(turns[kind]) == 1 and text == EVENT:
            await asyncio.sleep(60)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("garbage", NO_LISTS)
async def test_an_answer_that_is_no_list_is_asked_for_again(garbage: bytes) -> None:
    await _comes_through([garbage, LIST], [EVENT])


@pytest.mark.parametrize("garbage", NO_EVENTS)
async def test_a_watch_that_brings_garbage_begins_again(garbage: bytes) -> None:
    await _comes_through([LIST], [garbage, EVENT])


async def _comes_through(lists: Sequence[bytes], watches: Sequence[bytes]) -> None:
    came = asyncio.Event()
    store: Cache[JobRecord] = Cache(lambda old, new: came.set())
    async with answering(lists, watches) as url:
        cluster = KubeCluster(Credentials(url))
        informer = Informer(cluster, DDPJOBS, store, job_record, namespace=None)
        task = asyncio.create_task(informer.run())
        waiting = asyncio.create_task(came.wait())
        await asyncio.wait({task, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.exception()
        assert len(store) == 1
        for one in (task, waiting):
            one.cancel()
        await asyncio.wait({task, waiting})
        await cluster.close()


@pytest.mark.parametrize("garbage", [b"[]", b"{}", b"7", PAGE])
async def test_a_written_object_that_is_none_is_no_success(garbage: bytes) -> None:
    async with answering([garbage], [EVENT]) as url:
        cluster = KubeCluster(Credentials(url))
        with pytest.raises(Unavailable, match="Garbled"):
            await cluster.get(DDPJOBS, "team", "digits")
        await cluster.close()


@pytest.mark.parametrize("garbage", [b"[]", LIST[:-10], PAGE, b""])
async def test_kopf_gets_a_broken_connection_for_an_answer_that_is_none(garbage: bytes) -> None:
    async with answering([garbage, LIST], [EVENT]) as url, _kopfs_session() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url)
        async with session.get(url) as answer:
            assert (await answer.json())["items"] == []


@pytest.mark.parametrize("garbage", NO_EVENTS[:3] + NO_EVENTS[-3:])
async def test_kopf_gets_whole_events_or_a_broken_connection(
    garbage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sound_module, "PAUSE_SECONDS", 0.0)
    got: list[Any] = []
    async with (
        answering([LIST], [EVENT + garbage, EVENT]) as url,
        _kopfs_session() as session,
        session.get(url, params={"watch": "true"}) as answer,
    ):
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for line in answer.content.iter_chunked(2**20):
                got.append(orjson.loads(line))
    assert [event["type"] for event in got] == ["ADDED"]


def _kopfs_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(middlewares=[sound_answers])
