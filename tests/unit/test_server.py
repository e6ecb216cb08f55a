"""The operator's port, at which anybody in the pod network may knock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import pytest

from ddpjob import server
from ddpjob.server import MAX_HEAD, MOST_CONNECTIONS, TEXT, Door
from tests.cluster.processes import free_ports

LARGE = b"x" * 10_000_000  # more than any socket holds


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    """The port of a door with two pages."""
    door = Door(
        {
            "/healthz": lambda: (HTTPStatus.OK, TEXT, b"leading\n"),
            "/metrics": lambda: (HTTPStatus.OK, TEXT, LARGE),
        }
    )
    (port,) = free_ports(1)
    async with await asyncio.start_server(door.answer, "127.0.0.1", port, limit=MAX_HEAD):
        yield port
        door.close()
        await asyncio.sleep(0.1)


async def sent(port: int, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    return reader, writer


async def answer(port: int, request: bytes = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n") -> bytes:
    reader, writer = await sent(port, request)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /healthz HTTP/1.1", b"200 OK"),
        (b"GET /elsewhere HTTP/1.1", b"404 Not Found"),
        (b"POST /healthz HTTP/1.1", b"405 Method Not Allowed"),
        (b"\xff", b"405 Method Not Allowed"),
        (b"", b"405 Method Not Allowed"),
    ],
)
async def test_a_request_is_answered(request_line: bytes, status: bytes) -> None:
    async with serving() as port:
        text = await answer(port, request_line + b"\r\n\r\n")
    head, _, body = text.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")


@pytest.mark.parametrize(
    "head", [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"]
)
async def test_a_probe_is_answered_beside_any_number_that_is_kept_open(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that send half a head, or do not read, are closed when more come."""
    monkeypatch.setattr(server, "CONNECTION_SECONDS", 1000.0)
    async with serving() as port:
        kept = [await sent(port, head) for _ in range(2 * MOST_CONNECTIONS)]
        assert (await answer(port)).endswith(b"leading\n")
        for reader, _ in kept[:MOST_CONNECTIONS]:
            with suppress(ConnectionError):
                async with asyncio.timeout(60):
                    await reader.read()
        for _, writer in kept:
            writer.transport.abort()


async def test_a_connection_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTION_SECONDS", 0.2)
    async with serving() as port:
        for head in (b"", b"GET /healthz"):
            assert await answer(port, head) == b""
        with suppress(ConnectionError):
            assert len(await answer(port, b"GET /healthz HTTP/1.1\r\n" + b"a" * 3 * MAX_HEAD)) == 0
