"""One HTTP request to a port of a pod, through the API server: what `kubectl port-forward` does."""

import http
import http.client
import weakref
from typing import Any

from ddpjob.client.answers import no_answer, refusal
from ddpjob.client.connection import Connection
from ddpjob.client.login import Login
from ddpjob.cluster import PODS
from ddpjob.errors import Unavailable

# Without a byte. An agent takes 4 s for the stacks of a process that does not answer.
SECONDS = 15.0
MAX_BYTES = 2**20


def fetch(
    connection: Connection, namespace: str, pod: str, port: int, path: str
) -> tuple[bytes, str]:
    """Return what a GET of `path` finds at this port of a pod, and its `Date`. It may be anything.

    At most MAX_BYTES are read. Raises Forbidden without the right to `pods/portforward`, NotFound,
    Unavailable or LoginFailed.
    """
    tunnel = _open(connection.login, PODS.path(namespace, pod, "portforward"), port)
    request = http.client.HTTPConnection("localhost", port)
    request.sock = tunnel.socket(port)
    request.sock.settimeout(SECONDS)
    try:
        request.request("GET", path)
        answer = request.getresponse()
        if answer.status != http.HTTPStatus.OK:
            text = f"its agent has no {path} (HTTP {answer.status})"
            raise Unavailable(answer.status, "NoPage", text)
        return answer.read(MAX_BYTES), answer.headers.get("Date", "")
    except (OSError, ValueError, http.client.HTTPException) as error:
        words = tunnel.error(port) or str(error) or type(error).__name__
        raise Unavailable(0, "NoAnswer", f"{pod}: {words.strip()}") from None
    finally:
        tunnel.close()


def _open(login: Login, path: str, port: int) -> Any:
    """Return the library's tunnel to a port, which has a thread of its own."""
    import websocket  # kubernetes brings it
    from kubernetes.stream import ws_client

    library: Any = ws_client
    url = f"{login.server.replace('http', 'ws', 1)}{path}?ports={port}"
    # Not `stream.portforward`, whose errors do not say which status the server has answered.
    try:
        opened = library.create_websocket(login.configuration, url, login.headers())
    except websocket.WebSocketBadStatusException as error:
        raise refusal(error.status_code, error.resp_body or b"", login, path) from None
    except (websocket.WebSocketException, OSError) as error:
        raise no_answer(error, login) from error
    tunnel = library.PortForward(opened, [port])
    # If the pod ends first, the library's thread ends, and leaves the connection open.
    weakref.finalize(tunnel, opened.shutdown).atexit = False
    return tunnel
