"""Shows a run on this machine: a live table in a terminal, lines elsewhere, or JSON."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ddpjob.cli.table import styled
from ddpjob.client.display import Display, PlainDisplay
from ddpjob.client.html import figures_of
from ddpjob.client.logs import LogLine
from ddpjob.client.snapshot import Snapshot
from ddpjob.text import printable, printable_but_colours
from ddpjob.times import duration

# Refreshes of the table in a second.
REFRESHES = 4


@contextmanager
def display(job: Snapshot, console: Console) -> Iterator[Display]:
    """Return the display that fits `console`, for as long as the job runs."""
    if not console.is_terminal:
        yield LineDisplay(console)
        return
    shown = LiveDisplay(job, console)
    with Live(get_renderable=shown.table, console=console, refresh_per_second=REFRESHES):
        yield shown


class LineDisplay(PlainDisplay):
    """Lines only: for files, pipes and CI."""

    # The reason of a restart or of the end has lines of its own.
    explained = ("Pending", "Starting")

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def line(self, line: LogLine) -> None:
        """Print the line, with its own colours."""
        self._print(f"[node {line.node_rank}] {printable_but_colours(line.text)}")

    def note(self, *lines: str) -> None:
        """Print the lines at once."""
        for line in lines:
            self._print(printable(line))

    def _print(self, line: str) -> None:
        self._console.out(line, highlight=False)
        self._console.file.flush()


class LiveDisplay(LineDisplay):
    """A table that stays at the foot of the terminal; lines scroll above it."""

    def __init__(self, job: Snapshot, console: Console) -> None:
        super().__init__(console)
        self._job, self._since = job, time.monotonic()

    def job(self, job: Snapshot) -> None:
        """Show the job at the next refresh."""
        self._job = job

    def _print(self, line: str) -> None:
        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def table(self) -> Group:
        """Return the columns of `ddpjob get`, with the present figures."""
        job = self._job
        cells = {"NAME": job.name, "STATE": job.state}
        cells |= {name.upper(): text for name, text in figures_of(job).items()}
        cells["AGE"] = duration(time.monotonic() - self._since)
        if job.reason:
            cells["REASON"] = job.reason
        return Group(*styled([*cells], [[*cells.values()]], self._console.width))


@contextmanager
def records() -> Iterator[Display]:
    """Return the display that prints an object for each change, line and note."""
    yield Records()


class Records(Display):
    """One object a line: `{"status": {…}}`, `{"attempt": 0, …, "line": "…"}` or `{"note": "…"}`."""

    def job(self, job: Snapshot) -> None:
        """Print the whole status of the job."""
        self._print(status=job.body.get("status"))

    def line(self, line: LogLine) -> None:
        """Print a line that a pod has printed, with where it comes from."""
        place = {"attempt": line.attempt, "round": line.round}
        self._print(**place, rank=line.rank, nodeRank=line.node_rank, line=line.text)

    def note(self, *lines: str) -> None:
        """Print lines of ddpjob itself."""
        for line in lines:
            self._print(note=line)

    def _print(self, **record: Any) -> None:
        sys.stdout.write(json.dumps(record) + "\n")  # ASCII, so it is harmless in a terminal
        sys.stdout.flush()
