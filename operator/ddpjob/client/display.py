"""Shows a job while it runs: one display that changes in a notebook, lines elsewhere."""

import sys
import time
from collections import deque
from typing import Any, Protocol

from ddpjob.client.html import figures_of, live, shown
from ddpjob.client.logs import LogLine
from ddpjob.client.snapshot import Snapshot
from ddpjob.text import printable

# Lines of rank 0 that a notebook shows, and lines of ddpjob itself.
LINES, NOTES = 8, 12
# Seconds between two drawings in a notebook, and between two lines that differ in figures alone.
DRAW_SECONDS, FIGURES_SECONDS = 0.5, 5.0


class Display(Protocol):
    """A place where a job is shown."""

    def job(self, job: Snapshot) -> None:
        """Show the job as it is now."""

    def line(self, line: LogLine) -> None:
        """Show a line of rank 0."""

    def note(self, *lines: str) -> None:
        """Show lines of ddpjob itself. They may quote anybody, so they are made printable."""

    def draw(self, *, at_once: bool = False) -> None:
        """Show what has changed, unless it was just drawn."""


def display(job: Snapshot) -> Display:
    """Return the display that fits the place where this program runs."""
    return NotebookDisplay(job) if is_notebook() else PlainDisplay()


def is_notebook() -> bool:
    """Return whether a Jupyter kernel runs this program."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookDisplay:
    """An output of a cell that changes as the job does: HTML, without a widget."""

    def __init__(self, job: Snapshot) -> None:
        self._job, self._lines, self._notes = job, deque[str](maxlen=LINES), list[str]()
        self._handle: Any = None
        self._drawn_at = 0.0

    def job(self, job: Snapshot) -> None:
        """Show the job at the next drawing."""
        self._job = job

    def line(self, line: LogLine) -> None:
        """Show the line at the next drawing."""
        self._lines.append(line.text)

    def note(self, *lines: str) -> None:
        """Show the lines below the others at the next drawing."""
        self._notes = [*self._notes, *map(printable, lines)][-NOTES:]

    def draw(self, *, at_once: bool = False) -> None:
        """Show what has changed, unless it was just drawn."""
        from IPython import display as shell

        now = time.monotonic()
        if not at_once and now < self._drawn_at + DRAW_SECONDS:
            return
        self._drawn_at = now
        notes = "\n".join(self._notes)
        content: Any = shell.HTML(live(self._job, list(self._lines), notes))  # type: ignore[no-untyped-call]
        if self._handle is None:
            show: Any = shell.display
            self._handle = show(content, display_id=True)
        else:
            self._handle.update(content)


class PlainDisplay:
    """Lines: those of rank 0 to standard output, those about the job to standard error."""

    def __init__(self) -> None:
        self._last: tuple[str, ...] = ()
        self._printed_at = 0.0

    def job(self, job: Snapshot) -> None:
        """Print a line if the state has changed; for new figures alone, not too often."""
        figures, now = figures_of(job), time.monotonic()
        step = (job.state, figures["nodes"], figures["restarts"], job.reason)
        if step == self._last and now < self._printed_at + FIGURES_SECONDS:
            return
        self._last, self._printed_at = step, now
        texts = [f"{name} {text}" for name, text in figures.items() if text not in ("-", "0")]
        self.note("  ".join(filter(None, [job.name, job.state, *texts, job.reason])))

    def line(self, line: LogLine) -> None:
        """Print the line, with the attempt and the rank that it comes from."""
        print(f"{line.place} | {shown(line.text)}", flush=True)

    def note(self, *lines: str) -> None:
        """Print the lines at once."""
        for line in lines:
            print(printable(line), file=sys.stderr, flush=True)

    def draw(self, *, at_once: bool = False) -> None:
        """Do nothing: all is printed as it comes."""
