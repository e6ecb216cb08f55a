"""A small asynchronous API client for the parts of a cluster that the tests play themselves."""

import asyncio
import socket
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, Self
from weakref import WeakSet

import aiohttp
import orjson
from aiohttp.connector import AddrInfoType

from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import KubeCluster
from tests.cluster.apiserver import ApiError

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
IN_FLIGHT = 64  # requests at once, watches not counted


class Access(Protocol):
    """Where an API server is and how to enter; `ApiServer` is one."""

    @property
    def url(self) -> str: ...
    @property
    def ca_file(self) -> Path: ...
    @property
    def token(self) -> str: ...


@dataclass(frozen=True)
class Kubeconfig:
    """Access as `ApiServer.write_kubeconfig` wrote it, for another process."""

    url: str
    ca_file: Path
    token: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Access from the file; the CA is written beside it."""
        found = orjson.loads(path.read_bytes())
        cluster = found["clusters"][0]["cluster"]
        ca_file = path.with_name(path.name + ".ca")
        ca_file.write_bytes(b64decode(cluster["certificate-authority-data"]))
        return cls(cluster["server"], ca_file, found["users"][0]["user"]["token"])


class Sockets(WeakSet[socket.socket]):
    """Those of a session of aiohttp, to end them while there is a loop.

    What was given up waits for the server's goodbye, maybe for longer.
    """

    def new(self, address: AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        self.add(made)
        return made

    async def end(self) -> None:
        """End those that are left, once their session is closed."""
        for left in self:
            with suppress(OSError):
                left.shutdown(socket.SHUT_RDWR)
        async with asyncio.timeout(200):
            while any(left.fileno() >= 0 for left in self):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def connected(server: Access) -> AsyncIterator[KubeCluster]:
    """The operator's and the runner's connection to a server, by its administrator."""
    cluster = KubeCluster(Credentials(server.url, str(server.ca_file), token=server.token))
    sockets = Sockets()
    cluster._session.connector._socket_factory = sockets.new  # type: ignore[union-attr]
    try:
        yield cluster
    finally:
        await cluster.close()
        await sockets.end()


class Client:
    """Requests of the administrator or of a token's owner. An asynchronous context manager."""

    def __init__(self, server: Access, *, token: str = "") -> None:
        self._url = server.url
        self._headers = {"Authorization": f"Bearer {token or server.token}"}
        self._context = ssl.create_default_context(cafile=server.ca_file)
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def __aenter__(self) -> Self:
        self._sockets = Sockets()
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._context, socket_factory=self._sockets.new
        )
        self._session = aiohttp.ClientSession(
            self._url,
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=60),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._sockets.end()

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        """The decoded answer. Raises ApiError, or aiohttp.ClientError where the server is away."""
        content = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": content_type, "Accept": accept}
        async with (
            self._slots,
            self._session.request(
                method, path, data=None if content is None else BytesIO(content), headers=headers
            ) as answer,
        ):
            text = await answer.read()
        if answer.status >= 400:
            raise ApiError(answer.status, text.decode(errors="replace"))
        found = orjson.loads(text)
        assert isinstance(found, dict)
        return found

    async def follow(self, path: str, query: str = "") -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Objects of a collection as they are and as they change, for ever: (event type, object).

        Goes on through broken watches and restarts of the API server by listing again; then what
        exists comes once more as ADDED, and objects deleted in the gap as DELETED.
        """
        known: dict[str, dict[str, Any]] = {}  # by uid
        while True:
            try:
                listing = await self.request("GET", f"{path}?{query}")
                present = {found["metadata"]["uid"]: found for found in listing["items"]}
                for uid in known.keys() - present.keys():
                    yield "DELETED", known[uid]
                known = present
                for found in list(known.values()):
                    yield "ADDED", found
                version = listing["metadata"]["resourceVersion"]
                async for kind, found in self.watch(path, version, query):
                    if kind == "ERROR":
                        break
                    if kind == "DELETED":
                        known.pop(found["metadata"]["uid"], None)
                    else:
                        known[found["metadata"]["uid"]] = found
                    yield kind, found
            except (aiohttp.ClientError, ApiError, OSError, TimeoutError):
                await asyncio.sleep(0.2)  # the server is away, or history has been compacted

    async def watch(
        self, path: str, version: str, query: str = ""
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Events after a resource version, until the server ends the stream."""
        target = f"{path}?watch=1&resourceVersion={version}&{query}"
        endless = aiohttp.ClientTimeout(total=None, sock_connect=30)
        async with self._session.get(target, timeout=endless) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = orjson.loads(line)
                    yield event["type"], event["object"]
