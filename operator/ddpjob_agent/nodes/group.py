"""What node rank 0's agent knows of all nodes, and what it tells them: which round to be in.

The operator orders a round by its long poll of /group, and learns there what the nodes have told by
theirs of /member. A node's ranks run, or have failed, or its pod is clean for the round that is
wanted. Once all pods are clean for it, all may begin it: no rank of a round starts while one of the
round before is alive anywhere.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config
from ddpjob_agent.records import compact, integer, number, past

if TYPE_CHECKING:
    from ddpjob_agent.nodes.lease import Head

RUNNING, ENDED, FAILED, CLEAN = "running", "ended", "failed", "clean"
# In each round a node goes through these, and never back. All ranks of one that has ENDED are done.
STATES = CLEAN, RUNNING, ENDED, FAILED
# Of so many nodes the operator gets the termination messages: those that explain most, in so many
# bytes. It reads no page of more than 64 KiB.
MOST_FAILURES, FAILURES_BYTES = 32, 40 * 1024
# And of so many that have ended well.
MOST_ENDED = 4
# So many requests of nodes are held; others are answered at once, and come again.
MOST_HELD = 512
# And so many of the operator's, which asks once at a time.
MOST_ASKED = 16
# Others come again so often, all together, in a second.
ANSWERS_PER_SECOND = 300
# A request is held for so long at most.
HOLD_SECONDS = 20.0
# What a pod says last, after SIGTERM: none of its processes lives. Of so many that is kept, and
# that a spare has asked.
DEAD, MOST_DEAD = "dead", 64
# Characters of a pod's uid's hash; the answer to a pod in whose place there is another one.
PRINT, OTHER_POD = 6, 410
# So much a node may tell of a failure: a termination message, and some brackets.
FAILURE_BYTES = 4096 + 64


@dataclass(frozen=True)
class Node:
    """What a node has told."""

    round: int
    state: str
    failure: Mapping[str, Any] | None = None
    """The agent's exit code and its termination message, if its ranks have ended."""

    def place(self) -> tuple[int, int]:
        """Grows with each news of a node."""
        return self.round, STATES.index(self.state)


@dataclass(frozen=True)
class Order:
    """What the nodes are told."""

    round: int = 0
    """The round to be in, or to be clean for."""
    begun: int = 0
    """The latest round that may begin."""
    ends: bool = False
    """A node whose ranks have failed is to end its pod, for there will be no further round."""
    waits: bool = False
    """The round waits for pods that are there in the place of others, perhaps for long."""
    size: int = 0
    """The number of its nodes; 0 is that of the job."""
    gently: bool = False
    """Ranks have the pod's grace period to save before it, since nothing is wrong."""


