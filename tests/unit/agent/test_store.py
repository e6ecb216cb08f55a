"""Node ranks above 0 ask for the group's store once it is there."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from ddpjob_agent import store
from ddpjob_agent.store import wait_for_store, wait_until_open

HOST = "127.0.0.1"


def options(**fields: object) -> SimpleNamespace:
    """Torchrun's, of node rank 1."""
    given = {"nnodes": "2", "node_rank": 1, "rdzv_backend": "static", "master_addr": HOST}
    return SimpleNamespace(**{**given, "master_port": 29500, **fields})


@pytest.fixture
def closed() -> socket.socket:
    """A socket whose port is taken, and refuses until it listens."""
    found = socket.socket()
    found.bind((HOST, 0))
    return found


def test_a_store_that_opens_later_is_asked_at_once(closed: socket.socket) -> None:
    opened: list[float] = []

    def open_it() -> None:
        opened.append(time.monotonic())
        closed.listen()

    with closed:
        timer = threading.Timer(0.2, open_it)
        timer.start()
        wait_for_store(options(master_port=closed.getsockname()[1]))
        asked = time.monotonic()
        timer.join()
    assert opened[0] < asked


def test_who_does_not_come_is_left_to_torchrun(closed: socket.socket) -> None:
    with closed:
        begin = time.monotonic()
        wait_until_open(HOST, closed.getsockname()[1], pause=0.01, seconds=0.2)
    assert time.monotonic() - begin >= 0.2


@pytest.mark.parametrize("host", ["nobody.invalid", "a" * 70 + ".invalid"])
def test_what_is_no_refusal_is_left_to_torchrun(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_seconds: float) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(time, "sleep", sleep)
    wait_until_open(host, 1, pause=0.01)


@pytest.mark.parametrize(
    "given",
    [{"node_rank": 0}, {"rdzv_backend": "c10d"}, {"nnodes": "1:4"}],
    ids=["rank 0", "another rendezvous", "a range of nodes"],
)
def test_only_members_of_a_static_rendezvous_wait(
    given: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> None:
        raise AssertionError("waited")

    monkeypatch.setattr(store, "wait_until_open", wait)
    wait_for_store(options(**given))


@pytest.mark.parametrize(("nodes", "pause"), [(2, 0.01), (5000, 1.0)])
def test_all_nodes_together_ask_so_often_at_most(
    nodes: int, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(store, "wait_until_open", lambda *given: asked.append(given))
    wait_for_store(options(nnodes=str(nodes)))
    assert asked == [(HOST, 29500, pause)]
