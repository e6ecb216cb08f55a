"""What node rank 0's agent knows of all nodes, and what it tells them: which round to be in.

The operator orders a round by its long poll of /group, and learns there what the nodes have told by
theirs of /member. A node's ranks run, or have failed, or its pod is clean for the round that is
wanted. Once all pods are clean for it, all may begin it: no rank of a round starts while one of the
round before is alive anywhere.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config

RUNNING, FAILED, CLEAN = "running", "failed", "clean"
# Of so many nodes the operator gets the termination messages: those that explain most.
MOST_FAILURES = 32
# So many requests are held; others are answered at once, and come again.
MOST_HELD = 512
# Others come again so often, all together, in a second.
ANSWERS_PER_SECOND = 300
# A request is held for so long at most.
HOLD_SECONDS = 20.0


@dataclass(frozen=True)
class Node:
    """What a node has told."""

    round: int
    state: str
    failure: Mapping[str, Any] | None = None
    """The agent's exit code and its termination message, if its ranks have failed."""


@dataclass(frozen=True)
class Order:
    """What the nodes are told."""

    round: int = 0
    """The round to be in, or to be clean for."""
    begun: int = 0
    """The latest round that may begin."""
    ends: bool = False
    """A node whose ranks have failed is to end its pod, for there will be no further round."""

    def to_json(self) -> dict[str, Any]:
        """As a node reads it."""
        return {"round": self.round, "begun": self.begun, "ends": self.ends}


class Group:
    """All nodes of the attempt. Its methods are called from any thread."""

    def __init__(self, nnodes: int, on_order: Callable[[], None]) -> None:
        """`on_order` is called whenever there is another order."""
        self.nnodes, self.on_order = nnodes, on_order
        self.changed = threading.Condition()
        self.held = threading.BoundedSemaphore(MOST_HELD)
        self.order = Order()
        self.nodes: dict[int, Node] = {}
        self.counts: dict[tuple[int, str], int] = {}  # nodes by their round and state
        self.serial = 1  # of what the operator is told

    def tell(self, rank: int, node: Node) -> None:
        """Take in what a node says. What is of an earlier round is no news."""
        with self.changed:
            old, wanted, ran = self.nodes.get(rank), self.order.round, self.are_running()
            if old == node or old is not None and node.round < old.round:
                return
            self.nodes[rank] = node
            for place, change in ((old, -1), (node, 1)):
                if place is not None:
                    key = place.round, place.state
                    self.counts[key] = self.counts.get(key, 0) + change
            if self.order.begun < wanted and self.counts.get((wanted, CLEAN)) == self.nnodes:
                self.give(Order(wanted, wanted, self.order.ends))
                self.counts = {(wanted, CLEAN): self.nnodes}
            if node.state == FAILED or self.are_running() != ran:
                self.serial += 1
            self.changed.notify_all()

    def are_running(self) -> bool:
        """Whether all nodes have begun the round that is wanted."""
        states = (self.counts.get((self.order.round, state), 0) for state in (RUNNING, FAILED))
        return sum(states) == self.nnodes

    def want(self, number: int, ends: bool) -> None:
        """Take the operator's order; one of an earlier round is no news."""
        with self.changed:
            old = self.order
            if number >= old.round and (number, ends) != (old.round, old.ends):
                self.give(Order(number, old.begun, ends))
                self.serial += 1
                self.changed.notify_all()

    def give(self, order: Order) -> None:
        """Have all nodes told."""
        self.order = order
        self.on_order()

    def wait(self, is_news: Callable[[], bool], seconds: float) -> float:
        """Hold a request until there is news for it. The seconds after which it is to come again.

        That is 0 unless too many are held already.
        """
        if not self.held.acquire(blocking=False):
            return self.nnodes / ANSWERS_PER_SECOND
        try:
            with self.changed:
                self.changed.wait_for(is_news, min(seconds, HOLD_SECONDS))
        finally:
            self.held.release()
        return 0.0

    def page(self) -> dict[str, Any]:
        """What the operator is told."""
        with self.changed:
            order, serial, running = self.order, self.serial, self.are_running()
            failed = [
                (rank, node)
                for rank, node in self.nodes.items()
                if (node.round, node.state) == (order.round, FAILED)
            ]
        told = sorted(failed, key=lambda pair: _explains(pair[1].failure or {}))[:MOST_FAILURES]
        return {
            "serial": serial,
            "round": order.round,
            "running": running,
            "failures": [{"node_rank": rank, **(node.failure or {})} for rank, node in told],
        }


def _explains(failure: Mapping[str, Any]) -> tuple[bool, float]:
    """Orders failures: those that no other rank's failure has caused, then the earliest."""
    message = failure.get("message") or {}
    return bool(message.get("peer")), float(message.get("time") or time.time())


def failure_of(exit_code: int, termination_message: bytes) -> dict[str, Any]:
    """What a node tells of its failure; without the traceback, which is in its log."""
    message = json.loads(termination_message.decode("utf-8", "replace"))
    message.pop("traceback", None)
    return {"exit_code": exit_code, "message": message}


def read_node(content: Any, config: Config) -> tuple[int, Node]:
    """A node's rank and what it tells, of a request's JSON. Raises ValueError.

    It comes from another pod of the job, or from anybody who has the token.
    """
    if not isinstance(content, dict) or content.get("attempt") != config.attempt:
        raise ValueError("not of this attempt")
    rank, number, state = (content.get(name) for name in ("node_rank", "round", "state"))
    failure = content.get("failure")
    for value, limit in ((rank, config.nnodes), (number, 2**31)):
        if type(value) is not int or not 0 <= value < limit:
            raise ValueError("node_rank and round must be whole numbers in their range")
    if state not in (RUNNING, FAILED, CLEAN) or not isinstance(failure, (dict, type(None))):
        raise ValueError("state or failure is of another kind")
    if failure is not None:
        message = failure.get("message")
        if type(failure.get("exit_code")) is not int or not isinstance(message, dict):
            raise ValueError("failure is of another kind")
        if not isinstance(message.get("time"), (int, float, type(None))):
            raise ValueError("time must be a number")
        failure = {"exit_code": failure["exit_code"], "message": message}
    assert isinstance(rank, int) and isinstance(number, int) and isinstance(state, str)
    return rank, Node(number, state, failure)


def read_order(content: Any) -> tuple[Order, float]:
    """An order, and after how many seconds to ask again, of an answer. Raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError("no order")
    numbers = [content.get(name) for name in ("round", "begun")]
    if any(type(number) is not int for number in numbers):
        raise ValueError("no order")
    again = content.get("again")
    pause = float(again) if isinstance(again, (int, float)) else 0.0
    order = Order(numbers[0], numbers[1], content.get("ends") is True)  # type: ignore[arg-type]
    return order, max(0.0, min(pause, 60.0))
