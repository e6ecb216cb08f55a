"""Which lines to show if somebody has not said it. No I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from ddpjob import why
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.logs import LogLine, Wanted, parse_numbers
from ddpjob.errors import NotFound
from ddpjob.ranks import format_ranks
from ddpjob.times import unix_seconds

# Of the rank that failed first.
FAILURE_LINES = 50


@dataclass(frozen=True)
class Query:
    """Which lines to read, and whether to go on."""

    wanted: Wanted = field(default_factory=Wanted)
    follow: bool = False
    tail: int | None = None
    """Only the last lines of each pod, of those that are shown."""
    since: float | None = None
    """Only lines after this Unix time."""
    shows: Callable[[LogLine], bool] | None = None
    """A further condition of a line."""
    max_streams: int = 64
    """The most pods of an attempt that are read at once."""
    container: str | None = None
    """A container by its name; None for the trainer, or the init container that failed."""
    why: str = ""
    """What is shown, where nobody has chosen it."""

    def has_line(self, line: LogLine) -> bool:
        """Return whether a line of a wanted pod is shown."""
        return self.wanted.has_line(line) and (self.shows is None or self.shows(line))


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
    which = _attempt(attempt)
    ranks, nodes = (None if text is None else parse_numbers(str(text)) for text in (rank, node))
    if not everything and ranks is None and nodes is None:
        if which == "current":
            return None
        ranks = frozenset({0}) if which != "all" else None
    return Wanted(ranks, nodes, which)


def _attempt(asked: int | str) -> int | Literal["all", "current"]:
    if asked == "current":
        return "current"
    if asked == "all":
        return "all"
    digits = str(asked)
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"attempt: must be a number, current or all, got {asked!r}")
    return int(digits)


def check_is_there(job: Snapshot, wanted: Wanted) -> None:
    """Raise NotFound if the current attempt of the job has none of these ranks, or nodes."""
    if wanted.attempt != "current":  # an attempt that is over may have been larger
        return
    world = job.nnodes * job.processes_per_node
    for kind, asked, count in (("rank", wanted.ranks, world), ("node", wanted.nodes, job.nnodes)):
        if asked and asked.isdisjoint(range(count)):
            there = f"ranks 0 to {count - 1}" if count > 1 else "rank 0 alone"
            has = f"it has {'node ' * (kind == 'node')}{there}"
            text = f"{job.name} has no {kind} {format_ranks(asked)}; {has}"
            raise NotFound(404, "NotFound", text)


def choices(job: Snapshot, wanted: Wanted | None, query: Query) -> list[Query]:
    """Return the queries, to be read one after the other, for the wanted lines of a job.

    If nobody says what is wanted, they are the last lines of the rank that failed first, if the job
    failed or restarts, and then rank 0 from the failure on.
    """
    if wanted is not None:
        return [replace(query, wanted=wanted)]
    status, rank_0 = job.body.get("status"), Wanted(frozenset({0}))
    failed = whose_lines(status, job.processes_per_node)
    if job.state not in ("Failed", "Restarting") or failed is None:
        return [replace(query, wanted=rank_0)]
    kind, number = failed
    attempt = why.number(status, "failure", "attempt") or 0
    first = replace(
        query,
        wanted=Wanted(**{f"{kind}s": frozenset({number})}, attempt=attempt),
        # Who searches wants all that there is.
        tail=FAILURE_LINES if query.tail is None and query.shows is None else query.tail,
        why=f"the last lines of {kind} {number}, which failed first in attempt {attempt}",
    )
    if not query.follow or job.is_finished:
        return [replace(first, follow=False)]
    if failed == ("rank", 0) and attempt == job.attempt:
        return [replace(first, wanted=rank_0)]  # and what comes after them
    failed_at = unix_seconds(why.text(status, "failure", "time"))
    since = failed_at if query.since is None else query.since
    return [replace(first, follow=False), replace(query, wanted=rank_0, since=since)]


def whose_lines(status: object, processes: int) -> tuple[Literal["rank", "node"], int] | None:
    """Return the rank whose lines say why the last attempt failed, or the node rank of its pod."""
    rank, node = why.place(why.part(status, "failure"), processes)
    # A script may have started more ranks than the job says, and their lines are in its pod's.
    if rank is not None and rank // processes == node:
        return "rank", rank
    return None if node is None else ("node", node)
