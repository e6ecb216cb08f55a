"""A server whose answers are not what Kubernetes would answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import orjson
from aiohttp import web

from tests.builders import job_object
from tests.cluster.webserver import serving

JOB = {**job_object("digits"), "status": {}}
JOB["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "7"}
LIST = orjson.dumps({"kind": "DDPJobList", "metadata": {"resourceVersion": "5"}, "items": []})
EVENT = orjson.dumps({"type": "ADDED", "object": JOB}) + b"\n"
ERROR = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}}
PAGE = b"<html>502 Bad Gateway</html>"
# Bodies that are no answer to a list.
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
# What a watch brings that is no event; an event may be cut in the middle.
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
    async with serving(app) as port:
        yield f"http://127.0.0.1:{port}"
