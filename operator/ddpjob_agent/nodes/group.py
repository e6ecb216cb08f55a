"""What node rank 0's agent knows of all nodes, and what it tells them: which round to be in.

The operator orders a round by its long poll of /group, and learns there what the nodes have told by
theirs of /member. A node's ranks run, or have failed, or its pod is clean for the round that is
wanted. Once all pods are clean for it, all may begin it: no rank of a round starts while one of the
round before is alive anywhere.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.records import compact, past

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
# The operator sends it as soon as it is told that it lacks; a node's request ends after 5 s.
PROGRAM_SECONDS = 3.0
# What a pod says last, after SIGTERM: none of its processes lives. Of so many that is kept, and
# that a spare has asked.
DEAD, MOST_DEAD = "dead", 64
# Characters of a pod's uid's hash; the answer to a pod in whose place there is another one.
PRINT, OTHER_POD = 6, 410


@dataclass(frozen=True)
class Node:
    """What a node has told."""

    round: int
    state: str
    failure: Mapping[str, Any] | None = None
    """The agent's exit code and its termination message, if its ranks have ended."""
    program: str = ""
    """The print of what ranks would run there, of a clean node; as an `Order` has it."""

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
    program: str = ""
    """The print of what its ranks run; "" is what the attempt's first pods were made with."""


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
        # Whether what has this print is here, for the ranks of a round to run.
        self.has: Callable[[str], bool] = lambda program: True

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
            is_other = node.state == CLEAN and node.program != self.order.program
            if is_old or is_other or node.round > wanted:
                return
            # One traceback is asked for, and there may be thousands of nodes.
            if self.counts.get((node.round, FAILED), 0) >= MOST_FAILURES:
                node = Node(node.round, node.state, without_traceback(node.failure))
            self.nodes[rank] = node
            self.add(old, -1)
            self.add(node, 1)
            if self.counts.get((wanted, CLEAN)) == self.nnodes and not self.is_held:
                self.dead.clear()
                self.give(replace(self.order, begun=wanted, waits=False, gently=False))
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
        program: str = "",
        *,
        is_held: bool = False,
    ) -> None:
        """Take the operator's order; one of an earlier round is no news.

        While it `is_held`, no round begins: another one follows once ranks of one before are dead.
        Nor has a round that has begun another `program` than before.
        """
        pods = pods or {}
        with self.told:
            old, nnodes = self.order, size or self.nnodes
            program = old.program if number <= old.begun else program
            are_new = (pods, nnodes, is_held) != (self.pods, self.nnodes, self.is_held)
            are_new |= program != old.program
            if number < old.round or (number, ends) == (old.round, old.ends) and not are_new:
                return
            is_wish = nnodes > self.nnodes or program != old.program
            gently = is_wish and not any(map(_has_failed, self.nodes.values()))
            size = old.size if nnodes == self.nnodes else nnodes
            new = {rank for rank in pods if pods[rank] != self.pods.get(rank)}
            left = new | {rank for rank in range(nnodes, self.nnodes)}
            is_other = program != old.program
            others = {r for r, n in self.nodes.items() if is_other and n.round == number}
            for rank in left | others:
                self.add(self.nodes.pop(rank, None), -1)
            if self.head is not None:
                self.head.replace(left, {rank: pods[rank] for rank in new}, self.spares)
            gently |= old.gently and (number == old.round or self.is_held)
            self.pods, self.nnodes, self.is_held = pods, nnodes, is_held
            self.places = {pods[rank]: (rank, since) for rank in pods if pods[rank]}
            waits = are_new or old.waits and old.begun < number
            self.give(Order(number, old.begun, ends, waits, size, gently, program))
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

        def is_news() -> bool:
            return self.serial != after or self.lacks_program()

        hold(self.asked, self.told, is_news, min(seconds, HOLD_SECONDS))

    def await_program(self, wanted: str) -> None:
        """Hold a node's request until what the order names is here, if it soon is."""
        if wanted == self.order.program:
            hold(self.held, self.ordered, lambda: self.has(wanted), PROGRAM_SECONDS)

    def note_program(self) -> None:
        """Take in that something for ranks to run is here."""
        with self.ordered:
            self.ordered.notify_all()
        self.on_order()

    def lacks_program(self) -> bool:
        """Whether a round is to begin with something that nobody can get here."""
        order = self.order
        return order.begun < order.round and bool(order.program) and not self.has(order.program)

    def page(self) -> dict[str, Any]:
        """What the operator is told."""
        with self.told:
            order, serial, running = self.order, self.serial, self.are_running()
            more: dict[str, Any] = {"dead": sorted(self.dead)} if self.dead else {}
            if self.saves:
                more.update(saves=self.saves, saved=time.monotonic() - self.saved_at)
            here = [pair for pair in self.nodes.items() if pair[1].round == order.round]
        failed, ended = ([p for p in here if p[1].state == state] for state in (FAILED, ENDED))
        told = sorted(failed, key=lambda pair: _explains(*pair))[:MOST_FAILURES]
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
            **({"over": True} if len(failed) == self.nnodes else {}),
            **({"lacks_program": True} if self.lacks_program() else {}),
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


def _has_failed(node: Node) -> bool:
    """Whether its ranks have, and not ended well in a kept pod."""
    return node.state == FAILED and (node.failure or {}).get("exit_code") != 0


def _explains(rank: int, node: Node) -> tuple[bool, bool, bool, float]:
    """Orders ends: failures that no other rank's has caused, then the earliest.

    Those of kept pods that have ended well come last, and rank 0's first: it has the result.
    """
    failure = node.failure or {}
    message, is_well = failure.get("message") or {}, failure.get("exit_code") == 0
    at = past(message.get("time"), time.time())
    return not (is_well and rank == 0), is_well, bool(message.get("peer")), at


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


def print_of(uid: str) -> str:
    """The characters by which the operator's order names a pod: `plan.own.print_of`."""
    import hashlib
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(hashlib.sha256(uid.encode()).digest())[:PRINT].decode()
