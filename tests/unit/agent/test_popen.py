"""A launcher's processes, with a fork server that answers as it should not."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ddpjob_agent.requests import receive, send
from ddpjob_agent.warm import popen
from ddpjob_agent.warm.popen import Popen, use_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm starts are Linux' alone")
SCRIPT = "import sys; sys.exit(3)"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The fork server's end of a socket of this process."""
    fresh: dict[str, Any] = {"server": None, "owner": 0, "is_greeted": False, "refusals": set()}
    for name, value in fresh.items():
        monkeypatch.setattr(Popen, name, value)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        use_server(ours)
        yield theirs


def answers(server: socket.socket, *messages: dict[str, Any]) -> threading.Thread:
    """Greet, and answer each request with the next of these; then hang up."""

    def serve() -> None:
        send(server, {"ready": True})
        for message in messages:
            for number in receive(server)[1]:
                os.close(number)
            send(server, message)
        server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def ended(tmp: Any) -> int:
    """The exit code of a script that ends with 3, started as torchrun starts its workers."""
    script = tmp / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-u", str(script)]
    return Popen(args=command, env=dict(os.environ), start_new_session=True).wait(60)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"cold": "it says so"}, "it says so"),
        ({"pid": 1}, "its process went to another parent"),
        ({"pid": os.getpid()}, "its process went to another parent"),
        ({}, "its process went to another parent"),
    ],
)
def test_a_process_that_is_no_child_is_started_cold(
    server: socket.socket,
    tmp_path: Any,
    capfd: pytest.CaptureFixture[str],
    message: dict[str, Any],
    why: str,
) -> None:
    thread = answers(server, message, message)
    assert [ended(tmp_path), ended(tmp_path)] == [3, 3]
    thread.join()
    assert capfd.readouterr().err == f"ddpjob-agent: cold start: {why}\n", "once"


def test_where_nobody_adopts_all_start_cold(
    server: socket.socket,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(popen, "prctl", lambda option, value: False)
    thread = answers(server)
    assert [ended(tmp_path), ended(tmp_path)] == [3, 3]
    thread.join()
    assert "this kernel lets no process adopt others" in capfd.readouterr().err


def test_a_server_that_hangs_up_or_never_answers_is_asked_no_more(
    server: socket.socket, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert Popen.server is not None
    Popen.server.settimeout(0.2)
    assert [ended(tmp_path), ended(tmp_path)] == [3, 3]
    assert Popen.server is None
    assert capfd.readouterr().err.count("has ended, or does not answer") == 1


def test_a_launchers_own_child_does_not_ask(server: socket.socket, tmp_path: Any) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ended(tmp_path) == 3 and Popen.server else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(1)


def test_other_commands_are_not_asked_for(server: socket.socket) -> None:
    for command in (["true"], [sys.executable, "-c", "pass"], [sys.executable, "-I", "x.py"]):
        Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(60)
    pipe = Popen([sys.executable, "-u", "-m", "this"], stdout=subprocess.PIPE)
    assert b"Zen" in pipe.communicate()[0]
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(1)
