"""One HTTP request to a port of a pod, through the API server: what `kubectl port-forward` does.

The library's login, certificates and proxy are used, and the WebSocket that it brings. Its own
PortForward is not: it starts a thread for each pod, waits without a limit, and keeps all that the
pod sends. The pod may be anybody's, so bytes and time are bounded here.
"""

import http.client
import io
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddpjob.client.answers import no_answer, refusal
from ddpjob.client.connection import CONNECT_SECONDS, Connection
from ddpjob.client.login import Login
from ddpjob.cluster import PODS
from ddpjob.errors import Unavailable

# A port has one channel for what is sent, and one for what went wrong. Each begins with the port.
DATA, ERROR = 0, 1
PROTOCOL = "v4.channel.k8s.io"
# For a whole answer: an agent takes 4 s for the stacks of a process that does not answer.
SECONDS = 15.0
MAX_BYTES, MAX_ERROR = 2**20, 4096


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
    socket = _open(connection.login, PODS.path(namespace, pod, "portforward"), port)
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
        self._content, self._problem = b"", b""

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
        if b"\r\n\r\n" not in self._content:
            return None
        answer = http.client.HTTPResponse(_Sent(self._content))  # type: ignore[arg-type]
        try:
            answer.begin()
            content = answer.read()
        except http.client.IncompleteRead:
            return None if not is_all else self._nothing()
        except (http.client.HTTPException, ValueError):
            raise self._error("has sent no HTTP") from None
        if answer.length is None and not is_all and "Content-Length" not in answer.headers:
            return None
        return Page(answer.status, answer.headers.get("Date", ""), content)

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


@dataclass(frozen=True)
class _Refused:
    """The HTTP answer to a WebSocket that was not opened."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes

    def read(self, size: int) -> bytes:
        """Return the body, as far as it is read."""
        return self.content[:size]


def _open(login: Login, path: str, port: int) -> Any:
    """Return the WebSocket to a pod's port. Raises ClusterError or LoginFailed."""
    import websocket
    from kubernetes.stream.ws_client import websocket_proxycare

    settings: Any = login.configuration
    url = f"{login.server.replace('http', 'ws', 1)}{path}?ports={port}"
    headers = login.headers()
    options: dict[str, Any] = {
        "header": [f"{name}: {text}" for name, text in headers.items()],
        "subprotocols": [PROTOCOL],
        "suppress_origin": True,
        "sslopt": _certificates(settings),
        "timeout": CONNECT_SECONDS,
    }
    if settings.proxy or settings.proxy_headers:
        proxied: Any = websocket_proxycare
        options = proxied(options, settings, url, headers)
    try:
        return websocket.create_connection(url, **options)
    except websocket.WebSocketBadStatusException as error:
        body = error.resp_body or b""
        refused = _Refused(error.status_code, "", error.resp_headers or {}, bytes(body))
        raise refusal(refused, login, path) from None
    except (websocket.WebSocketException, OSError) as error:
        raise no_answer(error, login) from error


def _certificates(settings: Any) -> dict[str, Any]:
    """Return the TLS options of the login, as the library sets them for its own WebSocket."""
    import certifi

    if not settings.verify_ssl:
        found: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
    else:
        authority = settings.ssl_ca_cert or certifi.where()
        found = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": authority}
        if settings.assert_hostname is not None:
            found["check_hostname"] = settings.assert_hostname
    named = {
        "certfile": settings.cert_file,
        "keyfile": settings.key_file,
        "server_hostname": settings.tls_server_name,
    }
    return found | {name: value for name, value in named.items() if value}
