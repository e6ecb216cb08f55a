"""How a node is in touch with rank 0's agent, and when that agent counts as gone."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.nodes import link
from ddpjob_agent.nodes.group import CLEAN, RUNNING, Node, Order
from ddpjob_agent.nodes.link import Link
from tests.unit.agent.samples import config, until

HOST = "127.0.0.1"


class Head(ThreadingHTTPServer):
    """Rank 0's agent as a node sees it; `answer` is what it sends to a request, None: hold it."""

    def __init__(self, answer: Callable[[dict[str, Any]], bytes | None]) -> None:
        super().__init__((HOST, 0), Request)
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.held: list[Request] = []
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A node may take its request back."""

    def close(self) -> None:
        self.shutdown()
        self.is_over.set()
        self.server_close()


class Request(BaseHTTPRequestHandler):
    server: Head

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.tokens.append(f"{self.path} {self.headers['Authorization']}")
        self.server.asked.append(asked)
        answer = self.server.answer(asked)
        if answer is None:
            self.server.held.append(self)
            self.server.is_over.wait()
        else:
            self.wfile.write(answer)


def said(order: Order) -> bytes:
    return b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(vars(order)).encode()


Connect = Callable[..., tuple[Link, Head]]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    made: list[tuple[Link, Head]] = []

    def run(answer: Callable[[dict[str, Any]], bytes | None]) -> tuple[Link, Head]:
        head = Head(answer)
        changes = {"DDPJOB_NNODES": "3", "DDPJOB_NODE_RANK": "2"}
        ours = config(tmp_path, DDPJOB_AGENT_PORT=str(head.server_port), **changes)
        made.append((Link(ours, "t0ken", HOST, lambda: None), head))
        return made[-1]

    yield run
    for node, head in made:
        vars(node)["ask"] = threading.Event().wait  # it asks nobody any more
        head.close()


def hold(known: Order) -> Callable[[dict[str, Any]], bytes | None]:
    """Tell of an order once, then hold."""
    return lambda asked: None if asked["known"] == vars(known) else said(known)


def test_a_node_tells_who_it_is_and_what_it_does(connect: Connect) -> None:
    node, head = connect(hold(Order(4, 3)))
    assert not node.is_alive(), "CoreDNS would remember a name that does not exist yet"
    node.tell(2, Node(0, RUNNING))
    until(lambda: head.held)
    assert node.order == Order(4, 3)
    assert head.asked[0] == {
        "attempt": 0,
        "node_rank": 2,
        "pod": node.pod,
        "round": 0,
        "state": RUNNING,
        "failure": None,
        "known": vars(Order()),
    }
    assert head.tokens[0] == "/member Bearer t0ken"


def test_rank_0_is_there_at_every_moment_while_requests_are_taken_back(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has failed gives up where it is not: each of its news ends a held request."""
    monkeypatch.setattr(link, "HOLD_SECONDS", 1000.0)
    node, head = connect(hold(Order()))
    node.tell(2, Node(0, RUNNING))
    until(lambda: head.held)
    node.heard_at = -1000.0  # the last answer came long ago, as answers do
    assert node.is_heard()
    for number in range(1, 200):
        node.tell(2, Node(number, CLEAN))
        assert node.is_heard()
    until(lambda: head.asked[-1]["round"] == 199)


def test_rank_0_is_gone_some_time_after_its_connection_is(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, head = connect(hold(Order()))
    node.tell(2, Node(0, RUNNING))
    until(lambda: head.held)
    node.heard_at = -1000.0
    head.close()
    until(lambda: node.connection is None)
    assert node.is_heard(), "a connection may be lost"
    monkeypatch.setattr(link, "GONE_SECONDS", 0.3)
    until(lambda: not node.is_heard())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 401 No\r\n\r\n",
        b"HTTP/1.0 404 No\r\n\r\n" + json.dumps(vars(Order())).encode(),
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 3000,
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 9000,
        b"\0" * 100,
        None,  # it takes the request, and says nothing
    ],
    ids=lambda answer: repr(answer)[:50],
)
def test_who_refuses_or_answers_with_anything_else_or_never_counts_as_gone(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(link, "HOLD_SECONDS", 0.2)
    monkeypatch.setattr(link, "GONE_SECONDS", 0.3)
    node, head = connect(lambda asked: answer)
    node.tell(2, Node(0, RUNNING))
    until(lambda: len(head.asked) > 3)  # it goes on asking
    until(lambda: not node.is_heard())
    assert node.order == Order() and node.is_alive()
