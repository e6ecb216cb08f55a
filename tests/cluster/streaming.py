"""The part of a kubelet that streams need: port-forward and logs, behind a real API server.

The API server checks who may do it, and connects to the node's kubelet, which is this. It speaks
the kubelet's WebSocket protocol (k8s.io/kubelet, cri/streaming/portforward), and connects to the
pod's address: a process of the runner listens there. A log is the file that the runner writes.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from aiohttp import WSMsgType, web

from tests.cluster.apiserver import ApiError, ApiServer

DATA, ERROR = 0, 1


class Kubelet:
    """The kubelet of some nodes, as far as it forwards ports. A context manager.

    `address` gives host and port for the name and the port of a pod; by default the pod's own.
    `log` gives the file with the log of a pod, by its namespace and name.
    """

    def __init__(
        self,
        server: ApiServer,
        *nodes: str,
        address: Callable[[str, int], Any] | None = None,
        log: Callable[[str, str], Path] = lambda namespace, pod: Path("/nonexistent"),
    ) -> None:
        self._server, self._nodes, self._address, self._log = server, nodes, address, log
        self._began = datetime.now(UTC)
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

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=200)
        self._loop.close()

    async def _end(self) -> None:
        """End all streams, and let their transports close before the loop does."""
        await self._runner.cleanup()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.1)

    async def _listen(self) -> int:
        app = web.Application()
        app.router.add_get("/portForward/{namespace}/{pod}", self._forward)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
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
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:  # it may be this kubelet that ends
            for task in both:
                task.cancel()
            writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        with suppress(ConnectionError):
            await socket.close()
        return socket

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        """Send the lines, each with a time that is always the same one, and perhaps more later."""
        namespace, pod = request.match_info["namespace"], request.match_info["pod"]
        path, since = self._log(namespace, pod), request.query.get("sinceTime", "")
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        sent = 0
        while True:
            ended = await asyncio.to_thread(self._has_ended, namespace, pod)
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            lines = lines if ended or not lines or lines[-1].endswith(b"\n") else lines[:-1]
            for number in range(sent, len(lines)):
                time = self._began + timedelta(milliseconds=number)
                stamp = f"{time:%Y-%m-%dT%H:%M:%S.%f}000Z"
                if stamp >= since:
                    await answer.write(stamp.encode() + b" " + lines[number])
            sent = len(lines)
            if ended or request.query.get("follow") != "true":
                return answer
            await asyncio.sleep(0.1)

    def _has_ended(self, namespace: str, pod: str) -> bool:
        try:
            found = self._server.request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}")
        except ApiError:
            return True
        return found["status"]["phase"] in ("Succeeded", "Failed")

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
