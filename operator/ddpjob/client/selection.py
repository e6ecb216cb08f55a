"""Which lines to show if somebody has not said it. No I/O."""

from dataclasses import dataclass, replace
from typing import Literal

from ddpjob.client import why
from ddpjob.client.logs import Ranges, Wanted
from ddpjob.errors import NotFound
from ddpjob.json_depth import Body
from ddpjob.times import unix_seconds

# Of the rank that failed first.
FAILURE_LINES = 50


@dataclass(frozen=True)
class Choice:
    """Which lines to show, and why these."""

    wanted: Wanted
    tail: int | None = None
    since: float | None = None
    """Unix time before which lines are of no interest."""
    why: str = ""


def select(
    *,
    rank: int | str | None = None,
    node: int | str | None = None,
    everything: bool = False,
    attempt: int | str = "current",
) -> Wanted | None:
    """Return what somebody asks for; None if that is nothing in particular.

    Raises ValueError for a text that is no set of numbers, or no attempt.
    """
    if attempt not in ("current", "all"):
        digits = str(attempt)
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise ValueError(f"attempt: must be a number, current or all, got {attempt!r}")
        attempt = int(digits)
    which: int | Literal["all", "current"] = attempt  # type: ignore[assignment]
    ranks, nodes = (None if text is None else Ranges(str(text)) for text in (rank, node))
    for named in (ranks, nodes):
        if named is not None:
            _ = named.spans  # raises ValueError
    if not everything and ranks is None and nodes is None:
        if attempt == "current":
            return None
        ranks = Ranges("0") if attempt != "all" else None
    return Wanted(ranks, nodes, which)


def check_is_there(name: str, nnodes: int, processes: int, wanted: Wanted) -> None:
    """Raise NotFound if the current attempt of job `name` has none of these ranks, or nodes.

    It has `nnodes` pods of so many processes.
    """
    if wanted.attempt != "current":  # an attempt that is over may have been larger
        return
    world = nnodes * processes
    for kind, asked, count in (("rank", wanted.ranks, world), ("node", wanted.nodes, nnodes)):
        if asked and not asked.meets(range(count)):
            there = f"ranks 0 to {count - 1}" if count > 1 else "rank 0 alone"
            has = f"it has {'node ' * (kind == 'node')}{there}"
            raise NotFound(404, "NotFound", f"{name} has no {kind} {asked.text}; {has}")


def choices(
    body: Body, processes: int, wanted: Wanted | None, *, follow: bool
) -> list[tuple[Choice, bool]]:
    """Return which lines of a job to show, one choice after the other, and which to follow.

    `processes` are those of each pod. `wanted` is what somebody has asked for.
    """
    if wanted is not None:
        return [(Choice(wanted), follow)]
    status = body.get("status") or {}
    failure = first_failure(status, processes)
    if failure is None:
        return [(Choice(Wanted(Ranges("0"))), follow)]
    if not follow or why.state(status) in why.FINISHED:
        return [(failure, False)]
    if failure.wanted == Wanted(Ranges("0"), attempt=why.number(status, "attempt") or 0):
        return [(replace(failure, wanted=Wanted(Ranges("0"))), True)]  # and what comes after them
    return [(failure, False), (after_failure(status), True)]


def first_failure(status: object, processes: int) -> Choice | None:
    """Return the last lines of the rank that failed first, if the job failed or restarts.

    Of a pod that failed as a whole they are those of all its ranks.
    """
    found = whose_lines(status, processes)
    if why.state(status) not in ("Failed", "Restarting") or found is None:
        return None
    attempt = why.number(status, "failure", "attempt") or 0
    kind, number = found
    wanted = Wanted(**{f"{kind}s": Ranges(str(number))}, attempt=attempt)
    told = f"the last lines of {kind} {number}, which failed first in attempt {attempt}"
    return Choice(wanted, FAILURE_LINES, None, told)


def whose_lines(status: object, processes: int) -> tuple[Literal["rank", "node"], int] | None:
    """Return the rank whose lines say why the last attempt failed, or the node rank of its pod."""
    rank, node = why.place(why.part(status, "failure"), processes)
    # A script may have started more ranks than the job says, and their lines are in its pod's.
    if rank is not None and rank // processes == node:
        return "rank", rank
    return None if node is None else ("node", node)


def after_failure(status: Body) -> Choice:
    """Return rank 0 from the failure on."""
    since = unix_seconds(why.text(status, "failure", "time"))
    return Choice(Wanted(Ranges("0")), since=since)
