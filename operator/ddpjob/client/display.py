"""Shows a job until it is finished: one display that changes in a notebook, lines elsewhere.

Threads read the job's state and the lines of its rank 0. Ctrl-C, or a notebook's interrupt, ends
the looking on alone.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from html import escape
from typing import Any, Protocol, TypeAlias

from ddpjob import why
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.logs import LogLine
from ddpjob.cluster.threads import Pipe
from ddpjob.errors import JobRefused, JobTimeout
from ddpjob.plot import points_of, svg
from ddpjob.text import printable
from ddpjob.times import duration
from ddpjob.why import REFUSED_SECONDS

# A text is a line of ddpjob itself.
News: TypeAlias = Snapshot | LogLine | str
# Seconds between two looks, and for which lines may follow the job's end. Logs of pods that are
# kept have no end.
LOOK_SECONDS, LAST_SECONDS, KEPT_SECONDS = 0.5, 15.0, 0.5
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
        """Show what has changed, unless it was just drawn, where it is not shown as it comes."""
        return None


def follow(
    job: Snapshot,
    news: AbstractContextManager[Pipe[News]],
    ways_back: Callable[[], list[str]],
    timeout: float | None,
    to: Display | None = None,
) -> None:
    """Show the job until it has ended; `news` brings it up to date in the end.

    Raises JobTimeout, JobRefused and NotFound. An interrupt says how to come back; only outside of
    notebooks is it raised, to end the program.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    to = to or (NotebookDisplay(job) if is_notebook() else PlainDisplay())
    to.job(job)
    try:
        with news as pipe:
            is_late = _show(job, pipe, to, deadline)
    except KeyboardInterrupt:
        to.note(*ways_back())
        if not is_notebook():
            raise
        return
    finally:
        to.draw(at_once=True)
    if is_late:
        raise JobTimeout(job, f"{job.name} is {job.state} after {timeout:g} s, not finished")


def _show(last: Snapshot, pipe: Pipe[News], to: Display, deadline: float | None) -> bool:
    """Show what comes until the job has ended, and return whether `deadline` was before that.

    `last` is the job as it was before.
    """
    ended_at: float | None = None
    refused_at = math.inf
    while (items := pipe.take(LOOK_SECONDS)) is not None:
        now = time.monotonic()
        for item in items:
            if isinstance(item, LogLine):
                to.line(item)
            elif isinstance(item, Snapshot):
                last = item
                to.job(last)
            else:
                to.note(item)
        to.draw()
        refused_at = min(refused_at, now) if last.refusal else math.inf
        if now >= refused_at + REFUSED_SECONDS:
            raise JobRefused(last)
        if last.has_ended:
            ended_at = now if ended_at is None or items else ended_at
            if now > ended_at + (LAST_SECONDS if last.is_finished else KEPT_SECONDS):
                break
        elif deadline is not None and now >= deadline:
            return True
    return False


