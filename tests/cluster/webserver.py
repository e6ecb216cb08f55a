"""Answers over HTTP in the place of another process."""

import asyncio
import socket
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
        app.router.add_route("*", f"/{name}", handler)
    async with serving(app, *hosts) as port:
        yield port


@asynccontextmanager
async def serving(app: web.Application, *hosts: str) -> AsyncIterator[int]:
    """The port on which it answers; it ends a request whose client has gone."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = free_ports(1)
    sockets = [socket.create_server((host, port)) for host in hosts or ("127.0.0.1",)]
    try:
        for listener in sockets:
            await web.SockSite(runner, listener).start()
        yield port
    finally:
        for listener in sockets:  # an asyncio.Server that is closed leaks what it has just accepted
            asyncio.get_running_loop().remove_reader(listener)
        for _ in range(3):
            await asyncio.sleep(0)
        await runner.cleanup()
