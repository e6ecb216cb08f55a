"""Follows a job for people: its state and the lines of its rank 0, until it is finished.

A thread reads each of the two. Ctrl-C, or a notebook's interrupt, ends the looking on alone.
"""

import math
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from ddpjob.client.logs import LogLine
from ddpjob.client.snapshot import Snapshot
from ddpjob.client.threads import Pipe
from ddpjob.client.why import REFUSED_SECONDS
from ddpjob.errors import JobRefused, JobTimeout

if TYPE_CHECKING:
    from ddpjob.client.display import Display

# A text is a line of ddpjob itself.
News: TypeAlias = Snapshot | LogLine | str
# Seconds between two looks, and for which lines may follow the job's end.
LOOK_SECONDS, LAST_SECONDS = 0.5, 15.0


class Followed(Snapshot, ABC):
    """A job that `follow` can show: in a cluster, or here."""

    @abstractmethod
    def refresh(self) -> "Followed":
        """Read the job again."""

    @abstractmethod
    def news(self) -> AbstractContextManager[Pipe[News]]:
        """Return a pipe of what happens to the job: snapshots of it, and lines of its rank 0."""

    @abstractmethod
    def ways_back(self) -> list[str]:
        """Return lines that say how to come back to the job."""


def follow(job: Followed, timeout: float | None, shown: "Display | None" = None) -> None:
    """Show the job until it is finished.

    Raises JobTimeout, JobRefused and NotFound. An interrupt says how to come back; only outside of
    notebooks is it raised, to end the program.
    """
    from ddpjob.client.display import display, is_notebook  # `ddpjob get` shows no job

    deadline = None if timeout is None else time.monotonic() + timeout
    shown = shown or display(job)
    shown.job(job)
    try:
        with job.news() as pipe:
            is_late = _show(job, pipe, shown, deadline)
        job.refresh()
    except KeyboardInterrupt:
        shown.note(*job.ways_back())
        if not is_notebook():
            raise
        return
    finally:
        shown.draw(at_once=True)
    if is_late:
        raise JobTimeout(job, f"{job.name} is {job.state} after {timeout:g} s, not finished")


def _show(last: Snapshot, pipe: Pipe[News], shown: "Display", deadline: float | None) -> bool:
    """Show what comes until the job is finished, and return whether `deadline` was before that.

    `last` is the job as it was before.
    """
    ended_at: float | None = None
    refused_at = math.inf
    while (items := pipe.take(LOOK_SECONDS)) is not None:
        now = time.monotonic()
        for item in items:
            if isinstance(item, LogLine):
                shown.line(item)
            elif isinstance(item, Snapshot):
                last = item
                shown.job(last)
            else:
                shown.note(item)
        shown.draw()
        refused_at = min(refused_at, now) if last.refusal else math.inf
        if now >= refused_at + REFUSED_SECONDS:
            raise JobRefused(last)
        if last.is_finished:
            ended_at = now if ended_at is None or items else ended_at
            if now > ended_at + LAST_SECONDS:
                break
        elif deadline is not None and now >= deadline:
            return True
    return False
