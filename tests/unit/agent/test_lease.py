"""Leases on a played clock: who counts as heard, as of when, and who does not any more."""

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.config import Config
from ddpjob_agent.nodes import lease
from ddpjob_agent.nodes.group import Group
from ddpjob_agent.nodes.lease import (
    DATAGRAM_BYTES,
    MOST_UNHEARD,
    QUICK,
    Beat,
    Head,
    Member,
    clock,
    read_beat,
    write_beat,
)
from ddpjob_agent.server import hold_operator
from tests.unit.agent.samples import config

T = 10.0
STEP = 0.05
PHASES = [0.0, 0.45, 0.95]


class World:
    """Rank 0, other nodes, an operator, and a network of which parts may be cut."""

    def __init__(self, nnodes: int = 2, *, operator: bool = False) -> None:
        self.now = 1000.0
        self.head = Head(T, lambda: self.now)
        self.members = {rank: Member(rank, T) for rank in range(1, nnodes)}
        self.cut: set[tuple[int, int]] = set()
        """(from, to); 0 is rank 0."""
        self.stopped: set[int] = set()
        self.queues: dict[int, list[Beat]] = {rank: [] for rank in range(nnodes)}
        self.operator, self.page = operator, self.head.page()
        self.lost_at: dict[int, float] = {}

    def run(self, duration: float) -> None:
        """Let so much time pass."""
        until = self.now + duration
        while self.now < until:
            self.now += STEP
            self.turn()

    def turn(self) -> None:
        for rank, member in self.members.items():
            if rank in self.stopped or rank in self.lost_at:
                continue
            self.read(rank)
            if member.lease.is_lost(self.now):
                self.lost_at[rank] = self.now
            elif self.now >= member.due:
                self.send(rank, 0, member.beat(self.now))
        if 0 not in self.stopped and 0 not in self.lost_at:
            self.read(0)
            if self.head.lease.is_lost(self.now):
                self.lost_at[0] = self.now
            self.head.look(self.now)
            if self.operator:
                self.head.hear_operator(self.page["stamp"])
                self.page = self.head.page()

    def read(self, rank: int) -> None:
        queue = self.queues[rank]
        while queue:
            beat = queue.pop(0)
            if rank:
                self.members[rank].take(beat, self.now)
            elif (answer := self.head.take(beat, beat.node_rank, self.now)) is not None:
                self.send(0, beat.node_rank, answer)

    def send(self, sender: int, to: int, beat: Beat) -> None:
        if (sender, to) in self.cut:
            return
        self.queues[to].append(beat)
        if to not in self.stopped and to not in self.lost_at:
            self.read(to)

    def cut_off(self, rank: int) -> None:
        """Cut a node off from all others."""
        self.cut |= {(rank, to) for to in self.queues} | {(to, rank) for to in self.queues}

    def unheard(self) -> dict[int, float]:
        return {each["node_rank"]: each["seconds"] for each in self.head.page()["unheard"]}


def settled(nnodes: int = 2, phase: float = 0.0, *, operator: bool = False) -> World:
    """A group in which all have heard each other."""
    world = World(nnodes, operator=operator)
    world.run(2 * T + phase)
    assert world.lost_at == {} and world.head.known == set(world.members)
    return world


# ---- Cuts


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cut", [{(1, 0)}, {(0, 1)}, {(0, 1), (1, 0)}], ids=repr)
def test_both_sides_notice_a_route_that_is_cut_in_either_direction(
    cut: set[tuple[int, int]], phase: float
) -> None:
    world = settled(2, phase)
    begin = world.now
    world.cut = cut
    world.run(T)
    assert world.lost_at.keys() == {0, 1}
    for at in world.lost_at.values():
        assert begin + 0.4 * T < at <= begin + 0.85 * T + STEP
    words = "node rank 0 has not been heard for [89] s"
    assert re.fullmatch(words, world.members[1].lease.words())
    words = "neither another node nor the operator has been heard for [89] s"
    assert re.fullmatch(words, world.head.lease.words())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cut", [{(1, 0)}, {(0, 1), (1, 0)}], ids=repr)
def test_a_node_has_ended_before_rank_0_misses_it_for_all_of_the_timeout(
    cut: set[tuple[int, int]], phase: float
) -> None:
    world = settled(2, phase, operator=True)
    world.cut = cut
    while not world.head.unheard.get(1):
        world.run(STEP)
        assert world.now < 2000
    assert world.now - world.lost_at[1] >= 0.1 * T and 0 not in world.lost_at


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("away", [0, 1, 2])
def test_a_pause_that_is_much_shorter_costs_nothing(phase: float, away: int) -> None:
    for duration in (0.1 * T, 0.3 * T, 0.58 * T):
        world = settled(3, phase)
        world.cut_off(away)
        world.run(duration)
        world.cut.clear()
        world.run(3 * T)
        assert world.lost_at == {} and world.unheard() == {}


