"""The part of a kubelet that port-forward needs: a streaming server behind a real API server.

The API server checks who may forward, and connects to the node's kubelet, which is this. It speaks
the kubelet's WebSocket protocol (k8s.io/kubelet, cri/streaming/portforward), and connects to the
pod's address: a process of the runner listens there.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from aiohttp import WSMsgType, web

from tests.cluster.apiserver import ApiServer

DATA, ERROR = 0, 1


class Kubelet:
    """The kubelet of some nodes, as far as it forwards ports. A context manager.

    `address` gives host and port for the name and the port of a pod; by default the pod's own.
    """

    def __init__(
        self, server: ApiServer, *nodes: str, address: Callable[[str, int], Any] | None = None
    ) -> None:
        self._server, self._nodes, self._address = server, nodes, address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.requests: list[str] = []
        """Names of the pods that were asked for."""

    def __enter__(self) -> Self:
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        for node in self._nodes:
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }
            path = f"/api/v1/nodes/{node}/status"
            self._server.request("PATCH", path, {"status": status}, kind="merge-patch+json")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._loop.close()

    async def _listen(self) -> int:
        app = web.Application()
        app.router.add_get("/portForward/{namespace}/{pod}", self._forward)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        folder = self._server.folder / "pki"
        context.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        pod, port = request.match_info["pod"], int(request.query["port"])
        self.requests.append(pod)
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        for channel in (DATA, ERROR):
            await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection(*await self._place(request, port))
        except OSError as error:
            words = f"error forwarding port {port} to pod {pod}: {error.strerror}"
            await socket.send_bytes(bytes([ERROR]) + words.encode())
            return socket
        both = [
            asyncio.create_task(self._send(reader, socket)),
            asyncio.create_task(self._take(socket, writer)),
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        writer.close()
        with suppress(ConnectionError):
            await socket.close()
        return socket

    async def _place(self, request: web.Request, port: int) -> tuple[str, int]:
        name = request.match_info["pod"]
        if self._address is not None:
            host, port = self._address(name, port)
            return host, port
        path = f"/api/v1/namespaces/{request.match_info['namespace']}/pods/{name}"
        pod = await asyncio.to_thread(self._server.request, "GET", path)
        return pod["status"]["podIP"], port

    async def _send(self, reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
        while part := await reader.read(32 * 1024):
            await socket.send_bytes(bytes([DATA]) + part)

    async def _take(self, socket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
        async for message in socket:
            if message.type == WSMsgType.BINARY and message.data[:1] == bytes([DATA]):
                writer.write(message.data[1:])
                await writer.drain()
