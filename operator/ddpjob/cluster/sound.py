"""Keeps from kopf what is no answer of an API server: it would end the process.

A gateway's page, JSON that was cut, a watch's ERROR other than 410: kopf takes them for errors of
its own and stops. Here they become what they are, a broken connection, after which it tries again.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import orjson

from ddpjob.cluster.kube import lines
from ddpjob.errors import Unavailable
from ddpjob.nesting import LARGE, aside, read_json

PAUSE_SECONDS = 1.0  # kopf begins a broken watch again at once


async def sound_answers(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """A middleware for kopf's session. Raises ClientConnectionError, which kopf retries."""
    answer = await handler(request)
    if answer.status >= 400:
        return answer
    if "watch" in request.url.query:
        answer.content = cast(aiohttp.StreamReader, _Events(answer.content))
        return answer
    text = await answer.read()
    if (
        not isinstance(await aside(len(text) > LARGE, _json, text), dict)
        or answer.content_type != "application/json"
    ):
        raise aiohttp.ClientConnectionError(f"{request.url.path}: no answer of an API server")
    return answer


class _Events:
    """A StreamReader whose chunks, which kopf reads, are whole events."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Whole events. Raises ClientPayloadError at the first that is none."""
        try:
            async for line in lines(self._stream):
                if not _is_event(await aside(len(line) > LARGE, _json, line)):
                    await asyncio.sleep(PAUSE_SECONDS)
                    raise aiohttp.ClientPayloadError("no event of a watch")
                yield line + b"\n"
        except Unavailable as error:  # a line without end
            raise aiohttp.ClientPayloadError(str(error)) from error


def _is_event(event: object) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        return False
    if event.get("type") == "ERROR":
        return bool(event["object"].get("code") == 410)
    return isinstance(event["object"].get("metadata"), dict)


def _json(text: bytes) -> object:
    try:
        return read_json(text)
    except orjson.JSONDecodeError:
        return None
