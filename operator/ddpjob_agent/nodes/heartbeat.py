"""Sends heartbeats between rank 0's agent and the others', by UDP, and ends the ranks they fence.

UDP: 5,000 nodes cost rank 0's agent a few per cent of a core, and requests that are held say
nothing while they are held.
"""

from __future__ import annotations

import abc
import contextlib
import math
import select
import socket
import threading
import time
from dataclasses import replace
from typing import Any, Callable  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config, say
from ddpjob_agent.nodes.group import Group, print_of
from ddpjob_agent.nodes.lease import (
    AGAIN,
    BEAT,
    DATAGRAM_BYTES,
    Beat,
    Head,
    Lease,
    Member,
    clock,
    read_beat,
    write_beat,
)

# Who ends says bye for so long at most, and again after so long.
BYE_SECONDS, BYE_AGAIN_SECONDS = 1.0, 0.1
# Between two looks around.
MOST_SECONDS = 1.0
# So many datagrams are read before the leases are looked at again.
MOST_READ = 256


class Heartbeats(threading.Thread, abc.ABC):
    """The heartbeats of one agent."""

    def __init__(
        self, config: Config, token: str, lease: Lease, on_lost: Callable[[], None]
    ) -> None:
        """`on_lost` is called once, when the other side has not been heard for too long."""
        super().__init__(daemon=True, name="heartbeats")
        self.config, self.token, self.lease, self.on_lost = config, token, lease, on_lost
        self.socket: socket.socket | None = None
        self.again = min(MOST_SECONDS, config.node_timeout * AGAIN)
        self.said_bye = threading.Event()  # all others have
        self.is_over = False

    def begin(self) -> None:
        """Begin, once."""
        if self.ident is None and self.prepare():
            self.start()

    def prepare(self) -> bool:
        """Get ready; False where there can be no heartbeats."""
        return True

    def run(self) -> None:
        """Send, and take in what comes, until the lease is lost or the pod ends."""
        while not self.is_over:
            if self.lease.is_lost(clock()):
                return self.on_lost()
            try:
                self.turn()
            except (OSError, UnicodeError):  # such as a network that is down, or no name yet
                time.sleep(self.again)

    def leave(self) -> None:
        """Say bye, so that nobody misses this pod: until all others have said it in turn."""
        until = time.monotonic() + BYE_SECONDS
        while self.say_bye() and time.monotonic() < until:
            self.said_bye.wait(BYE_AGAIN_SECONDS)
        self.is_over = True

    def send(self, beat: Beat, address: Any) -> None:
        """Send a heartbeat; it may get lost in any case."""
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.sendto(write_beat(beat, self.token, self.config.attempt), address)

    def read(self, seconds: float) -> bool:
        """Wait for datagrams, for so long at most, and take them in; whether all have been read."""
        assert self.socket is not None
        files = select.poll()  # select knows no number above 1023
        files.register(self.socket, select.POLLIN)
        if not files.poll(max(seconds, 0.001) * 1000):
            return True
        for _ in range(MOST_READ):
            try:
                content, address = self.socket.recvfrom(DATAGRAM_BYTES + 1)
            except BlockingIOError:
                return True
            beat = read_beat(content, self.token, self.config)
            if beat is not None:
                self.take(beat, address)
        return False

    @abc.abstractmethod
    def turn(self) -> None:
        """Send what is due, and take in what comes within a moment. Raises OSError."""

    @abc.abstractmethod
    def take(self, beat: Beat, address: Any) -> None:
        """Take in a heartbeat."""

    @abc.abstractmethod
    def say_bye(self) -> bool:
        """Say bye once; whether somebody is to say it in turn."""

    def words(self) -> str:
        """Who has not been heard for too long, so that the ranks end; "" while nobody is missed."""
        return self.lease.words()

    def page(self) -> dict[str, Any]:
        """What /progress has of it."""
        return {}


