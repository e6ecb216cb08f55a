"""Whether nodes hear each other: what a heartbeat carries, and the leases that rest on them.

A side has *heard* the other as of its own timestamp that the other has sent back, never as of the
time of arrival: so both notice a route that is cut in one direction. Who has not been heard for
most of the node timeout ends its ranks, before the operator may start them elsewhere.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import (  # noqa: UP035 - Python 3.8
    Any,
    Callable,
    Collection,
    Iterable,
    Mapping,
)

from ddpjob_agent.config import Config
from ddpjob_agent.records import compact, integer, load, number

# Parts of the node timeout. The operator decides after all of it; until then the ranks are to be
# dead whose lease has ended.
LEASE = 0.85
# Between two heartbeats; until one that is not answered is sent again, and between two looks.
# Rank 0's lease is up to two heartbeats old, so they leave it two thirds of the timeout.
BEAT, AGAIN = 0.1, 0.05
# What came back later than this says little of when the other side was heard.
QUICK = 0.1
# Whom rank 0 has not heard for so long is named to the operator; no more of them than so many.
UNHEARD, MOST_UNHEARD = 0.4, 64
# When rank 0's lease is so old, the operator's request is held no longer: the next one renews it.
OLD = 0.5
DATAGRAM_BYTES = 512
# A member knows so many of its own timestamps again: those of a whole lease.
MOST_SENT = 32
# No machine runs for longer, and no clock is finer.
MOST_SECONDS = 1e12


def _clock_id() -> int:
    """The clock that goes on while the machine is suspended, for it hears nobody meanwhile."""
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.CLOCK_BOOTTIME
    except (AttributeError, OSError):
        return time.CLOCK_MONOTONIC


CLOCK = _clock_id()


def clock() -> float:
    """Seconds since some time."""
    return time.clock_gettime(CLOCK)


@dataclass(frozen=True)
class Beat:
    """A heartbeat."""

    node_rank: int
    """The sender's."""
    stamp: float
    """The sender's clock."""
    echo: float | None = None
    """The last timestamp that has come from the other side."""
    bye: bool = False
    """The sender's pod is about to end, and nobody is to miss it."""
    pod: str = ""
    """The print of the sender's pod; rank 0 needs none."""


def write_beat(beat: Beat, token: str, attempt: int) -> bytes:
    """A heartbeat as a datagram."""
    return compact({"token": token, "attempt": attempt, **vars(beat)})


def read_beat(content: bytes, token: str, config: Config) -> Beat | None:
    """The heartbeat in a datagram, None where it is none of this job and attempt."""
    import hmac

    if len(content) > DATAGRAM_BYTES:
        return None
    try:
        found = load(content)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("token"), str):
        return None
    given = found["token"].encode("utf-8", "replace")
    if not (token and hmac.compare_digest(given, token.encode())):
        return None
    rank = integer(found.get("node_rank"), 0, config.nnodes - 1)
    at, back, bye = _time(found.get("stamp")), found.get("echo"), found.get("bye")
    is_ours = integer(found.get("attempt")) == config.attempt
    if not is_ours or rank is None or at is None or not isinstance(bye, bool):
        return None
    echo = None if back is None else _time(back)
    pod = str(found.get("pod", ""))
    return None if back is not None and echo is None else Beat(rank, at, echo, bye, pod)


def _time(value: Any) -> float | None:
    """`value` if it may be a clock's, else None."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds <= MOST_SECONDS else None


class Lease:
    """How long a node's ranks may go on without a word from the other side."""

    def __init__(self, timeout: float, missed: str) -> None:
        """`missed` says who is to be heard."""
        self.seconds, self.missed = LEASE * timeout, missed
        self.at = -math.inf  # as of when the other side has been heard
        self.runs = False  # there is somebody to be heard
        self.silence = 0.0  # for how long nobody had been heard when it was lost

    def renew(self, at: float, now: float) -> None:
        """The other side has been heard as of `at`. What is lost is lost."""
        if not self.is_lost(now):
            self.at = max(self.at, at)

    def is_lost(self, now: float) -> bool:
        """Whether it has ended at any time up to now."""
        if self.runs and not self.silence and now - self.at >= self.seconds:
            self.silence = now - self.at
        return self.silence > 0

    def ends_at(self) -> float:
        """When it ends if nobody is heard."""
        return self.at + self.seconds if self.runs else math.inf

    def words(self) -> str:
        """What has become of it; "" while it holds."""
        return f"{self.missed} been heard for {self.silence:.0f} s" if self.silence else ""


class Member:
    """What another node than rank 0 knows of rank 0."""

    def __init__(self, node_rank: int, timeout: float, pod: str = "") -> None:
        self.node_rank, self.timeout, self.pod = node_rank, timeout, pod
        self.lease = Lease(timeout, "node rank 0 has not")
        self.sent: deque[float] = deque(maxlen=MOST_SENT)
        self.echo: float | None = None
        self.has_left = False  # rank 0 has
        self.due = -math.inf  # when to send the next heartbeat

    def beat(self, now: float, *, bye: bool = False) -> Beat:
        """The heartbeat to be sent now."""
        self.sent.append(now)
        if not self.has_left:
            # Who has answered before may have lost this one, or we the answer.
            self.due = now + self.timeout * (AGAIN if self.lease.runs else BEAT)
        return Beat(self.node_rank, now, self.echo, bye, self.pod)

    def take(self, beat: Beat, now: float) -> bool:
        """Take in what rank 0 sends; whether it is to be told bye in turn."""
        if beat.node_rank != 0 or self.lease.is_lost(now):
            return False
        if beat.bye:
            self.has_left, self.lease.runs, self.due = True, False, math.inf
            return True
        if beat.echo is not None and beat.echo in self.sent and not self.has_left:
            self.lease.renew(beat.echo, now)
            # After the first answer rank 0 is to have its own at once.
            self.due = now + self.timeout * BEAT if self.lease.runs else now
            self.lease.runs = True
            # Rank 0's own lease is not to outlast ours by more than that: it rests on this one.
            if now - beat.echo <= self.timeout * QUICK:
                self.echo = beat.stamp
        return False

    def page(self, now: float) -> dict[str, Any]:
        """What /progress has of it."""
        return {"unheard_seconds": round(now - self.lease.at, 2)} if self.lease.runs else {}


