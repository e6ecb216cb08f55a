"""Which lines to show if somebody has not said it. No I/O."""

from dataclasses import dataclass
from typing import Literal

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.logs import Ranges, Wanted
from ddpjob.json_depth import Body
from ddpjob.ranks import MAX_NNODES, MAX_WORLD_SIZE
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


def first_failure(status: object, job: str, processes: int) -> Choice | None:
    """Return the last lines of the rank that failed first, if the job failed or restarts.

    A status may have any rank. Of one that no job can have there are no lines.
    """
    rank = why.number(status, "failure", "rank")
    if rank is None or not 0 <= rank < MAX_WORLD_SIZE:
        return None
    if why.state(status) not in ("Failed", "Restarting"):
        return None
    attempt = why.number(status, "failure", "attempt") or 0
    pod = names.parse_pod_name(job, why.text(status, "failure", "pod"))
    node = pod[1] if pod and pod[1] < MAX_NNODES else rank // processes
    told = f"the last lines of rank {rank}, which failed first in attempt {attempt}"
    if node != rank // processes:  # the agent does not know the process: it is the pod's number
        return Choice(Wanted(nodes=Ranges(str(node)), attempt=attempt), FAILURE_LINES, None, told)
    return Choice(Wanted(Ranges(str(rank)), attempt=attempt), FAILURE_LINES, None, told)


def after_failure(status: Body) -> Choice:
    """Return rank 0 from the failure on."""
    since = unix_seconds(why.text(status, "failure", "time"))
    return Choice(Wanted(Ranges("0")), since=since)
