"""Serves /progress, /metrics, /stacks and the group's pages, and takes transformers' reports."""

from __future__ import annotations

import hmac
import http.server
import io
import json
import os
import shutil
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config, say
from ddpjob_agent.environment import CALLBACK_PATH
from ddpjob_agent.nodes.group import DEAD, OTHER_POD, Group
from ddpjob_agent.nodes.link import AGAIN_SECONDS
from ddpjob_agent.nodes.reading import read_node, read_order, read_pods, read_print
from ddpjob_agent.program import PROGRAM_BYTES, keep, path_of
from ddpjob_agent.progress import PROGRESS_BYTES, metrics_text
from ddpjob_agent.records import compact, load

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
# A termination message, and what goes with it.
MEMBER_BYTES = 16 * 1024
# After which a taken port is tried again.
TAKEN_SECONDS = 1.0
# Thousands of nodes may want a program of 4 MiB: more at once would each take longer.
SENDING = threading.BoundedSemaphore(16)


@dataclass(frozen=True)
class Pages:
    """What is served. The group's pages are for those that have its token.

    /group and /head are the operator's, /member the other nodes', /program is both's.
    transformers' callback has a token of its own.
    """

    progress: Callable[[], Mapping[str, Any]]
    stacks: Callable[[], str]
    group: Group | None = None
    token: str = ""
    follow: Callable[[str], bool] | None = None
    """Takes the address of the agent of the pod that has become rank 0's; whether it is taken."""
    hear: Callable[[Any], None] | None = None
    """Takes a report. Raises ValueError."""
    hear_token: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = 5
    config: Config
    pages: Pages
    server: Server

    def setup(self) -> None:
        """Read the request with bounds."""
        super().setup()
        self.request_in = Request(self.connection)
        self.rfile = io.BufferedReader(self.request_in)

    def do_GET(self) -> None:
        """Answer with a page."""
        path, _, query = self.path.partition("?")
        pages = self.pages
        if self.path == "/progress":
            self.answer(JSON, json.dumps(pages.progress()).encode())
        elif self.path == "/metrics":
            text = metrics_text(pages.progress())
            self.answer(PROMETHEUS, text.encode("utf-8", "replace"))
        elif self.path == "/stacks":
            self.answer(TEXT, pages.stacks().encode("utf-8", "replace"))
        elif path == "/head" and pages.follow is not None:
            if not self.is_allowed(pages.token):
                return
            if pages.follow(query):
                self.answer(JSON, b"{}")
            else:
                self.send_error(409)
        elif path == "/program" and pages.group is not None:
            self.give_program(pages.group, read_print(query))
        elif path != "/group" or pages.group is None:
            self.send_error(404)
        elif self.is_allowed(pages.token):
            news = hold_operator(pages.group, query)
            page = pages.progress()
            self.answer(JSON, compact({**page, **news, "progress": page}))

    def do_POST(self) -> None:
        """Take what is posted."""
        pages = self.pages
        if self.path == CALLBACK_PATH and pages.hear is not None:
            self.take_report(pages.hear)
        elif self.path == "/member" and pages.group is not None:
            self.take_member(pages.group)
        elif self.path == "/program" and pages.group is not None and self.config.takes_programs:
            self.take_program(pages.group)
        else:
            self.send_error(404)

    def take_report(self, hear: Callable[[Any], None]) -> None:
        """Take a report of transformers' callback."""
        if not self.is_allowed(self.pages.hear_token):
            return
        content = self.content(PROGRESS_BYTES)
        try:
            if content is not None:
                hear(content)
                self.answer(JSON, b"{}")
        except ValueError:
            self.send_error(400)

    def take_member(self, group: Group) -> None:
        """Take in what a node tells, and answer once there is another order than it knows."""
        content = self.content(MEMBER_BYTES) if self.is_allowed(self.pages.token) else None
        if content is None:
            return
        pod, is_spare = str(content.get("pod", "")), content.get("spare") is True
        if content.get("state") == DEAD:
            group.bury(pod)
            return self.answer(JSON, b"{}")
        try:
            rank, node = (-1, None) if is_spare else read_node(content, self.config)
            known, _ = read_order(content.get("known"))
        except ValueError:
            return self.send_error(400)
        if node is not None:
            group.tell(rank, node, pod)
        is_out = group.is_left_out(rank, pod)
        pause = 0.0 if is_out else group.hold_node(known, spare=pod if is_spare else "")
        if is_out or group.is_left_out(rank, pod):  # meanwhile
            return self.send_error(OTHER_POD)
        found = group.place_of(pod)
        if found is not None and found[0] != rank:  # it may need a moment to leave its round
            pause = max(pause, AGAIN_SECONDS)
        place = {} if found is None else {"place": found}
        self.answer(JSON, compact({**vars(group.order), "again": pause, **place}))

    def take_program(self, group: Group) -> None:
        """Keep what the ranks of a later round run."""
        content = self.body(PROGRAM_BYTES) if self.is_allowed(self.pages.token) else None
        if content is None:
            return
        try:
            keep(self.config.run_dir, content)
        except ValueError:
            return self.send_error(400)
        except OSError:
            return self.send_error(507)
        group.note_program()
        self.answer(JSON, b"{}")

    def give_program(self, group: Group, wanted: str) -> None:
        """Answer with the program of this print, a part at a time: all nodes may ask at once."""
        if not self.is_allowed(self.pages.token):
            return
        group.await_program(wanted)
        path = path_of(self.config.run_dir, wanted)
        if not os.path.exists(path):
            return self.send_error(404)
        if not SENDING.acquire(blocking=False):  # it is asked again a second later
            return self.send_error(503)
        try:
            with open(path, "rb") as file:
                self.send_response(200)
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.end_headers()
                shutil.copyfileobj(file, self.wfile)
        finally:
            SENDING.release()

    def body(self, limit: int) -> bytes | None:
        """What was posted; None where it is too much, as the answer says then."""
        length = self.headers.get("Content-Length", "")
        if not (length.isdecimal() and len(length) < 9 and int(length) <= limit):
            self.send_error(413)
            return None
        self.request_in.left += int(length)
        body = self.rfile.read(int(length))
        if len(body) == int(length):
            return body
        self.send_error(400)
        return None

    def content(self, limit: int) -> dict[str, Any] | None:
        """The JSON object that was posted; None where the answer says what is wrong with it."""
        body = self.body(limit)
        if body is None:
            return None
        try:
            content = load(body)
        except ValueError:
            content = None
        if isinstance(content, dict):
            return content
        self.send_error(400)
        return None

    def is_allowed(self, token: str) -> bool:
        """Whether the request has this token; if not, the answer says so."""
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if token and hmac.compare_digest(given, f"Bearer {token}".encode()):
            self.server.guests.leave(self.connection)
            return True
        self.send_error(401)
        return False

    def answer(self, kind: str, body: bytes) -> None:
        """Answer with a body of this kind."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    """Listens on one address."""

    request_queue_size = 128

    def __init__(self, address: str, port: int, handler: type[Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.guests = Guests()
        super().__init__((address, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, once there is room for it."""
        self.guests.arrive(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self.guests.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up is no news."""


def serve(config: Config, pages: Pages) -> None:
    """Serve `pages` in threads. A taken port costs progress, not the training.

    On a node's own network a pod's port is taken while the one that it replaces ends.
    """

    class OfPod(Handler):
        """Those of this pod."""

    OfPod.config, OfPod.pages = config, pages

    def listen(address: str, server: Server | None) -> None:
        while server is None:
            time.sleep(TAKEN_SECONDS)
            with suppress(OSError):
                server = Server(address, config.agent_port, OfPod)
        server.serve_forever()

    for address in config.addresses:
        server = None
        try:
            server = Server(address, config.agent_port, OfPod)
        except OSError as problem:
            say(f"no /progress on {address}:{config.agent_port} yet: {problem}")
        place = address, server
        threading.Thread(target=listen, args=place, daemon=True, name="http").start()


def hold_operator(group: Group, query: str) -> dict[str, Any]:
    """Take the operator's order, and answer once there is more to tell than it knows.

    `round=R&after=S&hold=T&ends=0|1&heard=C&pods=P&since=F&size=N&held=0|1&program=H`: the job's
    round, the serial of the last answer, the seconds to wait for another one, whether nodes whose
    ranks have failed are to end their pods, the last answer's timestamp, which pods have replaced
    others, the first round of the latest of these, the round's number of nodes, whether no round is
    to begin, and the print of what its ranks run. An order that was lost is given again with the
    next request.
    """
    words = dict(pair.partition("=")[::2] for pair in query.split("&"))
    number, after, hold, ends = (
        whole(words.get(n, "")) for n in ("round", "after", "hold", "ends")
    )
    group.hear(seconds(words.get("heard", "")))
    if number is not None:
        since, size, held = (whole(words.get(n, "")) or 0 for n in ("since", "size", "held"))
        pods = read_pods(words.get("pods", ""))
        program = read_print(words.get("program"))
        group.want(number, bool(ends), pods, since, size, program, is_held=bool(held))
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


# Of a request: its head, and its time. Nobody who has something to ask needs more.
HEAD_BYTES, REQUEST_SECONDS = 8 * 1024, 5.0
# So many are there at a time. The next one waits until the oldest has had a second, which it loses
# then: all members of a large group may come at once, but each sends its request at once too.
MOST_GUESTS, GUEST_SECONDS = 128, 1.0


class Guests:
    """The connections of one server, from their arrival to their end or their token."""

    def __init__(self) -> None:
        self.arrivals: dict[socket.socket, float] = {}  # the oldest first
        self.changed = threading.Condition()

    def arrive(self, guest: socket.socket) -> None:
        """Wait for room, and make it."""
        with self.changed:
            while len(self.arrivals) >= MOST_GUESTS:
                oldest, at = next(iter(self.arrivals.items()))
                seconds = at + GUEST_SECONDS - time.monotonic()
                if seconds > 0:
                    self.changed.wait(seconds)
                else:
                    del self.arrivals[oldest]
                    with suppress(OSError):  # it may just have ended by itself
                        oldest.shutdown(socket.SHUT_RDWR)
            self.arrivals[guest] = time.monotonic()

    def leave(self, guest: socket.socket) -> None:
        """Count a connection no more."""
        with self.changed:
            if self.arrivals.pop(guest, None) is not None:
                self.changed.notify()


class Request(io.RawIOBase):
    """A request as it comes in: so many bytes, all of them within so many seconds."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.left = HEAD_BYTES  # bytes that may still come; whoever wants a body adds it
        self.deadline = time.monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, room: Any) -> int:
        """Read into `room`. Raises TimeoutError where it is too slow, or too long."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0 or self.left <= 0:
            raise TimeoutError
        self.connection.settimeout(seconds)
        count = self.connection.recv_into(room, min(len(room), self.left))
        self.connection.settimeout(REQUEST_SECONDS)  # for the answer
        self.left -= count
        return count
