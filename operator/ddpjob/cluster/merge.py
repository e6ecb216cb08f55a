"""Reads several logs at once, and puts their lines into the order of their times.

A line goes out when no log can bring an earlier one: each of them has a later line, has ended, or
has been quiet for a while. Nodes' clocks differ, so the order is as good as they are.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from ddpjob.cluster.threads import Pipe

Line = TypeVar("Line")

# Seconds after which nobody waits for a log that has no line.
QUIET = 0.3
# Batches of one log that wait; then its reader waits. And lines that go out at once.
FULL, MOST = 16, 2000


class _Source(Generic[Line]):
    """One log: its lines that wait, and the pipe through which more come."""

    def __init__(
        self, batches: Callable[[], Iterator[list[tuple[float, Line]]]], on_news: Callable[[], None]
    ) -> None:
        self.pipe = Pipe[list[tuple[float, Line]]](on_news, most=FULL)
        self.pipe.read(batches)
        self.lines = deque[tuple[float, Line]]()
        self.is_open = True
        self.emptied_at = time.monotonic()

    def fill(self) -> bool:
        """Return whether a line waits. Raises what the reader has raised."""
        while not self.lines and self.is_open:
            found = self.pipe.take(0)
            self.is_open = found is not None
            if not found:
                break
            for batch in found:
                self.lines.extend(batch)
        return bool(self.lines)


class Merge(Generic[Line]):
    """The lines of several logs, each of which a thread reads. `quiet` is in seconds."""

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._sources: list[_Source[Line]] = []
        self.has_news = threading.Event()
        """Set when there may be something to take."""

    @property
    def is_over(self) -> bool:
        """Return whether all logs have ended, and all their lines are out."""
        return not any(source.is_open or source.lines for source in self._sources)

    def read(self, batches: Callable[[], Iterator[list[tuple[float, Line]]]]) -> None:
        """Read a log too: `batches` returns its lines, each with its time."""
        self._sources.append(_Source(batches, self.has_news.set))

    def take(self) -> list[Line]:
        """Return lines that go out now, in their order. Raises what a reader has raised."""
        now = time.monotonic()
        heads = [(s.lines[0][0], number) for number, s in enumerate(self._sources) if s.fill()]
        heapify(heads)
        is_awaited = any(
            source.is_open and not source.lines and now - source.emptied_at < self._quiet
            for source in self._sources
        )
        found: list[Line] = []
        while heads and not is_awaited and len(found) < MOST:
            _, number = heappop(heads)
            source = self._sources[number]
            found.append(source.lines.popleft()[1])
            if source.fill():
                heappush(heads, (source.lines[0][0], number))
            elif source.is_open:
                source.emptied_at = now
                is_awaited = True
        return found

    def close(self) -> None:
        """Let the threads end."""
        for source in self._sources:
            source.pipe.close()
