"""A proxy between one operator and the API server that does what a plan says.

Every fault is something that a real API server, a load balancer or a network does: no single event
is dropped from a stream that goes on.
"""

import asyncio
import re
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import orjson
from aiohttp import web

from tests.chaos.faults import Fault
from tests.chaos.plan import Plan
from tests.cluster.client import MERGE, Access

DELAY_SECONDS = 1.0
BLIND_SECONDS = 1.5  # a watch brings nothing: long enough for pods to start and end
RETRY_AFTER_SECONDS = 1
STALE_EVENTS = 3  # how many events an old snapshot is behind
REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}
REASONS |= {503: "ServiceUnavailable", 504: "Timeout"}
PAGE = "<html><body><h1>502 Bad Gateway</h1></body></html>"
HEADERS = ("Authorization", "Content-Type", "Accept")
_PATH = re.compile(
    r"/apis?(?:/[a-z0-9.]+)?/v[a-z0-9]+(?:/namespaces/[^/]+)?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[a-z]+))?)?"
)


@dataclass
class Faults:
    """What is to happen in this run, what has been counted, and what has happened."""

    pending: set[Fault] = field(default_factory=set)
    fired: list[Fault] = field(default_factory=list)
    writes: int = 0
    last_write: float = 0.0  # loop time
    versions: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Resource versions that watches have brought in this run, by resource."""
    _counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _done: set[tuple[Fault, str]] = field(default_factory=set)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Those of a plan, nothing counted yet."""
        return cls(set(plan.faults))

    def due(self, where: str, resource: str = "", stream: str = "") -> str:
        """Count one event; the kind of the fault that befalls it, or nothing."""
        self._counts[where, resource, stream] += 1
        number = self._counts[where, resource, stream]
        for fault in sorted(self.pending, key=str):
            place = (fault.where, fault.resource, fault.number)
            if place == (where, resource, number) and (fault, stream) not in self._done:
                self._done.add((fault, stream))
                self.fired.append(fault)
                return fault.kind
        return ""


