"""The operator's HTTP server: /healthz, /readyz and /metrics."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

from ddpjob.controller.controller import Controller

# An event loop that is later than this is stuck.
LAG_SECONDS = 5.0
# Of a connection: its time, the bytes of its request, and how many there are at a time.
CONNECTION_SECONDS, MAX_HEAD, MOST_CONNECTIONS = 5.0, 8 * 1024, 64
OK, UNAVAILABLE = HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE
TEXT, PROMETHEUS = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"

Answer = tuple[HTTPStatus, str, bytes]
"""The status, the type and the body."""


@asynccontextmanager
async def serve(
    host: str | None, port: int, controller: Controller, metrics: Callable[[], bytes]
) -> AsyncIterator[None]:
    """Serve on `host` (None: all addresses) and `port` while the block runs."""
    lag = _Lag()

    def alive() -> bool:
        # Includes the watches: a process that answers but gets no events must be restarted.
        return lag.seconds < LAG_SECONDS and controller.fresh

    def check(holds: Callable[[], bool], what: str) -> Callable[[], Answer]:
        def answer() -> Answer:
            role = "leading\n" if controller.leading else "standing by\n"
            return (OK, TEXT, role.encode()) if holds() else (UNAVAILABLE, TEXT, what.encode())

        return answer

    pages = {
        "/healthz": check(alive, "the watches are silent\n"),
        "/readyz": check(lambda: controller.ready, "the caches are being filled\n"),
        "/metrics": lambda: (OK, PROMETHEUS, metrics()),
    }
    door = Door(pages)
    server = await asyncio.start_server(door.answer, host, port, limit=MAX_HEAD)
    watching = asyncio.create_task(lag.run())
    try:
        yield
    finally:
        watching.cancel()
        server.close()
        door.close()


class Door:
    """Answers one GET on each connection.

    Anybody in the pod network may connect, so a connection has a time limit, and there are few at a
    time: the oldest one ends when one more comes. So a probe, whose request comes at once, is
    answered however many others are kept open. No HTTP server that was found has these limits.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Answer]]) -> None:
        """`pages` has what makes the answer, by its path."""
        self._pages = pages
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.close(MOST_CONNECTIONS - 1)
        self._open[writer] = None
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._page(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)

    def close(self, left: int = 0) -> None:
        """Close the oldest connections, so that not more than `left` are left."""
        while len(self._open) > left:
            self._open.pop(oldest := next(iter(self._open)))
            oldest.transport.abort()

    def _page(self, head: bytes) -> bytes:
        """Return the answer to a request with this head."""
        method, path, *_ = *head.split(b"\r\n", 1)[0].decode("latin-1").split(" "), ""
        make = self._pages.get(path)
        status, kind, body = make() if make else (HTTPStatus.NOT_FOUND, TEXT, b"not found\n")
        if method != "GET":
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"GET only\n"
        lines = (
            f"HTTP/1.1 {status} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode() + body


class _Lag:
    """Measures how late the event loop is."""

    seconds = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(1.0)
            self.seconds = loop.time() - before - 1.0