def is_notebook() -> bool:
    """Return whether a Jupyter kernel runs this program."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookDisplay(Display):
    """An output of a cell that changes as the job does: HTML, without a widget."""

    def __init__(self, job: Snapshot) -> None:
        self._job = job
        self._lines, self._notes = deque[str](maxlen=LINES), deque[str](maxlen=NOTES)
        self._handle: Any = None
        self._drawn_at = 0.0

    def job(self, job: Snapshot) -> None:
        """Show the job at the next drawing."""
        self._job = job

    def line(self, line: LogLine) -> None:
        """Show the line at the next drawing."""
        self._lines.append(line.shown(MAX_LINE))

    def note(self, *lines: str) -> None:
        """Show the lines below the others at the next drawing."""
        self._notes.extend(map(printable, lines))

    def draw(self, *, at_once: bool = False) -> None:
        """Show what has changed, unless it was just drawn."""
        from IPython import display as shell

        now = time.monotonic()
        if not at_once and now < self._drawn_at + DRAW_SECONDS:
            return
        self._drawn_at = now
        text = live(self._job, list(self._lines), "\n".join(self._notes))
        content: Any = shell.HTML(text)  # type: ignore[no-untyped-call]
        if self._handle is None:
            show: Any = shell.display
            self._handle = show(content, display_id=True)
        else:
            self._handle.update(content)


class PlainDisplay(Display):
    """Lines: those of rank 0 to standard output, those about the job to standard error."""

    # The states whose reason is shown; None for all.
    explained: tuple[str, ...] | None = None

    def __init__(self) -> None:
        self._last: tuple[str, ...] = ()
        self._printed_at = 0.0

    def job(self, job: Snapshot) -> None:
        """Print a line if the state has changed; for new figures alone, not too often."""
        figures, now = figures_of(job), time.monotonic()
        reason = job.reason if self.explained is None or job.state in self.explained else ""
        step = (job.state, figures["nodes"], figures["restarts"], reason)
        if step == self._last and now < self._printed_at + FIGURES_SECONDS:
            return
        self._last, self._printed_at = step, now
        texts = [f"{name} {text}" for name, text in figures.items() if text != "-"]
        self.note("  ".join(filter(None, [job.name, job.state, *texts, reason])))

    def line(self, line: LogLine) -> None:
        """Print the line, with the attempt and the rank that it comes from."""
        print(f"{line.place} | {printable(line.shown(MAX_LINE))}", flush=True)

    def note(self, *lines: str) -> None:
        """Print the lines at once."""
        for line in lines:
            print(printable(line), file=sys.stderr, flush=True)


COLUMNS = ("NAME", "STATE", "NODES", "STEP", "LOSS", "ETA", "RESTARTS", "AGE", "REASON")
# Rows of a table, and bytes of a line of a log.
MAX_ROWS, MAX_LINE = 200, 240
_COLOURS = {"Running": "#15803d", "Succeeded": "#15803d", "Failed": "#b91c1c"}
_COLOURS |= dict.fromkeys(("Restarting", "Idle"), "#b45309")
_STYLE = "font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def table(jobs: Sequence[Snapshot], now: float) -> str:
    """Return a table of the jobs, with the columns of `ddpjob get`."""
    heads = "".join(f'<th style="text-align: left">{name}</th>' for name in COLUMNS)
    rows = [_row(job, now) for job in jobs[:MAX_ROWS]]
    text = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    if len(jobs) > MAX_ROWS:
        text += f"<p>and {len(jobs) - MAX_ROWS} more</p>"
    return text if jobs else "<p>no jobs</p>"


def live(job: Snapshot, lines: Sequence[str], note: str = "") -> str:
    """Return one job as it is now: state, bar, loss curve and the last lines of its rank 0."""
    figures = [f"{name} {text}" for name, text in figures_of(job).items() if text not in ("-", "0")]
    head = f"<b>{escape(job.name)}</b> {_state(job)} {escape('  '.join(figures))}"
    parts = [f"<div>{head}</div>", _bar(job)]
    parts += [f"<div>{escape(job.reason)}</div>"] if job.reason else []
    found = points_of(job.body.get("status") or {})
    if len(found.points) > 1:
        parts.append(f'<div style="max-width: 480px">{svg(found, job.name)}</div>')
    if lines:
        text = "\n".join(escape(printable(line)) for line in lines)
        parts.append(f'<pre style="margin: 4px 0; opacity: 0.8">{text}</pre>')
    parts += [f'<pre style="margin: 4px 0">{escape(note)}</pre>'] if note else []
    return f'<div style="{_STYLE}; font-size: 13px; line-height: 1.5">{"".join(parts)}</div>'


def figures_of(job: Snapshot) -> dict[str, str]:
    """Return what `kubectl get` shows of the job, by column; `-` where there is nothing."""
    names = ("nodes", "step", "loss", "eta")
    found = {name: why.text(job.body, "status", "summary", name, limit=64) for name in names}
    found["restarts"] = str(why.number(job.body, "status", "restarts") or 0)
    return {name: text or "-" for name, text in found.items()}


def _row(job: Snapshot, now: float) -> str:
    age = "-" if job.created is None else duration(max(0.0, now - job.created))
    cells = [escape(job.name), _state(job), *map(escape, figures_of(job).values())]
    cells += [age, escape(job.reason)]
    text = "".join(f'<td style="text-align: left">{cell}</td>' for cell in cells)
    return f"<tr>{text}</tr>"


def _state(job: Snapshot) -> str:
    colour = _COLOURS.get(job.state, "inherit")
    return f'<span style="color: {colour}">{escape(job.state)}</span>'


def _bar(job: Snapshot) -> str:
    """Return a bar of the part of the steps that is done, if their number is known."""
    percent = why.number(job.body, "status", "progress", "percent")
    if percent is None:
        return ""
    outer = "width: 480px; max-width: 100%; height: 6px; background: #8884; margin: 4px 0"
    inner = f"width: {percent}%; height: 6px; background: #2563eb"
    return f'<div style="{outer}"><div style="{inner}"></div></div>'
