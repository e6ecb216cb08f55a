"""WebSockets to a pod, through the API server: for port-forward.

The library's login, certificates and proxy are used, and the WebSocket that it brings.
"""

import http
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

    def read(self) -> bytes:
        """Return the body."""
        return self.content


def open_socket(login: Login, path: str, query: Sequence[tuple[str, str]]) -> Any:
    """Return the WebSocket to a subresource of a pod. Raises ClusterError or LoginFailed."""
    import websocket
    from kubernetes.stream.ws_client import websocket_proxycare

    settings: Any = login.configuration
    # The last two are those of the context already, where no version may set others.
    tls: dict[str, Any] = {
        "context": login.tls,
        "cert_reqs": login.tls.verify_mode,
        "check_hostname": login.tls.check_hostname,
    }
    if settings.tls_server_name:
        tls["server_hostname"] = settings.tls_server_name
    socket: Any = websocket.WebSocket(sslopt=tls, enable_multithread=True)
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