def test_rank_0_goes_on_while_another_node_or_the_operator_is_there() -> None:
    world = settled(3)
    world.cut_off(1)
    world.run(5 * T)
    assert world.lost_at.keys() == {1} and world.unheard().keys() == {1}
    world.operator = True
    world.run(STEP)
    world.cut_off(2)
    world.run(5 * T)
    assert world.lost_at.keys() == {1, 2}
    world.operator = False
    begin = world.now
    world.run(0.84 * T)
    assert 0 not in world.lost_at
    world.run(0.05 * T)
    assert 0 in world.lost_at and world.lost_at[0] - begin < 0.9 * T


def test_who_has_never_been_heard_is_not_missed_and_misses_nobody() -> None:
    for cut in ({(0, 1)}, {(1, 0)}, {(0, 1), (1, 0)}):
        world = World()
        world.cut = cut
        world.run(20 * T)
        assert world.lost_at == {} and world.unheard() == {}


def test_rank_0_that_has_heard_the_operator_alone_never_ends() -> None:
    """Where heartbeats are filtered, an operator that is away must not end the training."""
    world = World(operator=True)
    world.cut_off(1)
    world.run(5 * T)
    world.operator = False
    world.run(20 * T)
    assert world.lost_at == {}
    world.cut.clear()
    world.run(20 * T)
    assert world.lost_at == {} and world.head.known == {1}, "it is heard as of now"


# ---- Agents that are stopped


@pytest.mark.parametrize("phase", PHASES)
def test_a_node_that_was_stopped_for_too_long_has_lost_whatever_it_hears(phase: float) -> None:
    world = settled(3, phase)
    world.stopped = {1}
    world.run(1.5 * T)
    assert world.lost_at == {} and world.head.unheard == {1: True}
    world.stopped = set()
    world.turn()
    assert world.lost_at.keys() == {1}
    assert math.isclose(world.members[1].lease.silence, 1.5 * T, rel_tol=0.15)


@pytest.mark.parametrize("phase", PHASES)
def test_rank_0_that_was_stopped_for_too_long_has_lost_whatever_it_hears(phase: float) -> None:
    world = settled(3, phase)
    world.stopped = {0}
    world.run(1.5 * T)
    assert world.lost_at.keys() == {1, 2} and len(world.queues[0]) > 10
    assert world.unheard() == {}, "it did not hear anybody meanwhile: they are not to blame"
    world.head.hear_operator(world.now)
    assert world.head.lease.is_lost(world.now)
    world.stopped = set()
    world.operator = True
    world.run(T)
    assert 0 in world.lost_at
    assert world.head.take(Beat(1, 5.0), 1, world.now) is None, "and it answers nobody"


def test_rank_0_does_not_outlast_a_node_by_a_heartbeat_that_was_read_late() -> None:
    """Stopped, it reads an old heartbeat as if it were new; the node knows how old it is."""
    world = settled()
    world.stopped = {0}
    world.run(0.5 * T)
    world.stopped = set()
    before = world.head.lease.at
    world.run(STEP)  # it answers, and is told so
    assert world.members[1].echo is not None
    assert world.head.lease.at <= world.members[1].lease.at + QUICK * T
    assert world.head.lease.at >= before


# ---- Whom they believe


def test_an_answer_counts_as_of_the_timestamp_that_it_has_sent_back() -> None:
    member = Member(1, T)
    beats = [member.beat(now) for now in (100.0, 101.0, 102.0)]
    assert [beat.echo for beat in beats] == [None] * 3 and not member.lease.runs
    member.take(Beat(0, 7.0, 101.0), 105.0)
    assert (member.lease.at, member.page(105.0)) == (101.0, {"unheard_seconds": 4.0})
    member.take(Beat(0, 7.5, 100.0), 105.5)  # it has come late
    assert member.lease.at == 101.0
    assert not member.lease.is_lost(109.49) and member.lease.is_lost(109.5)


@pytest.mark.parametrize("echo", [None, 99.0, 100.5, 102.0, 0.0, 1e11], ids=repr)
def test_a_timestamp_that_was_not_sent_says_nothing(echo: float | None) -> None:
    member = Member(1, T)
    member.beat(100.0)
    member.take(Beat(0, 7.0, echo), 101.0)
    assert not member.lease.runs and member.echo is None
    member.take(Beat(0, 7.0, 100.0), 101.0)
    member.take(Beat(0, 8.0, echo), 101.5)
    assert member.lease.at == 100.0
    assert member.echo == 7.0


