"""Answers over HTTP in the place of another process."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from tests.cluster.processes import free_ports

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(*hosts: str, **handlers: Handler) -> AsyncIterator[int]:
    """The port on which these hosts, else 127.0.0.1, answer; `progress` is the path /progress."""
    app = web.Application()
    for name, handler in handlers.items():
        app.router.add_get(f"/{name}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = free_ports(1)
    try:
        for host in hosts or ("127.0.0.1",):
            await web.TCPSite(runner, host, port).start()
        yield port
    finally:
        await runner.cleanup()
