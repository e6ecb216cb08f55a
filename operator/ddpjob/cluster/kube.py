"""The API server over aiohttp: the operator's hot path. Bodies go out as they were rendered."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import orjson

from ddpjob.cluster import Keep, Listing, Resource, WatchEvent, kept
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.pages import read_page
from ddpjob.cluster.watching import read_event
from ddpjob.errors import ClusterError, Unavailable, cluster_error
from ddpjob.json_depth import LARGE, Body, aside, read_json

# Clocks that differ by less count as equal.
CLOCK_SECONDS = 5.0
# Objects in one answer to a list.
CHUNK = 500
REQUEST_SECONDS = 30.0
# The server ends a watch after so long. A new one continues where it ended.
WATCH_SECONDS = 300
# The time after which the token's file is read again, because bound tokens rotate.
TOKEN_SECONDS = 60.0
# The longest pause in seconds that a server can ask for.
MAX_RETRY_AFTER = 60.0
# Requests at the same time. More are slower: with 16, 64 and 256 a CPU second created 2.5k, 3.2k
# and 2.7k pods.
IN_FLIGHT = 64
# Bytes of one watch event. etcd's own limit is 1.5 MiB.
MAX_LINE = 16 * 1024 * 1024


async def _object(answer: aiohttp.ClientResponse) -> Body:
    """The object in an answer. Raises ValueError where there is none."""
    found = read_json(await answer.read())
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        raise ValueError("no Kubernetes object")
    return found


class KubeCluster:
    """`Cluster` over HTTP. Make it inside a running event loop, and close it there."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        in_flight: int = IN_FLIGHT,
        fence: Callable[[], None] | None = None,
        told: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        """`fence` is called right before each write, after any wait; what it raises stops it.

        `told` gets the verb, the plural, the status code and the seconds of each request that is no
        watch; code 0 is one without an answer.
        """
        self._credentials, self._fence, self._told = credentials, fence, told
        self._token, self._token_read = credentials.token, float("-inf")
        self._slots = asyncio.Semaphore(in_flight)
        self.ahead = 0.0
        self._session = aiohttp.ClientSession(
            base_url=credentials.server,
            connector=aiohttp.TCPConnector(
                limit=0,  # watches must not take the place of writes; _slots bounds those
                ssl=credentials.ssl_context(),
                keepalive_timeout=75,  # kube-apiserver closes idle connections after 90 s
            ),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            read_bufsize=2**18,
        )

    async def create(
        self, resource: Resource, namespace: str, body: bytes | Mapping[str, Any]
    ) -> Body:
        """POST, and return the stored object."""
        return await self._request("POST", resource, resource.path(namespace), body)

    async def get(self, resource: Resource, namespace: str, name: str) -> Body:
        """GET and return one object."""
        return await self._request("GET", resource, resource.path(namespace, name))

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_seconds: int | None = None,
    ) -> Body | None:
        """DELETE with a uid precondition."""
        options: Body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path = resource.path(namespace, name)
        answer = await self._request("DELETE", resource, path, options)
        metadata = answer["metadata"]
        # A pod that is gone at once is answered with its last version, deletionTimestamp included.
        held = metadata.get("deletionGracePeriodSeconds") != 0 or metadata.get("finalizers")
        return answer if "deletionTimestamp" in metadata and held else None

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]
    ) -> Body:
        """PATCH, and return the stored object."""
        return await self._request("PATCH", resource, resource.path(namespace, name), body)

    async def update(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Body:
        """PUT, and return the stored object."""
        path = resource.path(namespace, body["metadata"]["name"])
        return await self._request("PUT", resource, path, body)

    async def update_status(
        self, resource: Resource, namespace: str, body: Mapping[str, Any]
    ) -> Body:
        """PUT on /status, and return the stored object."""
        path = resource.path(namespace, body["metadata"]["name"], "status")
        return await self._request("PUT", resource, path, body)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        labels: str = "",
        keep: Keep | None = None,
    ) -> Listing:
        """LIST in chunks, each of which is read object by object."""
        items: list[Any] = []
        params = {"limit": str(CHUNK)} | ({"labelSelector": labels} if labels else {})

        def take(body: Body) -> None:
            items.extend(kept([body], keep))

        async def read(answer: aiohttp.ClientResponse) -> Body:
            return await read_page(chunks(answer.content), take)

        while True:
            path = resource.path(namespace)
            page = await self._request("LIST", resource, path, read=read, params=params)
            metadata = _metadata(page)
            if not (token := metadata.get("continue")):
                return Listing(items, metadata["resourceVersion"])
            params["continue"] = token

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        labels: str = "",
        resource_version: str,
    ) -> AsyncIterator[WatchEvent]:
        """Yield the events of a WATCH, with bookmarks, until the server ends it."""
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SECONDS),
        } | ({"labelSelector": labels} if labels else {})
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_connect=REQUEST_SECONDS)
        try:
            async with self._session.get(
                resource.path(namespace), params=params, headers=self._headers(), timeout=timeout
            ) as answer:
                if answer.status >= 400:
                    raise _error(answer, await answer.read())
                try:
                    async for line in lines(answer.content):
                        yield await aside(len(line) > LARGE, read_event, line)
                finally:
                    # Left before its end. TLS would wait for a goodbye, 30 s of a silent server.
                    if answer.connection and answer.connection.transport:
                        answer.connection.transport.abort()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(0, "NoAnswer", f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _request(
        self,
        verb: str,
        resource: Resource,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        *,
        read: Callable[[aiohttp.ClientResponse], Awaitable[Body]] = _object,
        params: Mapping[str, str] | None = None,
    ) -> Body:
        """What `read` makes of an answer that is none of an error. Raises ClusterError.

        Also for what breaks, or turns out to be unreadable, while it is read.
        """
        content = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        method = "GET" if verb == "LIST" else verb
        code = 0
        async with self._slots:
            if self._fence is not None and method != "GET":
                self._fence()
            begin = time.monotonic()
            try:
                headers = self._headers()
                if method == "PATCH":
                    headers["Content-Type"] = "application/merge-patch+json"
                async with self._session.request(
                    method, path, data=content, params=params, headers=headers
                ) as answer:
                    self.ahead = self._compared(answer.headers.get("Date", ""))
                    if answer.status >= 400:
                        text, code = await answer.read(), answer.status
                        raise _error(answer, text)
                    found = await read(answer)
                    code = answer.status
                    return found
            except (aiohttp.ClientError, TimeoutError) as error:
                raise Unavailable(0, "NoAnswer", f"{type(error).__name__}: {error}") from error
            except ValueError as error:
                message = f"{verb} {path}: the answer cannot be read: {error}"
                raise Unavailable(answer.status, "Garbled", message) from error
            finally:
                self._told(verb, resource.plural, code, time.monotonic() - begin)

    def _compared(self, date: str) -> float:
        """Seconds by which a server that answers with `date` is ahead of us, as it was without one.

        A few may be its answer's way to us, or ours to look at it.
        """
        try:
            seconds = parsedate_to_datetime(date).timestamp() - time.time()
        except (ValueError, OverflowError):
            return self.ahead
        return seconds if abs(seconds) > CLOCK_SECONDS else 0.0

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        now = time.monotonic()
        if now - self._token_read > TOKEN_SECONDS:
            self._token, self._token_read = self._credentials.current_token(), now
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


async def lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines up to MAX_LINE; StreamReader's own lines end at its buffer's size.

    What comes after the last line's end is no line: a stream that was cut.
    """
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        if len(rest) > MAX_LINE:
            raise Unavailable(0, "Garbled", f"a watch event of more than {MAX_LINE} bytes")
        *whole, tail = rest.split(b"\n")
        for line in whole:
            if line:
                yield bytes(line)
        rest = tail


async def chunks(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield what arrives. After each chunk other tasks have a turn, however fast chunks come."""
    async for chunk in stream.iter_any():
        yield chunk
        await asyncio.sleep(0)


def _metadata(page: Body) -> Body:
    """Metadata of a list's answer. Raises Unavailable for what only looks like one."""
    try:
        metadata: Body = page["metadata"]
        int(metadata["resourceVersion"])
        if not page["items"]:  # those that there were have been taken
            return metadata
    except (KeyError, TypeError, ValueError):
        pass
    raise Unavailable(200, "Garbled", "a list without items or resourceVersion")


def _error(answer: aiohttp.ClientResponse, text: bytes) -> ClusterError:
    """The Status object that the API server sends with every refusal, as an exception."""
    try:
        status = json.loads(text)
        reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = answer.reason or "", text[:200].decode(errors="replace")
    after = answer.headers.get("Retry-After", "")
    number = after.isascii() and after.isdigit()
    # A gateway may ask for an hour; a job has deadlines.
    pause = min(float(after), MAX_RETRY_AFTER) if number else None
    return cluster_error(answer.status, reason, message, pause)
