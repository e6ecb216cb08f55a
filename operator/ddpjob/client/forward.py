"""One HTTP request to a port of a pod, through the API server: what `kubectl port-forward` does.

The library's own PortForward is not used: it starts a thread for each pod, waits without a limit,
and keeps all that the pod sends. The pod may be anybody's, so bytes and time are bounded here.
"""

import http.client
import io
import time
from dataclasses import dataclass
from typing import Any

from ddpjob.client.connection import Connection
from ddpjob.client.sockets import open_socket
from ddpjob.cluster import PODS
from ddpjob.errors import Unavailable

# A port has one channel for what is sent, and one for what went wrong. Each begins with the port.
DATA, ERROR = 0, 1
# For a whole answer: an agent takes 4 s for the stacks of a process that does not answer.
SECONDS = 15.0
MAX_BYTES, MAX_ERROR = 2**20, 4096
# Where the headers of an answer end.
_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Page:
    """What a pod has answered, which may be anything."""

    status: int
    date: str
    """The pod's own time, as HTTP writes it; empty without one."""
    content: bytes


def fetch(connection: Connection, namespace: str, pod: str, port: int, path: str) -> Page:
    """Return the answer to a GET of `path` at this port of a pod.

    Raises Forbidden without the right to `pods/portforward`, NotFound, Unavailable or LoginFailed.
    """
    deadline = time.monotonic() + SECONDS
    request = f"GET {path} HTTP/1.0\r\nHost: localhost:{port}\r\n\r\n"
    path_of_pod = PODS.path(namespace, pod, "portforward")
    socket = open_socket(connection.login, path_of_pod, [("ports", str(port))])
    try:
        socket.send_binary(bytes([DATA]) + request.encode("ascii"))
        return _Answer(pod).read(socket, deadline)
    finally:
        socket.shutdown()


class _Answer:
    """What comes from a pod, until it is a whole page."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._begun: set[int] = set()
        self._content, self._problem = bytearray(), b""
        self._head: http.client.HTTPResponse | None = None

    def read(self, socket: Any, deadline: float) -> Page:
        """Return the page. Raises Unavailable for what is none, is too large or takes too long."""
        import websocket  # kubernetes brings it

        while (page := self._page()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._error(f"has not answered within {SECONDS:g} s")
            socket.settimeout(left)
            try:
                code, message = socket.recv_data()
            except websocket.WebSocketTimeoutException:
                continue
            except (websocket.WebSocketException, OSError):
                code, message = websocket.ABNF.OPCODE_CLOSE, b""
            if code == websocket.ABNF.OPCODE_CLOSE:
                return self._page(is_all=True) or self._nothing()
            self._take(message)
        return page

    def _take(self, message: bytes) -> None:
        channel, rest = (message[0], message[1:]) if message else (-1, b"")
        if channel not in self._begun:
            self._begun.add(channel)  # the first message of a channel is the port
        elif channel == DATA:
            self._content += rest
            if len(self._content) > MAX_BYTES:
                raise self._error(f"has sent more than {MAX_BYTES} bytes")
        elif channel == ERROR:
            self._problem = (self._problem + rest)[:MAX_ERROR]
            if not self._content:
                self._nothing()

    def _page(self, *, is_all: bool = False) -> Page | None:
        """Return the page, or None if more of it is to come."""
        start = self._content.find(_END) + len(_END)
        if start < len(_END):
            return None
        head = self._head = self._head or self._read_head(bytes(self._content[:start]))
        length, come = head.length, len(self._content) - start
        if length is None:  # it ends with the connection
            length = come if is_all else come + 1
        if come < length:
            return None if not is_all else self._nothing()
        content = bytes(self._content[start : start + length])
        return Page(head.status, str(head.headers.get("Date", "")), content)

    def _read_head(self, head: bytes) -> http.client.HTTPResponse:
        """Return status and headers. A pod may write any number there, so none is used unseen."""
        answer = http.client.HTTPResponse(_Sent(head))  # type: ignore[arg-type]
        try:
            answer.begin()
        except (http.client.HTTPException, ValueError, OverflowError):
            raise self._error("has sent no HTTP") from None
        if answer.chunked:  # HTTP/1.0 was asked for, which has no chunks
            raise self._error("has sent chunks, for which it was not asked")
        if answer.length is not None and answer.length > MAX_BYTES:
            raise self._error(f"wants to send more than {MAX_BYTES} bytes")
        return answer

    def _nothing(self) -> Page:
        words = self._problem.decode(errors="replace").strip()
        raise self._error(words or "has closed the connection")

    def _error(self, words: str) -> Unavailable:
        return Unavailable(0, "NoAnswer", f"{self._pod}: {words}")


class _Sent(io.BytesIO):
    """Bytes that have come, as the socket that HTTPResponse reads."""

    def makefile(self, mode: str) -> io.BytesIO:
        """Return the bytes as a file."""
        return io.BytesIO(self.getvalue())