class HeadHeartbeats(Heartbeats):
    """Rank 0's, which answers the others'."""

    def __init__(
        self, config: Config, token: str, group: Group, on_lost: Callable[[], None]
    ) -> None:
        self.group = group
        self.head = group.head = Head(config.node_timeout)
        super().__init__(config, token, self.head.lease, on_lost)
        self.looks_at = -math.inf

    def prepare(self) -> bool:
        """Listen; False where the port is taken: nobody is missed then."""
        address = self.config.pod_ip, self.config.agent_port
        try:
            self.socket = open_socket(family(self.config), address)
        except OSError as problem:
            say(f"no heartbeats on {address[0]}:{address[1]}: {problem}")
        return self.socket is not None

    def turn(self) -> None:
        """Take in what comes, and find out who is not heard."""
        now = clock()
        until = min(self.looks_at, self.head.lease.ends_at())
        # What comes while we wait, or are stopped, is not missed if it is read by the next look.
        is_read = self.read(min(until - now, self.again))
        if is_read and now >= self.looks_at:
            self.looks_at = now + self.again
            self.head.look(now)
        if self.head.take_news():
            self.group.count()

    def take(self, beat: Beat, address: Any) -> None:
        """Take in and answer a heartbeat, of a pod with the rank that it is to have.

        A pod that is being deleted has its grace period, and nobody misses it.
        """
        found = self.group.place_of(beat.pod)
        if found is not None:
            beat = replace(beat, node_rank=found[0])
        elif not self.group.is_member(beat.node_rank, beat.pod):
            return self.send(Beat(0, clock(), beat.stamp, beat.bye), address)
        answer = self.head.take(beat, address, clock())
        if answer is not None:
            self.send(answer, address)
        if self.head.is_leaving and not self.head.members:
            self.said_bye.set()

    def say_bye(self) -> bool:
        """Say bye to all that have been heard and have not said it."""
        with self.head.lock:
            self.head.is_leaving = True
            members = [member for member in self.head.members.values() if member.address]
        for member in members:
            self.send(Beat(0, clock(), bye=True), member.address)
        return bool(members)


class MemberHeartbeats(Heartbeats):
    """Another node's, to rank 0."""

    def __init__(self, config: Config, token: str, host: str, on_lost: Callable[[], None]) -> None:
        self.host, pod = host, print_of(config.pod_uid)
        self.member = Member(config.node_rank, config.node_timeout, pod)
        super().__init__(config, token, self.member.lease, on_lost)
        self.address: Any = None
        self.is_leaving = False
        self.resolves_at = self.answers_at = -math.inf

    def prepare(self) -> bool:
        """Begin in turn."""
        # Nodes that begin together are not to send together.
        share = self.config.node_rank / self.config.nnodes
        self.member.due = clock() + share * BEAT * self.config.node_timeout
        return True

    def turn(self) -> None:
        """Send what is due, and take in what comes."""
        now, member, timeout = clock(), self.member, self.config.node_timeout
        if now >= self.resolves_at and not member.lease.runs and not member.has_left:
            self.resolves_at = now + timeout * BEAT
            self.resolve()
            self.resolves_at = clock() + timeout
        if self.address is None:
            return time.sleep(self.again)
        if now >= member.due and not self.is_leaving:
            self.send(member.beat(now), self.address)
        self.read(min(member.due - now, member.lease.ends_at() - now, self.again))

    def resolve(self) -> None:
        """Find rank 0's address. Raises OSError or UnicodeError."""
        kind, port = socket.SOCK_DGRAM, self.config.agent_port
        found = socket.getaddrinfo(self.host, port, family(self.config), kind)[0]
        if self.socket is None:
            self.socket = open_socket(found[0], (self.config.pod_ip, 0))
        self.address = found[4]

    def take(self, beat: Beat, address: Any) -> None:
        """Take in a heartbeat, and answer a bye."""
        now = clock()
        if not self.member.take(beat, now):
            return
        self.said_bye.set()
        # Whoever has said bye first waits for no further one; and never twice in a moment.
        if not self.is_leaving and now >= self.answers_at:
            self.answers_at = now + BYE_AGAIN_SECONDS / 2
            self.send(self.member.beat(now, bye=True), self.address)

    def say_bye(self) -> bool:
        """Say bye to rank 0; nothing is waited for that has never come."""
        self.is_leaving = True
        if self.address is None or self.member.has_left:
            return False
        self.send(self.member.beat(clock(), bye=True), self.address)
        return self.member.lease.runs

    def page(self) -> dict[str, Any]:
        """How long ago rank 0 has been heard."""
        return self.member.page(clock())


def family(config: Config) -> int:
    """The pod's kind of address, any where it is not known."""
    if not config.pod_ip:
        return socket.AF_UNSPEC
    return socket.AF_INET6 if ":" in config.pod_ip else socket.AF_INET


def open_socket(kind: int, address: tuple[str, int]) -> socket.socket:
    """A socket for datagrams that never blocks. Raises OSError."""
    made = socket.socket(kind or socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made
