"""Prints the logs of a job, and says how it ended: the work of `ddpjob logs`."""

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ddpjob.cli.endings import detached, ended
from ddpjob.cli.exits import Exit
from ddpjob.cli.loglines import Printer
from ddpjob.cli.logs import Format
from ddpjob.cli.options import Place, find
from ddpjob.cli.say import note
from ddpjob.cli.values import bad
from ddpjob.client.follow import Logs, Query
from ddpjob.client.job import Job
from ddpjob.client.logs import LogLine, Wanted
from ddpjob.client.selection import Choice, check_is_there, choices, select
from ddpjob.errors import NotFound


@dataclass(frozen=True)
class Options:
    """The options of `ddpjob logs`."""

    follow: bool = False
    rank: str | None = None
    node: str | None = None
    everything: bool = False
    container: str | None = None
    attempt: str = "current"
    since: float | None = None
    """Seconds before now."""
    tail: int | None = None
    grep: str | None = None
    timestamps: bool = False
    output: Format = Format.TEXT
    max_streams: int = 64

    def words(self) -> str:
        """Return the options that choose lines and show them so, with a space before each."""
        named = {"rank": self.rank, "node": self.node, "container": self.container}
        named["grep"] = self.grep
        parts = [f"--{name}={value}" for name, value in named.items() if value is not None]
        parts += ["--all"] * self.everything + ["--timestamps"] * self.timestamps
        parts += [f"--attempt={self.attempt}"] * (self.attempt != "current")
        parts += [f"--output={self.output}"] * (self.output is not Format.TEXT)
        parts += [f"--max-streams={self.max_streams}"] * (self.max_streams != 64)
        return "".join(f" {shlex.quote(part)}" for part in parts)


def print_logs(place: Place, name: str | None, options: Options) -> Exit:
    """Print the lines, and return the exit code. Raises ClusterError or LoginFailed."""
    shows = _search(options.grep)
    wanted = _wanted(options)
    client = place.client()
    job = find(client, name)
    if wanted:
        check_is_there(job.name, job.nnodes, job.processes_per_node, wanted)
    printer = Printer(options.output, timestamps=options.timestamps)
    try:
        found = choices(job.body, job.processes_per_node, wanted, follow=options.follow)
        for choice, follow in found:
            query = _query(choice, options, shows, follow=follow)
            logs = Logs(client.connection, job, query)
            if not sum(map(printer.print, logs.batches())):
                _say_why(logs, query, place, goes_on=options.follow and not follow)
            job = logs.job
    except KeyboardInterrupt:
        return detached(job, place, f"logs -f {job.name}{options.words()}")
    if not options.follow:
        return Exit.OK
    return ended(job, place, is_deleted=logs.is_deleted)


def _query(
    choice: Choice,
    options: Options,
    shows: Callable[[LogLine], bool] | None,
    *,
    follow: bool,
) -> Query:
    if choice.why:
        note(f"{choice.why} (--all has all)")
    since = choice.since if options.since is None else time.time() - options.since
    # Who searches wants all that there is.
    tail = choice.tail if options.tail is None and shows is None else options.tail
    return Query(
        choice.wanted,
        follow=follow,
        tail=tail,
        since=since,
        shows=shows,
        max_streams=options.max_streams,
        container=options.container,
    )


def _say_why(logs: Logs, query: Query, place: Place, *, goes_on: bool) -> None:
    """Say why there is no line. Raises NotFound if an attempt has no pods, and nothing follows.

    `goes_on` says that a later attempt, or how the job has ended, is told then.
    """
    job, attempt = logs.job, query.wanted.attempt
    known = sorted({pod.attempt for pod in logs.pods})
    if isinstance(attempt, int) and attempt not in known:
        there = f"there are pods of attempt {', '.join(map(str, known))}" if known else "none is"
        text = f"attempt {attempt} of {job.name} has no pods any more; {there}"
        if goes_on:
            return note(text)
        error = NotFound(404, "NotFound", text)
        error.advice = (
            f"ddpjob describe {job.name}{place.flags} has what is known of earlier attempts"
        )
        raise error
    waiting = [pod for pod in logs.read if pod.state == "waiting"]
    if waiting:
        pod = waiting[0]
        why = f" ({pod.reason})" if pod.reason else ""
        note(f"no line yet: {pod.name} has not started{why}{_because(job)}")
    elif logs.read:
        is_over = all(pod.state == "ended" for pod in logs.read)
        none = "no line" if is_over else "no line yet"
        note("no such line" if query.shows or query.since else none)
    else:
        note(f"no pod of attempt {job.attempt}: {job.name} is {job.state}{_because(job)}")


def _because(job: Job) -> str:
    return f"; {job.reason}" if job.reason else ""


def _wanted(options: Options) -> Wanted | None:
    try:
        return select(
            rank=options.rank,
            node=options.node,
            everything=options.everything,
            attempt=options.attempt,
        )
    except ValueError as error:
        raise bad(
            str(error), "--attempt" if "attempt" in str(error) else "--rank, --node"
        ) from None


def _search(expression: str | None) -> Callable[[LogLine], bool] | None:
    """Return whether the expression is found in a line. RE2 needs no more than linear time."""
    if expression is None:
        return None
    import re2

    library: Any = re2
    options = library.Options()
    options.log_errors = False  # they are said below
    try:
        found = library.compile(expression, options)
    except library.error as error:
        raise bad(f"no RE2 expression: {_words(error.args)}", "--grep") from None
    except UnicodeEncodeError:
        raise bad(f"must be UTF-8, got {expression!r}", "--grep") from None
    is_shown: dict[str, bool] = {}  # by pod, of its line that is read now

    def shows(line: LogLine) -> bool:
        if line.part == 0:
            is_shown[line.pod] = found.search(line.text) is not None
        return is_shown.get(line.pod, False)

    return shows


def _words(parts: Iterable[object]) -> str:
    texts = (part.decode(errors="replace") if isinstance(part, bytes) else part for part in parts)
    return " ".join(map(str, texts))
