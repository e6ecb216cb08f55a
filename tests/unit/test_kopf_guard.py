"""kopf gets whole lists and events, or a broken connection that it can deal with."""

import contextlib
from typing import Any

import aiohttp
import orjson
import pytest

from ddpjob import kopf_guard
from ddpjob.kopf_guard import guarded_answers
from tests.garbled import EVENT, LIST, NO_EVENTS, PAGE, answering


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
    monkeypatch.setattr(kopf_guard, "PAUSE_SECONDS", 0.0)
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
    return aiohttp.ClientSession(middlewares=[guarded_answers])
