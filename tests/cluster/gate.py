"""A door before the API server that can be shut: what goes through is then kept, not refused."""

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from tests.cluster.processes import free_ports


class Gate:
    """Forwards a loopback port to the server's. An asynchronous context manager."""

    def __init__(self, url: str) -> None:
        """`url` is where to; the gate's own is `self.url`, on the same loopback address."""
        self._port = urlsplit(url).port
        (self._own,) = free_ports(1)
        self.url = f"https://127.0.0.1:{self._own}"
        self._open = asyncio.Event()
        self._open.set()
        self._visits: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._enter, "127.0.0.1", self._own)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    def shut(self) -> None:
        """From now on nothing arrives on either side, and nothing says so: a lost network."""
        self._open.clear()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        try:
            await self._open.wait()
            source, target = await asyncio.open_connection("127.0.0.1", self._port)
            async with asyncio.TaskGroup() as flows:
                flows.create_task(self._carry(reader, target))
                flows.create_task(self._carry(source, writer))
        except (asyncio.CancelledError, OSError):
            return  # the gate is being taken away, or the server is
        finally:
            writer.close()
            self._visits.discard(visit)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while content := await source.read(65536):
                    await self._open.wait()
                    target.write(content)
                    await target.drain()
        finally:
            target.close()
