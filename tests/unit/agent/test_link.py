"""How a node is in touch with rank 0's agent, and when that agent counts as gone."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent import link
from ddpjob_agent.group import CLEAN, FAILED, RUNNING, Node, Order
from ddpjob_agent.link import Link
from tests.unit.agent.samples import config, until

HOST = "127.0.0.1"


class Head:
    """Rank 0's agent as a node sees it; `answer` is what it sends to a request, None: hold it."""

    def __init__(self, answer: Callable[[dict[str, Any]], bytes | None]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.held: list[socket.socket] = []
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            head, body = read_request(connection)
            answer = None
            if body:
                self.heads.append(head.decode())
                self.asked.append(json.loads(body))
                answer = self.answer(self.asked[-1])
            if body and answer is None:
                self.held.append(connection)
                continue
            with suppress(OSError):  # perhaps the node has taken its request back
                connection.sendall(answer or b"")
            connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self.thread.join(60)
        self.listener.close()
        for connection in self.held:
            connection.close()


def read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """Its head and its body; no body where it was taken back."""
    content = b""
    while True:
        head, end, body = content.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.partition(b"Content-Length: ")[2].split()[0]):
            return head, body
        try:
            part = connection.recv(65536)
        except OSError:
            part = b""
        if not part:
            return content, b""
        content += part


def said(order: Order) -> bytes:
    return b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(order.to_json()).encode()


Connect = Callable[..., tuple[Link, Head]]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    made: list[tuple[Link, Head]] = []

    def run(answer: Callable[[dict[str, Any]], bytes | None]) -> tuple[Link, Head]:
        head = Head(answer)
        changes = {"DDPJOB_NNODES": "3", "DDPJOB_NODE_RANK": "2"}
        ours = config(tmp_path, DDPJOB_AGENT_PORT=str(head.port), **changes)
        made.append((Link(ours, "t0ken", HOST, lambda: None), head))
        return made[-1]

    yield run
    for node, head in made:
        vars(node)["ask"] = threading.Event().wait  # it asks nobody any more
        head.close()


def hold(known: Order) -> Callable[[dict[str, Any]], bytes | None]:
    """Tell of an order once, then hold."""
    return lambda asked: None if asked["known"] == known.to_json() else said(known)


def test_a_node_tells_who_it_is_and_what_it_does(connect: Connect) -> None:
    node, head = connect(hold(Order(4, 3)))
    assert not node.is_alive(), "CoreDNS would remember a name that does not exist yet"
    node.tell(2, Node(0, RUNNING))
    until(lambda: head.held)
    assert node.order == Order(4, 3)
    assert head.asked[0] == {
        "attempt": 0,
        "node_rank": 2,
        "round": 0,
        "state": RUNNING,
        "failure": None,
        "known": Order().to_json(),
    }
    assert "POST /member HTTP/1.1\r\n" in head.heads[0]
    assert "\r\nAuthorization: Bearer t0ken" in head.heads[0]


def test_news_take_back_the_request_that_is_held(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "HOLD_SECONDS", 1000.0)
    node, head = connect(hold(Order()))
    node.tell(2, Node(0, RUNNING))
    until(lambda: len(head.held) == 1)
    node.tell(2, Node(0, FAILED, {"exit_code": 1, "message": {"message": "\u4e2d"}}))
    until(lambda: len(head.held) == 2)
    assert [asked["state"] for asked in head.asked] == [RUNNING, FAILED]
    assert head.asked[1]["failure"]["message"] == {"message": "\u4e2d"}


def test_rank_0_is_there_at_every_moment_while_requests_are_taken_back(connect: Connect) -> None:
    """A node that has failed gives up where it is not: each of its news ends a held request."""
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
        b"HTTP/1.0 404 No\r\n\r\n" + json.dumps(Order().to_json()).encode(),
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 3000,
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 9000,
        b"\0" * 100,
    ],
    ids=lambda answer: repr(answer)[:50],
)
def test_who_refuses_or_answers_with_anything_else_counts_as_gone(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.01)
    node, head = connect(lambda asked: answer)
    node.tell(2, Node(0, RUNNING))
    until(lambda: len(head.asked) > 3)  # it goes on asking
    monkeypatch.setattr(link, "GONE_SECONDS", 0.3)
    until(lambda: not node.is_heard())
    assert node.order == Order() and node.is_alive()


def test_who_takes_a_request_and_says_nothing_counts_as_gone_in_the_end(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(link, "HOLD_SECONDS", 0.2)
    monkeypatch.setattr(link, "GONE_SECONDS", 0.4)
    node, head = connect(lambda asked: None)
    node.tell(2, Node(0, RUNNING))
    until(lambda: not node.is_heard())
    assert head.held