@dataclass
class Heard:
    """What rank 0 knows of another node."""

    arrived: float
    """When its last heartbeat came."""
    sent: float
    """The last timestamp that it was sent."""
    address: Any
    """None until it has come with this rank."""
    echoed: float = math.inf
    """The last of our timestamps that it has sent back; infinite before the first."""
    pod: str = ""
    """The print of its pod."""

    def age(self, now: float, beat: float) -> float:
        """For how long it has not been heard, `beat` being the time between two heartbeats.

        Nor is it if its heartbeats come, and say that it does not hear us: it ends soon.
        """
        return max(now - self.arrived, now - self.echoed - beat)


class Head:
    """What rank 0 knows of all other nodes. Its methods are called from any thread."""

    def __init__(self, timeout: float, clock: Callable[[], float] = clock) -> None:
        self.timeout, self.clock = timeout, clock
        self.lease = Lease(timeout, "neither another node nor the operator has")
        self.lock = threading.Lock()
        self.members: dict[int, Heard] = {}
        self.left: set[int] = set()
        # Those that have sent a timestamp back: only they are missed.
        self.known: set[int] = set()
        # Those that have not been heard for too long, and whether for all of the timeout.
        self.unheard: dict[int, bool] = {}
        self.read_at = clock()  # all that had come by then has been read
        self.is_leaving = self.has_news = False
        self.works = False  # heartbeats get through; else who was never heard is not missed
        self.old_at = -math.inf  # as of when the lease was too old last

    def take(self, beat: Beat, address: Any, now: float) -> Beat | None:
        """Take in another node's heartbeat; the answer, None where there is none."""
        rank = beat.node_rank
        with self.lock:
            if rank == 0 or self.lease.is_lost(now):
                return None
            if beat.bye:
                self.forget(rank)
                return None if self.is_leaving else Beat(0, now, beat.stamp, bye=True)
            if rank in self.left:  # it came late
                return None
            member = self.members.get(rank)
            if member is None:
                member = self.members[rank] = Heard(now, -math.inf, address)
            if beat.echo is not None and beat.echo <= member.sent:
                self.lease.renew(beat.echo, now)
                self.known.add(rank)
                self.lease.runs = self.works = True
                member.echoed = beat.echo
            member.arrived, member.sent, member.address, member.pod = now, now, address, beat.pod
            return Beat(0, now, beat.stamp, self.is_leaving)

    def forget(self, rank: int) -> None:
        """Miss a node no more that has said bye."""
        self.members.pop(rank, None)
        self.known.discard(rank)
        self.left.add(rank)
        self.lease.runs = bool(self.known)
        self.has_news |= self.unheard.pop(rank, None) is not None

    def replace(
        self, ranks: Iterable[int], pods: Mapping[int, str], spares: Collection[str]
    ) -> None:
        """Miss the pods of these node ranks no more, and hear others in their place.

        `pods` has the prints of those. One that has been in touch, as another node or one of the
        `spares`, is missed from now on: the first has its lease, and the other one no ranks yet.
        """
        with self.lock:
            heard = {*spares, *(member.pod for member in self.members.values())}
            for rank in ranks:
                self.forget(rank)
                self.left.discard(rank)
            for rank in (rank for rank, pod in pods.items() if pod in heard):
                here = Heard(self.clock(), -math.inf, None, pod=pods[rank])
                self.members.setdefault(rank, here)

    def hear_operator(self, stamp: float) -> None:
        """Take in that the operator has sent the timestamp of a page back."""
        now = self.clock()
        if stamp <= now:
            with self.lock:
                self.lease.renew(stamp, now)

    def look(self, now: float) -> None:
        """Find out who is not heard, once all that had come is read."""
        with self.lock:
            self.read_at = now
            beat = BEAT * self.timeout
            heard = {
                rank: each for rank, each in self.members.items() if each.address or self.works
            }
            ages = {rank: member.age(now, beat) for rank, member in heard.items()}
            least = UNHEARD * self.timeout
            found = {rank: age > self.timeout for rank, age in ages.items() if age > least}
            self.has_news |= found != self.unheard
            self.unheard = found
            at = self.lease.at
            if self.lease.runs and at != self.old_at and now - at > self.timeout * OLD:
                self.old_at, self.has_news = at, True

    def take_news(self) -> bool:
        """Whether there is something new to tell the operator."""
        news, self.has_news = self.has_news, False
        return news

    def page(self) -> dict[str, Any]:
        """What the operator is told.

        The ages are those at the last look, for while this agent was stopped it heard nobody.
        """
        with self.lock:
            now, beat = self.read_at, BEAT * self.timeout
            ages = [(self.members[rank].age(now, beat), rank) for rank in self.unheard]
        ages.sort(reverse=True)
        told = [{"node_rank": rank, "seconds": round(age, 2)} for age, rank in ages[:MOST_UNHEARD]]
        return {"stamp": self.clock(), "unheard": told}
