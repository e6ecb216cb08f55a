"""Puts the lines of several logs into the order of their times. No I/O.

A line goes out when no log can bring an earlier one: each of them has a later line, has ended, or
has been quiet for a while. Nodes' clocks differ, so the order is as good as they are.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Line = TypeVar("Line")

# Seconds after which nobody waits for a log that has no line.
QUIET = 0.3
# Lines of one log that wait. Then its reader should wait too.
FULL = 2000


class Merge(Generic[Line]):
    """The lines that have come from several logs, and have not gone out."""

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        # By the number of the log. A line comes with its time.
        self._waiting: list[deque[tuple[float, Line | None]]] = []
        # Since when the logs that are open have no line; of no meaning while they have one.
        self._emptied: dict[int, float] = {}
        # The logs that have a line, by its time.
        self._heads: list[tuple[float, int]] = []

    @property
    def is_empty(self) -> bool:
        """Return whether no line waits."""
        return not self._heads

    def open(self, now: float) -> int:
        """Return the number of a new log, whose lines are waited for too."""
        number = len(self._waiting)
        self._waiting.append(deque())
        self._emptied[number] = now
        return number

    def close(self, log: int) -> None:
        """Wait for no further line of this log. Those that it has put stay."""
        self._emptied.pop(log, None)

    def is_full(self, log: int) -> bool:
        """Return whether many lines of this log wait."""
        return len(self._waiting[log]) >= FULL

    def put(self, log: int, lines: Iterable[tuple[float, Line | None]]) -> None:
        """Add lines with their times, in the order of the log.

        None stands for a line that nobody wants, and says how far the log is.
        """
        waiting = self._waiting[log]
        was_empty = not waiting
        waiting.extend(lines)
        if was_empty and waiting:
            heappush(self._heads, (waiting[0][0], log))

    def take(self, now: float) -> list[Line]:
        """Return the lines that go out now, in their order."""
        found: list[Line] = []
        awaited = any(
            not self._waiting[log] and now - since < self._quiet
            for log, since in self._emptied.items()
        )
        while self._heads and not awaited:
            _, log = heappop(self._heads)
            waiting = self._waiting[log]
            _, line = waiting.popleft()
            if line is not None:
                found.append(line)
            if waiting:
                heappush(self._heads, (waiting[0][0], log))
            elif log in self._emptied:
                self._emptied[log] = now  # its reader may have waited for room
                awaited = True
        return found
