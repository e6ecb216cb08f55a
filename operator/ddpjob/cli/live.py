"""Shows a job while it runs: a live table in a terminal, lines elsewhere, or JSON for a program."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ddpjob.cli.table import COLOURS
from ddpjob.client.logs import LogLine
from ddpjob.text import printable, printable_but_colours
from ddpjob.times import duration

Status = dict[str, Any]
# The reason of a restart or of the end has lines of its own.
WAITING = ("Pending", "Starting")
# Between two lines that differ in progress alone.
PROGRESS_SECONDS = 5.0
# Refreshes of the table in a second.
REFRESHES = 4


class Display(Protocol):
    """A place where a run is shown."""

    def status(self, status: Status) -> None:
        """Show the job's new status."""

    def line(self, line: LogLine) -> None:
        """Show a line that a pod has printed: its own colours, and the rest printable."""

    def note(self, *lines: str) -> None:
        """Show lines of ddpjob itself. They may quote anybody, so they are made printable."""


@contextmanager
def display(name: str, console: Console) -> Iterator[Display]:
    """Return the display that fits `console`, for as long as the job runs."""
    if not console.is_terminal:
        yield PlainDisplay(name, console)
        return
    shown = LiveDisplay(name, console)
    with Live(
        get_renderable=shown.table, console=console, refresh_per_second=REFRESHES, transient=False
    ):
        yield shown


class LiveDisplay:
    """A table that stays at the foot of the terminal; lines scroll above it."""

    def __init__(self, name: str, console: Console) -> None:
        self._name, self._console, self._status = name, console, Status()
        self._since = time.monotonic()

    def status(self, status: Status) -> None:
        """Show the new status at the next refresh."""
        self._status = status

    def line(self, line: LogLine) -> None:
        """Print the line above the table, with its own colours."""
        own = Text.from_ansi(printable_but_colours(line.text))
        text = Text(f"[node {line.node_rank}] ", style="dim") + own
        self._console.print(text, soft_wrap=True)

    def note(self, *lines: str) -> None:
        """Print the lines above the table."""
        for line in lines:
            self._console.print(Text(printable(line)), soft_wrap=True)

    def table(self) -> Table:
        """Return one row with the columns of `kubectl get ddpjob`."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        state = self._status.get("state") or "Pending"
        cells = {"NAME": Text(self._name), "STATE": Text(state, style=COLOURS.get(state, ""))}
        cells |= {name.upper(): Text(text) for name, text in _figures(self._status).items()}
        cells["AGE"] = Text(duration(time.monotonic() - self._since))
        if reason := _reason(self._status):
            cells["REASON"] = Text(reason, no_wrap=True, overflow="ellipsis")
        for heading in cells:
            # A narrow terminal cuts the reason and nothing else.
            table.add_column(heading, no_wrap=heading != "REASON")
        table.add_row(*cells.values())
        return table


class PlainDisplay:
    """Lines only: for files, pipes and CI."""

    def __init__(self, name: str, console: Console) -> None:
        self._name, self._console = name, console
        self._last: tuple[str, ...] = ()
        self._printed_at = -PROGRESS_SECONDS

    def status(self, status: Status) -> None:
        """Print a line if the state has changed; for new figures alone, not too often."""
        figures, now = _figures(status), time.monotonic()
        state = status.get("state") or "Pending"
        reason = _reason(status) if state in WAITING else ""
        step = (state, figures["nodes"], figures["restarts"], reason)
        shown = [f"{name} {text}" for name, text in figures.items() if text not in ("", "-")]
        if step == self._last and now < self._printed_at + PROGRESS_SECONDS:
            return
        self._last, self._printed_at = step, now
        self.note("  ".join([self._name, state, *shown, *([reason] if reason else [])]))

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


def _figures(status: Status) -> dict[str, str]:
    """Return the columns between state and age."""
    summary = status.get("summary") or {}
    figures = {name: str(summary.get(name) or "-") for name in ("nodes", "step", "loss", "eta")}
    return figures | {"restarts": str(status.get("restarts") or 0)}


def _reason(status: Status) -> str:
    """Return why the job is not simply running; empty if it is."""
    return str((status.get("summary") or {}).get("reason") or "")


@contextmanager
def records() -> Iterator[Display]:
    """Return the display that prints an object for each change, line and note."""
    yield Records()


class Records:
    """One object a line: `{"status": {…}}`, `{"attempt": 0, …, "line": "…"}` or `{"note": "…"}`."""

    def status(self, status: Status) -> None:
        """Print the whole status of the job."""
        self._print(status=status)

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
