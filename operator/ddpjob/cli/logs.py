"""`ddpjob logs`: what the ranks have printed, and go on printing."""

import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from ddpjob.cli.exits import Exit, detached, ended
from ddpjob.cli.options import Name, Place, bad, find, seconds
from ddpjob.cli.output import coloured, note, raw, say
from ddpjob.cli.table import Screen
from ddpjob.client.follow import Logs, Query, check_is_there, choices, select
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.logs import LogLine, Wanted
from ddpjob.errors import NotFound

# How lines are printed.
Format = Literal["text", "json", "raw"]
# Bytes of a line that are shown. A longer one is cut; raw has up to 1 MiB of it.
SHOWN = 16 * 1024
# SGR codes of the prefix. Red is for errors.
COLOURS = (36, 33, 32, 35, 34, 96)


def logs(
    place: Place,
    name: Name = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, over restarts.")
    ] = False,
    rank: Annotated[
        str | None, typer.Option(help="Global ranks, such as 13 or 0,8-11. By default rank 0.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Pods by node rank, such as 1 or 0-3: all their lines.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All ranks.")] = False,
    container: Annotated[
        str | None,
        typer.Option(
            "--container",
            "-c",
            help="Init container or sidecar. By default the trainer, or the init container that "
            "failed.",
        ),
    ] = None,
    attempt: Annotated[str, typer.Option(help="Number of an attempt, current or all.")] = "current",
    since: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Only lines of the last time: 10m."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only the last lines of each pod.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option(help="Only lines in which this regular expression is found.")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Begin each line with its time.")
    ] = False,
    output: Annotated[
        Format,
        typer.Option(
            "--output",
            "-o",
            help="text, json, or raw: as printed, escape sequences included.",
        ),
    ] = "text",
    max_streams: Annotated[
        int, typer.Option(min=1, max=1024, help="The most pods that are read at once.")
    ] = 64,
) -> None:
    """Print what the ranks have printed: rank 0, or the one that failed first.

    Of a job that has failed or restarts, these are the last 50 lines of the rank that failed first.
    A line begins with aN, the attempt, and rN, the rank. Lines of the pod's agent, or of torchrun,
    have nN, the node rank, instead; those of another container have its name too. With --follow the
    exit code is 0 if the job succeeds and 1 if it fails. Ctrl-C ends the command (130), and the job
    runs on.
    """
    try:
        wanted = select(rank=rank, node=node, everything=everything, attempt=attempt)
    except ValueError as error:
        raise bad(
            str(error), "--attempt" if "attempt" in str(error) else "--rank, --node"
        ) from None
    try:
        expression = re.compile(grep or "")
    except re.error as error:
        raise bad(f"no regular expression: {error}", "--grep") from None
    query = Query(
        follow=follow,
        tail=tail,
        since=None if since is None else time.time() - since,
        shows=None if grep is None else lambda line: expression.search(line.text) is not None,
        max_streams=max_streams,
        container=container,
    )
    again = shlex.join(sys.argv[1:])
    shown = Shown(query, wanted, output, timestamps=timestamps, again=again)
    raise typer.Exit(print_logs(place, name, shown))


@dataclass(frozen=True)
class Shown:
    """Which lines are shown, and how."""

    query: Query
    wanted: Wanted | None = None
    """None for nothing in particular."""
    output: Format = "text"
    timestamps: bool = False
    again: str = ""
    """The command that shows them; empty for `logs -f` and the job."""
    raises: bool = False
    """Whether Ctrl-C is for whoever asks for the lines."""


def print_logs(place: Place, name: str | None, shown: Shown) -> Exit:
    """Print the lines, and return the exit code. Raises ClusterError or LoginFailed."""
    client, wanted, follow = place.client(), shown.wanted, shown.query.follow
    job = find(client, name)
    if wanted:
        check_is_there(job, wanted)
    printer = Printer(shown.output, timestamps=shown.timestamps)
    seen: Snapshot = job
    try:
        for query in choices(job, wanted, shown.query):
            if query.why:
                note(f"{query.why} (--all has all)")
            logs = Logs(client.connection, seen, query)
            if not sum(map(printer.print, logs.batches())):
                _say_why(logs, query, place, goes_on=follow and not query.follow)
            seen = logs.job
    except KeyboardInterrupt:
        if shown.raises:
            raise
        return detached(seen, place, shown.again or f"logs -f {job.name}{place.flags}")
    if not follow:
        return Exit.OK
    return ended(seen, place, is_deleted=logs.is_deleted)


def _say_why(logs: Logs, query: Query, place: Place, *, goes_on: bool) -> None:
    """Say why there is no line. Raises NotFound if an attempt has no pods, and nothing follows.

    `goes_on` says that a later attempt, or how the job has ended, is told then.
    """
    job, attempt = logs.job, query.wanted.attempt
    known = sorted({pod.attempt for pod in logs.pods.values()})
    if isinstance(attempt, int) and attempt not in known:
        there = f"there are pods of attempt {', '.join(map(str, known))}" if known else "none is"
        text = f"attempt {attempt} of {job.name} has no pods any more; {there}"
        if goes_on:
            return note(text)
        advice = f"ddpjob describe {job.name}{place.flags} has what is known of earlier attempts"
        raise NotFound(404, "NotFound", text, advice=advice)
    because = f"; {job.reason}" if job.reason else ""
    read = list(logs.read.values())
    waiting = next((pod for pod in read if pod.state == "waiting"), None)
    if waiting:
        reason = f" ({waiting.reason})" if waiting.reason else ""
        note(f"no line yet: {waiting.name} has not started{reason}{because}")
    elif not read:
        note(f"no pod of attempt {job.attempt}: {job.name} is {job.state}{because}")
    elif query.shows or query.since:
        note("no such line")
    else:
        note("no line" if all(pod.state == "ended" for pod in read) else "no line yet")


class Printer:
    """Prints batches of lines in one format."""

    def __init__(self, output: Format, *, timestamps: bool) -> None:
        self._output, self._timestamps = output, timestamps
        self._coloured = output == "text" and Screen().color_system is not None
        self._width = 0

    def print(self, lines: Sequence[LogLine]) -> int:
        """Print the lines, and return how many they are."""
        if self._output == "raw":
            raw(b"".join(line.content + b"\n" for line in lines))
        elif self._output == "json":
            say(*(json.dumps(record(line)) for line in lines))
        else:
            self._print(lines)
        return len(lines)

    def _print(self, lines: Sequence[LogLine]) -> None:
        heads = [f"{each.time} {each.place}" if self._timestamps else each.place for each in lines]
        self._width = max([self._width, *map(len, heads)])
        coloured(
            (f"{head:<{self._width}} | ", self._colour(line), line.shown(SHOWN))
            for head, line in zip(heads, lines, strict=True)
        )

    def _colour(self, line: LogLine) -> int | None:
        number = line.node_rank if line.rank is None else line.rank
        return COLOURS[number % len(COLOURS)] if self._coloured else None


def record(line: LogLine) -> dict[str, str | int | bool | None]:
    """Return the line as `-o json` has it."""
    content = line.content
    found: dict[str, str | int | bool | None] = {
        "time": line.time,
        "attempt": line.attempt,
        "round": line.round,
        "rank": line.rank,
        "nodeRank": line.node_rank,
        "node": line.node,
        "pod": line.pod,
        "container": line.container,
        "line": content[:SHOWN].decode(errors="replace"),
    }
    if len(content) > SHOWN:
        found["cut"] = True
    return found