class Group:
    """All nodes of the attempt. Its methods are called from any thread."""

    def __init__(self, nnodes: int, on_order: Callable[[], None], *, waits: bool = False) -> None:
        """`on_order` is called whenever there is another order; `waits` is of the first one."""
        self.nnodes, self.on_order = nnodes, on_order  # of the round that is wanted
        self.head: Head | None = None  # knows who is not heard, if nodes are watched
        lock = threading.RLock()
        # There is another order, for nodes; there is more to tell the operator.
        self.ordered, self.told = threading.Condition(lock), threading.Condition(lock)
        self.held = threading.BoundedSemaphore(MOST_HELD)
        self.asked = threading.BoundedSemaphore(MOST_ASKED)
        self.order = Order(waits=waits)
        # By node rank, the prints of pods that are there in the place of others; "" of one that is
        # to come. What the replaced pods say counts no more.
        self.pods: Mapping[int, str] = {}
        self.places: Mapping[str, tuple[int, int]] = {}
        """What `place_of` says of each print."""
        self.is_held = False  # another round follows before any begins
        self.spares: deque[str] = deque(maxlen=MOST_DEAD)  # prints of those that have asked
        self.dead: set[str] = set()  # prints of pods that have said so since the last round began
        self.nodes: dict[int, Node] = {}
        self.counts: dict[tuple[int, str], int] = {}  # nodes by their round and state
        self.saves, self.saved_at = 0, 0.0  # how often the script has saved, and when (monotonic)
        self.serial = 1  # of what the operator is told

    def is_member(self, rank: int, pod: str) -> bool:
        """Whether the pod with this print is the one of a node rank."""
        return rank < self.nnodes and self.pods.get(rank, pod) == pod

    def is_left_out(self, rank: int, pod: str) -> bool:
        """Whether the group goes on without the pod with this print, which has no other rank."""
        with self.told:
            return not (self.is_member(rank, pod) or self.place_of(pod) or self.is_held)

    def place_of(self, pod: str) -> tuple[int, int] | None:
        """The rank that the pod with this print has got, and its first round; None without one.

        It was a spare before, or a node of a rank that the group has no more.
        """
        return self.places.get(pod)

    def bury(self, pod: str) -> None:
        """Take in that no process of the pod with this print lives."""
        with self.told:
            if len(self.dead) < MOST_DEAD and len(pod) == PRINT:
                self.dead.add(pod)
                self.count()

    def tell(self, rank: int, node: Node, pod: str | None = None) -> None:
        """Take in what a node says. What it said before is no news: requests overtake each other.

        Nor does any node know of a round before it is ordered here; `pod` is the print of another
        one than this.
        """
        with self.told:
            if pod is not None and not self.is_member(rank, pod):
                return
            old, wanted, ran = self.nodes.get(rank), self.order.round, self.are_running()
            is_old = old is not None and node.place() <= old.place()
            if is_old or node.round > wanted:
                return
            # One traceback is asked for, and there may be thousands of nodes.
            if self.counts.get((node.round, FAILED), 0) >= MOST_FAILURES:
                node = Node(node.round, node.state, without_traceback(node.failure))
            self.nodes[rank] = node
            self.add(old, -1)
            self.add(node, 1)
            if self.counts.get((wanted, CLEAN)) == self.nnodes and not self.is_held:
                self.dead.clear()
                self.give(Order(wanted, wanted, self.order.ends, size=self.order.size))
                self.counts = {(wanted, CLEAN): self.nnodes}
            failed = self.counts.get((wanted, FAILED), 0)
            if node.state == FAILED or failed and node.state == ENDED or self.are_running() != ran:
                self.count()

    def add(self, node: Node | None, change: int) -> None:
        """Count a node in its round and state, or no more."""
        if node is not None:
            key = node.round, node.state
            self.counts[key] = self.counts.get(key, 0) + change

    was_heard = True

    def is_heard(self) -> bool:
        """Whether rank 0's agent is there, as another node asks its `Link`."""
        return True

    def are_running(self) -> bool:
        """Whether all nodes have begun the round that is wanted."""
        states = (self.counts.get((self.order.round, state), 0) for state in STATES[1:])
        return sum(states) == self.nnodes

    def want(
        self,
        number: int,
        ends: bool,
        pods: Mapping[int, str] | None = None,
        since: int = 0,
        size: int = 0,
        *,
        is_held: bool = False,
    ) -> None:
        """Take the operator's order; one of an earlier round is no news.

        While it `is_held`, no round begins: another one follows once ranks of one before are dead.
        """
        pods = pods or {}
        with self.told:
            old, nnodes = self.order, size or self.nnodes
            are_new = (pods, nnodes, is_held) != (self.pods, self.nnodes, self.is_held)
            if number < old.round or (number, ends) == (old.round, old.ends) and not are_new:
                return
            gently = nnodes > self.nnodes and not self.counts.get((old.round, FAILED))
            size = old.size if nnodes == self.nnodes else nnodes
            new = {rank for rank in pods if pods[rank] != self.pods.get(rank)}
            left = new | {rank for rank in range(nnodes, self.nnodes)}
            for rank in left:
                self.add(self.nodes.pop(rank, None), -1)
            if self.head is not None:
                self.head.replace(left, {rank: pods[rank] for rank in new}, self.spares)
            gently |= old.gently and (number == old.round or self.is_held)
            self.pods, self.nnodes, self.is_held = pods, nnodes, is_held
            self.places = {pods[rank]: (rank, since) for rank in pods if pods[rank]}
            waits = are_new or old.waits and old.begun < number
            self.give(Order(number, old.begun, ends, waits, size, gently))
            self.count()

    def give(self, order: Order) -> None:
        """Have all nodes told."""
        self.order = order
        self.ordered.notify_all()
        self.on_order()

    def count(self) -> None:
        """Have the operator told."""
        with self.told:
            self.serial += 1
            self.told.notify_all()

    def note_save(self) -> None:
        """Take in that the script has saved."""
        with self.told:
            self.saves, self.saved_at = self.saves + 1, time.monotonic()
            self.count()

    def hear(self, stamp: float | None) -> None:
        """Take in the timestamp of a page that the operator has read."""
        if self.head is not None and stamp is not None:
            self.head.hear_operator(stamp)

    def hold_node(self, known: Order, spare: str = "") -> float:
        """Hold a node's request until there is another order; the seconds until the next one.

        They are 0 unless too many are held already. That of a spare, by its print, is held until it
        has a rank.
        """

        def is_news() -> bool:
            return self.order != known or bool(spare) and self.place_of(spare) is not None

        with self.told:
            if len(spare) == PRINT and spare not in self.spares:
                self.spares.append(spare)
        held = hold(self.held, self.ordered, is_news, HOLD_SECONDS)
        return 0.0 if held else self.nnodes / ANSWERS_PER_SECOND

    def hold_operator(self, after: int | None, seconds: float) -> None:
        """Hold a request of the operator until there is more to tell than at `after`."""
        hold(self.asked, self.told, lambda: self.serial != after, min(seconds, HOLD_SECONDS))

    def page(self) -> dict[str, Any]:
        """What the operator is told."""
        with self.told:
            order, serial, running = self.order, self.serial, self.are_running()
            more: dict[str, Any] = {"dead": sorted(self.dead)} if self.dead else {}
            if self.saves:
                more.update(saves=self.saves, saved=time.monotonic() - self.saved_at)
            here = [pair for pair in self.nodes.items() if pair[1].round == order.round]
        failed, ended = ([p for p in here if p[1].state == state] for state in (FAILED, ENDED))
        told = sorted(failed, key=lambda pair: _explains(pair[1].failure or {}))[:MOST_FAILURES]
        told += ended[:MOST_ENDED]
        # The first one's traceback alone: it is the one that the operator shows.
        bare = [(rank, without_traceback(node.failure)) for rank, node in told[1:]]
        pairs = [*((rank, node.failure) for rank, node in told[:1]), *bare]
        failures = [{"node_rank": rank, **(failure or {})} for rank, failure in pairs]
        sizes = itertools.accumulate(len(compact(failure)) for failure in failures)
        return {
            "serial": serial,
            "round": order.round,
            "running": running,
            "failures": failures[: sum(size <= FAILURES_BYTES for size in sizes)],
            **({} if self.head is None else self.head.page()),
            **more,
        }


