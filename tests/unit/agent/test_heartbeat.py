"""Heartbeats over sockets: who answers whom, what ends no thread, and how an agent says bye."""

import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.config import Config
from ddpjob_agent.nodes import heartbeat
from ddpjob_agent.nodes.group import Group
from ddpjob_agent.nodes.heartbeat import HeadHeartbeats, MemberHeartbeats
from ddpjob_agent.nodes.lease import Beat, read_beat, write_beat
from tests.cluster.processes import free_ports
from tests.unit.agent.samples import config, until

HOST, SECRET = "127.0.0.1", "t0ken"
# No lease ends in a test that does not mean it to: machines may be slow.
LONG, SHORT = "600", "1"


class Side:
    """The other side of an agent."""

    def __init__(self, ours: Config, port: int = 0) -> None:
        self.config = ours
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((HOST, port))
        self.socket.settimeout(60)
        self.port = self.socket.getsockname()[1]
        self.peer: Any = (HOST, ours.agent_port)

    def send(self, beat: Beat) -> None:
        self.socket.sendto(write_beat(beat, SECRET, 0), self.peer)

    def take(self) -> Beat:
        content, self.peer = self.socket.recvfrom(4096)
        beat = read_beat(content, SECRET, self.config)
        assert beat is not None
        return beat

    def waits(self) -> bool:
        """Whether something has come that is not taken yet."""
        self.socket.setblocking(False)
        try:
            return bool(self.socket.recv(4096, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.socket.settimeout(60)


Made = list[HeadHeartbeats | MemberHeartbeats | Side]


@pytest.fixture
def made() -> Iterator[Made]:
    """At the end the threads end and the sockets are closed."""
    found: Made = []
    yield found
    for each in found:
        if isinstance(each, Side):
            each.socket.close()
            continue
        each.is_over = True
        if each.ident is not None:
            each.join(60)
        if each.socket is not None:
            each.socket.close()


def settings(folder: Path, timeout: str, port: int, rank: int = 0) -> Config:
    changes = {"DDPJOB_NODE_TIMEOUT": timeout, "DDPJOB_NNODES": "4"}
    return config(folder, **changes, DDPJOB_AGENT_PORT=str(port), DDPJOB_NODE_RANK=str(rank))


def head(folder: Path, made: Made) -> tuple[HeadHeartbeats, Side]:
    (port,) = free_ports(1)
    ours = settings(folder, LONG, port)
    beats = HeadHeartbeats(ours, SECRET, Group(4, lambda: None), lambda: None)
    side = Side(ours)
    made += [beats, side]
    beats.begin()
    return beats, side


def member(
    folder: Path, made: Made, timeout: str = LONG, host: str = HOST
) -> tuple[MemberHeartbeats, Side]:
    (port,) = free_ports(1)
    ours = settings(folder, timeout, port, rank=1)
    side = Side(ours, port)
    beats = MemberHeartbeats(ours, SECRET, host, lambda: None)
    beats.again = 0.01
    made += [beats, side]
    beats.begin()
    beats.member.due = -math.inf
    return beats, side


# ---- Rank 0


def test_rank_0_answers_each_heartbeat(tmp_path: Path, made: Made) -> None:
    beats, side = head(tmp_path, made)
    assert beats.group.head is beats.head
    side.send(Beat(1, 5.5))
    first = side.take()
    assert (first.node_rank, first.echo, first.bye) == (0, 5.5, False)
    side.send(Beat(1, 6.5, first.stamp))
    assert side.take().echo == 6.5
    assert beats.lease.at == first.stamp and beats.lease.runs


def test_a_pod_that_leaves_is_answered_and_one_that_moves_has_its_new_rank(
    tmp_path: Path, made: Made
) -> None:
    beats, side = head(tmp_path, made)
    beats.group.want(0, False, {1: "moved!"}, since=1, size=3, is_held=True)
    side.send(Beat(1, 5.5, pod="leaves"))
    assert side.take().echo == 5.5
    side.send(Beat(1, 6.5, pod="leaves", bye=True))
    assert side.take().bye and not beats.head.members, "nobody misses it"
    side.send(Beat(3, 7.5, pod="moved!"))
    assert side.take().echo == 7.5 and beats.head.members.keys() == {1}


HOSTILE = [b"", b"{}", b"[" * 512, b"x" * 60_000, b"\xff" * 512, write_beat(Beat(1, 5.5), "x", 0)]


def test_what_is_no_heartbeat_gets_no_answer_and_stops_nothing(tmp_path: Path, made: Made) -> None:
    beats, side = head(tmp_path, made)
    for content in HOSTILE:
        side.socket.sendto(content, side.peer)
        side.send(Beat(2, 7.25))
        assert side.take() == Beat(0, beats.head.members[2].sent, 7.25)
    assert not side.waits() and beats.head.members.keys() == {2}


def test_a_port_that_is_taken_costs_the_heartbeats_alone(
    tmp_path: Path, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = head(tmp_path, made)
    beats = HeadHeartbeats(first.config, SECRET, Group(4, lambda: None), lambda: None)
    made.append(beats)
    beats.begin()
    assert beats.ident is None and not beats.words() and beats.page() == {}
    assert f"no heartbeats on {HOST}:{first.config.agent_port}: " in capsys.readouterr().err
    beats.leave()


def test_rank_0_says_bye_until_all_have_said_it(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BYE_SECONDS", 60.0)
    beats, side = head(tmp_path, made)
    for rank in (1, 2):
        side.send(Beat(rank, 5.5))
        side.take()
    side.send(Beat(2, 6.5, bye=True))
    assert side.take().bye, "said back"
    leaves = threading.Thread(target=beats.leave)
    leaves.start()
    assert side.take().bye and side.take().bye, "again"
    side.send(Beat(1, 7.5, bye=True))
    until(lambda: not beats.head.members)
    leaves.join(60)
    beats.join(60)
    while side.waits():
        assert side.take().echo is None, "no bye is said back to who has said it back"


# ---- Another node


def test_a_node_looks_for_the_name_until_somebody_answers_there(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, *more: Any) -> Any:
        if host == HOST:  # a thread that another test has left asks too
            return resolve(host, *more)
        asked.append(host)
        if len(asked) == 1:
            raise UnicodeError("label too long")
        if len(asked) < 4:
            raise socket.gaierror(-2, "Name or service not known")
        return resolve("127.0.0.8" if len(asked) == 4 else HOST, *more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    beats, side = member(tmp_path, made, SHORT, host="digits-0-0.digits")
    side.take()
    assert set(asked) == {"digits-0-0.digits"} and len(asked) > 4


def test_a_node_says_bye_until_rank_0_says_it_too(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BYE_SECONDS", 60.0)
    beats, side = member(tmp_path, made)
    side.send(Beat(0, 9.5, side.take().stamp))
    side.take()
    until(lambda: beats.lease.runs)
    leaves = threading.Thread(target=beats.leave)
    leaves.start()
    assert side.take().bye and side.take().bye
    side.send(Beat(0, 10.5, bye=True))
    leaves.join(60)
    beats.join(60)
    while side.waits():
        assert side.take().bye


def test_bye_takes_no_longer_where_nobody_says_it_too(tmp_path: Path, made: Made) -> None:
    alone, side = head(tmp_path, made)
    alone.leave()  # nobody has been heard
    assert not side.waits()
    beats, side = member(tmp_path, made)
    side.send(Beat(0, 9.5, side.take().stamp))
    until(lambda: beats.lease.runs)
    byes = 0
    beats.leave()
    while side.waits():
        byes += side.take().bye
    assert 1 <= byes <= 12