class Proxy:
    """Listens on loopback for one operator. An asynchronous context manager."""

    def __init__(
        self,
        server: Access,
        *,
        kill: Callable[[], None],
    ) -> None:
        self._server = server
        self._kill = kill
        self.faults = Faults()

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=self._server.ca_file)
        self._session = aiohttp.ClientSession(
            self._server.url,
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            read_bufsize=2**20,
        )
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A watch ends with the operator that asked for it.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        found = _PATH.fullmatch(request.path)
        resource = found["resource"] if found else ""
        if request.method != "GET":
            body = await request.read()
            # Events are told and forgotten: they are counted as no write.
            if resource == "events":
                return await self._forward(request, body)
            return await self._write(request, body)
        if request.query.get("watch") in ("1", "true"):
            return await self._watch(request, resource)
        if found and not found["name"]:
            return await self._list(request, resource)
        return await self._forward(request)

    async def _write(self, request: web.Request, body: bytes) -> web.StreamResponse:
        faults = self.faults
        faults.writes += 1
        faults.last_write = asyncio.get_running_loop().time()
        kind = faults.due("write")
        if kind == "kill-before":
            self._kill()
        if kind in ("kill-before", "reset"):
            return _abort(request)
        if kind.isdigit() or (kind == "conflict" and request.method != "PUT"):
            return _refusal(int(kind) if kind.isdigit() else 409)
        if kind == "conflict":
            await self._touch(request)
        if kind == "delay":
            await asyncio.sleep(DELAY_SECONDS)
        # What has left the operator is done, even if nobody waits for it any more.
        forwarding = asyncio.create_task(self._forward(request, body))
        forwarding.add_done_callback(lambda task: task.cancelled() or task.exception())
        answer = await asyncio.shield(forwarding)
        if kind == "kill-after":
            self._kill()
        if kind in ("kill-after", "lost-answer"):
            return _abort(request)
        return _garbled(answer, kind)

    async def _touch(self, request: web.Request) -> None:
        """Somebody else changes the object just before."""
        path = request.path.removesuffix("/status")
        headers = {"Authorization": f"Bearer {self._server.token}", "Content-Type": MERGE}
        change = {"metadata": {"annotations": {"touched": str(self.faults.writes)}}}
        async with self._session.patch(path, data=orjson.dumps(change), headers=headers):
            pass

    async def _list(self, request: web.Request, resource: str) -> web.StreamResponse:
        kind = self.faults.due("list", resource, self._stream(request))
        if kind.isdigit():
            return _refusal(int(kind))
        query = dict(request.query)
        versions = self.faults.versions[resource]
        if kind == "stale" and versions:
            old = versions[-STALE_EVENTS - 1] if len(versions) > STALE_EVENTS else versions[0]
            query |= {"resourceVersion": str(old), "resourceVersionMatch": "Exact"}
        return _garbled(await self._forward(request, query=query), kind)

    async def _forward(
        self, request: web.Request, body: bytes = b"", query: Mapping[str, str] | None = None
    ) -> web.Response:
        async with self._session.request(
            request.method,
            request.path,
            params=request.query if query is None else query,
            data=body or None,
            headers=_headers(request),
        ) as answer:
            text = await answer.read()
        kept = {k: v for k, v in answer.headers.items() if k in ("Content-Type", "Retry-After")}
        return web.Response(status=answer.status, body=text, headers=kept)

    async def _watch(self, request: web.Request, resource: str) -> web.StreamResponse:
        async with self._session.get(
            request.path, params=request.query, headers=_headers(request)
        ) as upstream:
            if upstream.status != 200:
                return web.Response(status=upstream.status, body=await upstream.read())
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            with suppress(aiohttp.ClientConnectionResetError):  # nobody listens any more
                async for line in _lines(upstream.content):
                    if not await self._event(request, response, resource, line):
                        break
            return response

    async def _event(
        self, request: web.Request, response: web.StreamResponse, resource: str, line: bytes
    ) -> bool:
        """Pass on one event, or what the plan has for it; whether the stream goes on."""
        event = orjson.loads(line)
        kind = ""
        if event["type"] not in ("BOOKMARK", "ERROR"):
            kind = self.faults.due("watch", resource, self._stream(request))
            self.faults.versions[resource].append(
                int(event["object"]["metadata"]["resourceVersion"])
            )
        if kind in ("gone", "silent", "late"):
            await asyncio.sleep(BLIND_SECONDS)
        if kind in ("silent", "cut"):
            _abort(request)
            return False
        if kind in ("gone", "error"):
            status = _status(410 if kind == "gone" else 500)
            line = orjson.dumps({"type": "ERROR", "object": status})
        if kind == "broken-json":
            line = line[: len(line) // 2]
        await response.write((line + b"\n") * (2 if kind == "again" else 1))
        return kind not in ("gone", "error", "broken-json")

    def _stream(self, request: web.Request) -> str:
        """Which client of the operator this is: kopf's, or its own."""
        return "own" if request.headers.get("Accept") == "application/json" else "kopf"


def _headers(request: web.Request) -> dict[str, str]:
    return {name: request.headers[name] for name in HEADERS if name in request.headers}


def _abort(request: web.Request) -> web.Response:
    """Reset the connection; nothing that is answered after that arrives."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _status(code: int) -> dict[str, Any]:
    reason = REASONS[code]
    words = {"message": "out of sorts", "reason": reason, "code": code}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **words}


def _refusal(code: int) -> web.Response:
    after = {"Retry-After": str(RETRY_AFTER_SECONDS)} if code == 429 else {}
    text = orjson.dumps(_status(code))
    return web.Response(
        status=code, body=text, headers={"Content-Type": "application/json", **after}
    )


def _garbled(answer: web.Response, kind: str) -> web.Response:
    """The answer as somebody between spoils it."""
    assert isinstance(answer.body, bytes)
    if kind == "html":
        return web.Response(status=answer.status, text=PAGE, content_type="text/html")
    if kind == "broken-json":
        half = answer.body[: len(answer.body) // 2]
        return web.Response(status=answer.status, body=half, content_type="application/json")
    if kind == "no-items" and answer.status == 200:
        body = orjson.loads(answer.body)
        body.pop("items")
        return web.Response(body=orjson.dumps(body), content_type="application/json")
    return answer


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