def hold(
    room: threading.Semaphore,
    condition: threading.Condition,
    is_news: Callable[[], bool],
    seconds: float,
) -> bool:
    """Wait for news where there is room for another one that waits; whether there was."""
    if not room.acquire(blocking=False):
        return False
    try:
        with condition:
            condition.wait_for(is_news, seconds)
    finally:
        room.release()
    return True


def _explains(failure: Mapping[str, Any]) -> tuple[bool, float]:
    """Orders failures: those that no other rank's failure has caused, then the earliest."""
    message = failure.get("message") or {}
    return bool(message.get("peer")), past(message.get("time"), time.time())


def failure_of(exit_code: int, termination_message: bytes) -> dict[str, Any]:
    """What a node tells of its failure."""
    message = json.loads(termination_message.decode("utf-8", "replace"))
    return {"exit_code": exit_code, "message": message}


def without_traceback(failure: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The failure without its traceback, which is in the node's log."""
    message = (failure or {}).get("message") or {}
    if failure is None or "traceback" not in message:
        return failure
    kept = {name: value for name, value in message.items() if name != "traceback"}
    return {**failure, "message": kept}


def read_node(content: Any, config: Config) -> tuple[int, Node]:
    """A node's rank and what it tells, of a request's JSON. Raises ValueError.

    It comes from another pod of the job, or from anybody who has the token.
    """
    if not isinstance(content, dict) or content.get("attempt") != config.attempt:
        raise ValueError("not of this attempt")
    rank = integer(content.get("node_rank"), 0, config.nnodes - 1)
    current, state = integer(content.get("round")), content.get("state")
    if rank is None or current is None or state not in STATES:
        raise ValueError("node_rank, round or state is not in its range")
    failure = content.get("failure")
    return rank, Node(current, state, None if failure is None else read_failure(failure))


def print_of(uid: str) -> str:
    """The characters by which the operator's order names a pod: `plan.own.print_of`."""
    import hashlib
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(hashlib.sha256(uid.encode()).digest())[:PRINT].decode()


def read_pods(text: str) -> dict[int, str]:
    """Prints of pods by their node rank, of `RANK:PRINT,…` as an order has them."""
    pairs = (part.partition(":")[::2] for part in text.split(",") if part)
    return {int(rank): pod for rank, pod in pairs if re.match(r"[0-9]{1,5}\Z", rank)}


def read_failure(content: Any) -> dict[str, Any]:
    """What a node tells of its failure. Raises ValueError, or RecursionError where it is too deep.

    It goes on to the operator, who refuses all of an answer that is too large.
    """
    found = content if isinstance(content, dict) else {}
    code, message = integer(found.get("exit_code")), found.get("message")
    if code is None or not isinstance(message, dict):
        raise ValueError("failure is of another kind")
    deeper = {"failures": [[[{"message": message}]]]}
    if len(compact(deeper)) > FAILURE_BYTES:
        raise ValueError("failure is too large")
    return {"exit_code": code, "message": message}


def read_place(content: Mapping[str, Any], nnodes: int) -> tuple[int, int] | None:
    """The rank that a pod has got, and its first round, of an answer; None without one."""
    found = content.get("place")
    values = found if isinstance(found, list) and len(found) == 2 else [None, None]
    rank, since = integer(values[0], 0, nnodes - 1), integer(values[1])
    return None if rank is None or since is None else (rank, since)


def read_order(content: Any) -> tuple[Order, float]:
    """An order, and after how many seconds to ask again, of an answer. Raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError("no order")
    wanted, begun = (integer(content.get(name)) for name in ("round", "begun"))
    if wanted is None or begun is None:
        raise ValueError("no order")
    pause, size = number(content.get("again")) or 0.0, integer(content.get("size"))
    ends, waits, gently = (content.get(name) is True for name in ("ends", "waits", "gently"))
    order = Order(wanted, begun, ends, waits, size or 0, gently)
    return order, min(pause, 60.0) if pause > 0 else 0.0