def test_a_node_hears_rank_0_alone_and_rank_0_no_other_rank_0() -> None:
    """Its own heartbeat, sent back to it, is none."""
    member = Member(1, T)
    member.beat(100.0)
    assert not member.take(Beat(1, 100.0, 100.0), 100.0)
    assert not member.take(Beat(2, 100.0, 100.0, bye=True), 100.0)
    assert not member.lease.runs and not member.has_left
    head = Head(T, lambda: 101.0)
    assert head.take(Beat(0, 5.0), "a", 100.0) is None
    assert head.take(Beat(0, 5.0, bye=True), "a", 100.0) is None
    assert not head.members and not head.left


def test_what_came_back_slowly_is_not_sent_on() -> None:
    member = Member(1, T)
    member.beat(100.0)
    member.take(Beat(0, 7.0, 100.0), 100.0 + QUICK * T)
    assert member.echo == 7.0
    member.beat(102.0)
    member.take(Beat(0, 9.0, 102.0), 102.1 + QUICK * T)
    assert member.lease.at == 102.0
    assert member.echo == 7.0


@pytest.mark.parametrize("echo", [100.1, 102.0, 1e11], ids=repr)
def test_rank_0_ignores_what_it_has_not_sent(echo: float) -> None:
    head = Head(T, lambda: 101.0)
    assert head.take(Beat(1, 5.0, echo), "a", 99.0) == Beat(0, 99.0, 5.0)
    assert not head.lease.runs
    head.take(Beat(1, 6.0), "a", 100.0)
    head.take(Beat(1, 7.0, echo), "a", 101.0)
    assert not head.lease.runs and head.known == set()
    head.take(Beat(1, 8.0, 101.0), "a", 101.5)
    assert head.lease.runs and head.lease.at == 101.0


# ---- Bye


def leave(world: World, rank: int) -> None:
    """A node says bye, is answered, and is not there any more."""
    world.send(rank, 0, world.members[rank].beat(world.now, bye=True))
    assert world.members[rank].has_left
    world.cut_off(rank)


def test_who_has_said_bye_is_not_missed() -> None:
    world = settled(3)
    for rank in (1, 2):
        leave(world, rank)
        world.run(20 * T)
        assert world.lost_at == {} and world.unheard() == {}


def test_a_heartbeat_that_comes_after_the_bye_is_late() -> None:
    world = settled()
    late = world.members[1].beat(world.now)
    leave(world, 1)
    assert world.head.take(late, 1, world.now) is None
    world.run(5 * T)
    assert world.lost_at == {} and world.unheard() == {}
    again = world.head.take(Beat(1, 9.0, None, bye=True), 1, world.now)
    assert again is not None and again.bye, "its answer was lost"


def test_where_rank_0_has_said_bye_the_others_go_on_and_are_silent() -> None:
    world = settled(3)
    member = world.members[1]
    assert member.take(Beat(0, world.now, None, bye=True), world.now)
    assert member.take(Beat(0, world.now, None, bye=True), world.now), "its answer was lost"
    assert member.page(world.now) == {}
    member.take(Beat(0, world.now, member.sent[-1]), world.now)
    assert not member.lease.runs
    member.beat(world.now, bye=True)
    world.stopped = {0}
    world.run(20 * T)
    assert world.lost_at.keys() == {2} and member.due == math.inf


# ---- What the operator is told


def test_news_are_who_joins_and_leaves_the_list_and_who_passes_the_timeout() -> None:
    world = settled(3, operator=True)
    world.head.take_news()
    world.cut_off(1)
    world.run(0.5 * T)
    assert world.unheard().keys() == {1} and world.head.take_news()
    world.cut.clear()
    world.run(0.2 * T)  # until it has sent back what it hears again
    assert world.unheard() == {} and world.head.take_news()
    world.run(T)
    world.cut_off(1)
    news: list[tuple[float, int]] = []
    begin = world.now
    while world.now < begin + 2 * T:
        world.run(STEP)
        if world.head.take_news():
            news.append((world.now - begin, len(world.unheard())))
    assert [number for _, number in news] == [1, 1]
    assert 0.2 * T < news[0][0] <= 0.45 * T and 0.8 * T < news[1][0] <= 1.05 * T


def test_an_operator_whose_requests_are_held_keeps_rank_0() -> None:
    """They end in time for the next one, and no more often than that needs."""
    world = settled()
    world.head.take_news()
    world.cut_off(1)
    answers, begin = 0, world.now
    while world.now < begin + 20 * T:
        world.run(STEP)
        if world.head.take_news():
            world.head.hear_operator(world.head.page()["stamp"])
            answers += 1
    assert 0 not in world.lost_at and answers < 45
    world.run(T)
    assert 0 in world.lost_at


