"""Keeps from kopf what would end the process, or fill its memory.

A gateway's page, JSON that was cut, a watch's ERROR other than 410, a definition that somebody has
deleted: kopf takes them for errors of its own and stops. Here they become a broken connection,
after which it tries again. And kopf is here for events alone, so of each object it gets the name.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import orjson

from ddpjob import names
from ddpjob.cluster.kube import chunks, lines
from ddpjob.cluster.pages import read_page
from ddpjob.errors import Unavailable
from ddpjob.json_depth import LARGE, Body, aside, read_json

# The pause before kopf begins a broken watch again. Without it kopf does so at once.
PAUSE_SECONDS = 1.0


async def guarded_answers(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Return the answer to a request of kopf's; a middleware.

    Raises ClientConnectionError, which kopf retries, for an answer that would end kopf.
    """
    answer = await handler(request)
    if answer.status == 404 and request.url.path.endswith(f"/{names.PLURAL}"):
        answer.close()
        await asyncio.sleep(PAUSE_SECONDS)
        raise aiohttp.ClientConnectionError(f"there is no kind {names.KIND}")
    if answer.status >= 400:
        return answer
    if "watch" in request.url.query:
        answer.content = cast(aiohttp.StreamReader, _Events(answer.content))
        return answer
    items: list[Body] = []
    try:
        if answer.content_type != "application/json":
            raise ValueError(answer.content_type)
        page = await read_page(chunks(answer.content), lambda item: items.append(_trigger(item)))
    except ValueError as error:
        answer.close()
        message = f"{request.url.path}: no answer of an API server: {error}"
        raise aiohttp.ClientConnectionError(message) from error
    answer._body = orjson.dumps(page | ({"items": items} if page.get("items") == [] else {}))
    return answer


def _trigger(found: Body) -> Body:
    """What kopf needs of an object to say that it has changed."""
    metadata = found.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    kept = {name: named[name] for name in names.METADATA if name in named}
    head: Body = {name: found[name] for name in ("apiVersion", "kind") if name in found}
    return {**head, "metadata": kept}


class _Events:
    """A StreamReader whose chunks, which kopf reads, are whole events."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole events. Raises ClientPayloadError at the first broken one."""
        try:
            async for line in lines(self._stream):
                try:
                    event = await aside(len(line) > LARGE, read_json, line)
                except orjson.JSONDecodeError:
                    event = None
                if not _is_event(event):
                    await asyncio.sleep(PAUSE_SECONDS)
                    raise aiohttp.ClientPayloadError("no event of a watch")
                if event["type"] != "ERROR":
                    line = orjson.dumps(
                        {"type": event["type"], "object": _trigger(event["object"])}
                    )
                yield line + b"\n"
        except Unavailable as error:  # a line without end
            raise aiohttp.ClientPayloadError(str(error)) from error


def _is_event(event: object) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        return False
    if event.get("type") == "ERROR":
        return bool(event["object"].get("code") == 410)
    return isinstance(event["object"].get("metadata"), dict)
