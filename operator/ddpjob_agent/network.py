"""Beside the launcher: looks for the master's name, and serves /progress, /metrics and /stacks."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from typing import Any, Callable, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config, say
from ddpjob_agent.progress import metrics_text

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
# Each look for the master's name waits so long, the first one too; see MasterWatch.
LOOK_SECONDS = 5.0
# The time between two lines that say what is waited for.
SAY_SECONDS = 15.0
# The longest such time where nothing ends the wait.
SAY_MOST_SECONDS = 1800.0


class MasterWatch(threading.Thread):
    """Looks for the master's name beside the launcher, to say what is missing.

    CoreDNS remembers for 5 to 30 s, for all pods, that a name was asked for before it existed. So
    the launcher, whose imports take seconds, asks first and this thread never does; asking again
    while the absence is remembered neither helps nor prolongs it.
    """

    def __init__(self, host: str, look_seconds: float) -> None:
        super().__init__(daemon=True, name="master-watch")
        self.host, self.look_seconds = host, look_seconds
        self.found = threading.Event()

    def run(self) -> None:
        """Look until the name is found, less and less often. The resolver may block for long."""
        begin = time.monotonic()
        while not self.found.is_set():
            time.sleep(max(self.look_seconds, min(60.0, (time.monotonic() - begin) / 20)))
            with contextlib.suppress(OSError, UnicodeError):
                socket.getaddrinfo(self.host, None)
                self.found.set()


def say_seconds(waited: float, limit: float) -> float:
    """Until it is said again that something is waited for: less and less often without a limit."""
    return SAY_SECONDS if limit < math.inf else max(SAY_SECONDS, min(waited, SAY_MOST_SECONDS))


def serve(config: Config, page: Callable[[], Mapping[str, Any]], stacks: Callable[[], str]) -> None:
    """Serve `page` as /progress and /metrics, and `stacks` as /stacks, in threads.

    A taken port costs progress, not the training.
    """
    import http.server  # takes 40 ms: after the launcher has started

    pages: dict[str, tuple[str, Callable[[], str]]] = {
        "/progress": ("application/json", lambda: json.dumps(page())),
        "/metrics": (PROMETHEUS, lambda: metrics_text(page(), config.job)),
        "/stacks": ("text/plain; charset=utf-8", stacks),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path not in pages:
                return self.send_error(404)
            kind, text = pages[self.path]
            body = text().encode("utf-8", "replace")
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in config.pod_ip else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hangs up is no news

    try:
        server = Server((config.pod_ip, config.agent_port), Handler)
    except OSError as problem:
        return say(f"no /progress on {config.pod_ip}:{config.agent_port}: {problem}")
    threading.Thread(target=server.serve_forever, daemon=True, name="http").start()