@pytest.mark.parametrize("phase", PHASES)
def test_a_node_that_does_not_hear_rank_0_is_named_although_its_heartbeats_come(
    phase: float,
) -> None:
    """It ends its ranks, and then the operator must not wait for as long again."""
    world = settled(3, phase, operator=True)
    begin = world.now
    world.cut = {(0, 1)}
    world.run(0.65 * T)
    assert world.unheard().keys() == {1} and world.lost_at == {}
    world.run(0.5 * T)
    assert world.lost_at.keys() == {1}
    assert world.unheard()[1] >= T and world.lost_at[1] <= begin + 0.85 * T + STEP
    # The operator decides by this age: the node's lease has ended before it is the timeout.
    assert world.now - world.unheard()[1] + T >= world.lost_at[1] + 0.04 * T


def test_of_many_those_are_told_that_were_not_heard_for_longest() -> None:
    head = Head(T, lambda: 200.0)
    for rank in range(1, 101):
        head.take(Beat(rank, 5.0), rank, 100.0 + rank / 100)
    head.look(110.0)
    told = head.page()["unheard"]
    assert [each["node_rank"] for each in told] == list(range(1, MOST_UNHEARD + 1))
    assert told[0] == {"node_rank": 1, "seconds": 9.99}
    assert head.page()["stamp"] == 200.0


@pytest.mark.parametrize(
    ("query", "at"),
    [
        ("round=0&heard=199.5", 199.5),
        ("heard=200.0000000001", -math.inf),
        *((f"heard={wrong}", -math.inf) for wrong in ("", "-1", "nan", "1.2.3", "\u0661")),
        ("heard=" + "9" * 500, -math.inf),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_operator_is_heard_by_the_timestamp_of_a_page(query: str, at: float) -> None:
    group = Group(2, lambda: None)
    assert "stamp" not in hold_operator(group, query), "without heartbeats it is not needed"
    group.head = Head(T, lambda: 200.0)
    assert hold_operator(group, query)["stamp"] == 200.0
    assert group.head.lease.at == at


def test_the_clock_goes_on_while_the_machine_is_suspended() -> None:
    assert getattr(time, "CLOCK_BOOTTIME", lease.CLOCK) == lease.CLOCK
    before = clock()
    assert clock() > before


# ---- Datagrams

SECRET = "t0ken"


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Config]:
    yield config(tmp_path, DDPJOB_NNODES="3", DDPJOB_ATTEMPT="4")


GOOD: dict[str, Any] = {
    "token": SECRET,
    "attempt": 4,
    "node_rank": 2,
    "stamp": 5.5,
    "echo": None,
    "bye": False,
}


def with_each(name: str, *values: Any) -> list[bytes]:
    return [json.dumps({**GOOD, name: value}).encode() for value in values]


def test_a_heartbeat_reads_as_it_was_written(ours: Config) -> None:
    for beat in (Beat(2, 5.5), Beat(0, 1e9 / 3, 0.0, bye=True), Beat(1, 0.0, clock())):
        content = write_beat(beat, SECRET, 4)
        assert read_beat(content, SECRET, ours) == beat
    content = json.dumps({**GOOD, "stamp": 6, "more": [1]}).encode()
    assert read_beat(content, SECRET, ours) == Beat(2, 6.0), "a later agent may add to it"
    longest = write_beat(Beat(2**31 - 1, 1e11 / 3, 1e11 / 7, bye=True), "x" * 256, 2**31 - 1)
    assert len(longest) <= DATAGRAM_BYTES


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"\xff" * 100, b"[" * 512, json.dumps([GOOD]).encode()),
        json.dumps(GOOD).encode().ljust(DATAGRAM_BYTES + 1),
        *with_each("token", "", "t0keN", None, "\ud800"),
        *with_each("attempt", 3, "4", None),
        *with_each("node_rank", -1, 3, "1", 10**30),
        *with_each("stamp", None, "5", True, -0.1, float("nan"), 10**400),
        *with_each("echo", "5", -0.1, float("-inf"), []),
        *with_each("bye", None, 1),
    ],
    ids=lambda content: repr(content)[:60],
)
def test_what_is_no_heartbeat_of_this_attempt_is_ignored(content: bytes, ours: Config) -> None:
    assert read_beat(content, SECRET, ours) is None


def test_without_a_token_nothing_is_a_heartbeat(ours: Config) -> None:
    content = json.dumps({**GOOD, "token": ""}).encode()
    assert read_beat(content, "", ours) is None
