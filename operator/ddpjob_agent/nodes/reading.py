"""Reads what agents and the operator tell each other: whoever has the job's token may write it."""

from __future__ import annotations

import re
from typing import Any, Mapping  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config
from ddpjob_agent.nodes.group import STATES, Node, Order
from ddpjob_agent.records import compact, integer, number

# So much a node may tell of a failure: a termination message, and some brackets.
FAILURE_BYTES = 4096 + 64


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
    failure, program = content.get("failure"), read_print(content.get("program"))
    return rank, Node(current, state, None if failure is None else read_failure(failure), program)


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
    order = Order(wanted, begun, ends, waits, size or 0, gently, read_print(content.get("program")))
    return order, min(pause, 60.0) if pause > 0 else 0.0


def read_print(value: Any) -> str:
    """The print of a program; "" where it is none."""
    return value if isinstance(value, str) and re.match(r"[0-9a-f]{16}\Z", value) else ""
