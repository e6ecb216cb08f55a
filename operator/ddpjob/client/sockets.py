"""WebSockets to a pod, through the API server: for port-forward and exec.

The library's login, certificates and proxy are used, and the WebSocket that it brings.
"""

import http
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ddpjob.client.answers import no_answer, refusal
from ddpjob.client.connection import CONNECT_SECONDS
from ddpjob.client.login import Login

# Each message begins with a byte, the number of its channel.
PROTOCOL = "v4.channel.k8s.io"


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


def open_socket(login: Login, path: str, query: Sequence[tuple[str, str]]) -> Any:
    """Return the WebSocket to a subresource of a pod. Raises ClusterError or LoginFailed."""
    import websocket
    from kubernetes.stream.ws_client import websocket_proxycare

    settings: Any = login.configuration
    socket: Any = websocket.WebSocket(sslopt=_certificates(settings), enable_multithread=True)
    url = f"{login.server.replace('http', 'ws', 1)}{path}?{urlencode(query)}"
    headers = login.headers()
    options: dict[str, Any] = {
        "header": [f"{name}: {text}" for name, text in headers.items()],
        "subprotocols": [PROTOCOL],
        "suppress_origin": True,
        "timeout": CONNECT_SECONDS,
        "redirect_limit": 0,  # the library would send the token along, to any host
    }
    if settings.proxy or settings.proxy_headers:
        proxied: Any = websocket_proxycare
        options = proxied(options, settings, url, headers)
    try:
        socket.connect(url, **options)
    except websocket.WebSocketBadStatusException as error:
        body = error.resp_body or b""
        refused = _Refused(error.status_code, "", error.resp_headers or {}, bytes(body))
        raise refusal(refused, login, path) from None
    except (websocket.WebSocketException, OSError) as error:
        _check_is_open(socket, login, path)
        raise no_answer(error, login) from error
    _check_is_open(socket, login, path)
    return socket


def _check_is_open(socket: Any, login: Login, path: str) -> None:
    """Raise the refusal for an answer that leads elsewhere.

    One version of the library raises an error of its own for it, another one none.
    """
    answer = socket.handshake_response
    if answer is not None and answer.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
        socket.shutdown()
        text = f"{login.server} leads elsewhere ({answer.status}), where no token is sent"
        raise refusal(_Refused(answer.status, "Redirect", {}, text.encode()), login, path)


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
