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
from ddpjob_agent.group import Group, Node, Order, compact, read_node, read_order
from ddpjob_agent.progress import metrics_text

JSON = "application/json"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
# A termination message, and what goes with it.
MEMBER_BYTES = 16 * 1024
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


def serve(
    config: Config,
    page: Callable[[], Mapping[str, Any]],
    stacks: Callable[[], str],
    group: Group | None = None,
    token: str = "",
) -> None:
    """Serve `page` as /progress and /metrics, `stacks` as /stacks, and the group, in threads.

    The group has two pages, for those that have the token: /group for the operator, /member for the
    other nodes. A taken port costs progress, not the training.
    """
    import hmac
    import http.server  # takes 40 ms: after the launcher has started

    pages: dict[str, tuple[str, Callable[[], str]]] = {
        "/progress": (JSON, lambda: json.dumps(page())),
        "/metrics": (PROMETHEUS, lambda: metrics_text(page(), config.job)),
        "/stacks": ("text/plain; charset=utf-8", stacks),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/group" and group is not None:
                if self.is_allowed():
                    news = hold_operator(group, query)
                    self.answer(JSON, compact({**page(), **news, "progress": page()}))
            elif self.path in pages:
                kind, text = pages[self.path]
                self.answer(kind, text().encode("utf-8", "replace"))
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            if self.path != "/member" or group is None:
                return self.send_error(404)
            if not self.is_allowed():
                return None
            length = self.headers.get("Content-Length", "")
            if not (length.isdecimal() and len(length) < 9 and int(length) <= MEMBER_BYTES):
                return self.send_error(413)
            try:
                content = json.loads(self.rfile.read(int(length)))
                rank, node = read_node(content, config)
                known, _ = read_order(content.get("known"))
            except (ValueError, RecursionError):
                return self.send_error(400)
            return self.answer(JSON, compact(hold_member(group, rank, node, known)))

        def is_allowed(self) -> bool:
            given = self.headers.get("Authorization", "").encode("utf-8", "replace")
            if token and hmac.compare_digest(given, f"Bearer {token}".encode()):
                return True
            self.send_error(401)
            return False

        def answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in config.pod_ip else socket.AF_INET
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hangs up is no news

    try:
        server = Server((config.pod_ip, config.agent_port), Handler)
    except OSError as problem:
        return say(f"no /progress on {config.pod_ip}:{config.agent_port}: {problem}")
    threading.Thread(target=server.serve_forever, daemon=True, name="http").start()


def hold_member(group: Group, rank: int, node: Node, known: Order) -> dict[str, Any]:
    """Take in what a node tells, and answer once there is another order than it knows."""
    group.tell(rank, node)
    pause = group.hold_node(known)
    return {**group.order.to_json(), "again": pause}


def hold_operator(group: Group, query: str) -> dict[str, Any]:
    """Take the operator's order, and answer once there is more to tell than it knows.

    `round=R&after=S&hold=T&ends=0|1&heard=C`: the job's round, the serial of the last answer, the
    seconds to wait for another one, whether nodes whose ranks have failed are to end their pods,
    and the last answer's timestamp. An order that was lost is given again with the next request.
    """
    words = dict(pair.partition("=")[::2] for pair in query.split("&"))
    number, after, hold, ends = (
        whole(words.get(n, "")) for n in ("round", "after", "hold", "ends")
    )
    group.hear(seconds(words.get("heard", "")))
    if number is not None:
        group.want(number, bool(ends))
    group.hold_operator(after, hold or 0)
    return group.page()


def whole(text: str) -> int | None:
    """The whole number in a text, None where there is none below 2^31."""
    good = text.isascii() and text.isdigit() and len(text) <= 10
    return int(text) if good and int(text) < 2**31 else None


def seconds(text: str) -> float | None:
    """The seconds in a text, as JSON has them; None where there are none."""
    good = len(text) <= 40 and all(part.isascii() and part.isdigit() for part in text.split(".", 1))
    return float(text) if good else None
