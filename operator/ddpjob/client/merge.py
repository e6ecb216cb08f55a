"""Puts the lines of several logs into the order of their times, in bounded memory. No I/O.

A line goes out when no log can bring an earlier one: each of them has a later line, has ended, or
has been quiet for a while. Nodes' clocks differ, so the order is as good as they are.
"""

import math
from collections import deque
from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Line = TypeVar("Line")

# Seconds after which nobody waits for a log that brings nothing.
QUIET = 0.3
# Bytes that wait, of all logs together. Then their readers should wait too.
FULL = 16 * 2**20
# What a line takes beside its text.
LINE_BYTES = 300


class Timed(NamedTuple, Generic[Line]):
    """A line, what it is sorted by, and its bytes."""

    time: tuple[int, bytes]
    size: int
    line: Line


class Merge(Generic[Line]):
    """The lines that have come from several logs, and have not gone out."""

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._waiting: dict[Hashable, deque[Timed[Line]]] = {}
        self._brought: dict[Hashable, float] = {}
        # The logs that have a line, by its time. The number decides between equal times.
        self._heads: list[tuple[tuple[int, bytes], int, Hashable]] = []
        self._numbers: dict[Hashable, int] = {}
        self._size = 0

    @property
    def is_empty(self) -> bool:
        """Return whether no line waits."""
        return not self._heads

    def open(self, log: Hashable, now: float) -> None:
        """Wait for the lines of this log too."""
        self._waiting.setdefault(log, deque())
        self._numbers.setdefault(log, len(self._numbers))
        self._brought[log] = now

    def close(self, log: Hashable) -> None:
        """Wait for no further line of this log. Those that it has brought stay."""
        self._brought.pop(log, None)

    def has_room(self, log: Hashable) -> bool:
        """Return whether lines of this log may be put. A log that all others wait for has room."""
        return self._size < FULL or not self._waiting[log]

    def hold(self, log: Hashable) -> None:
        """Wait for this log as long as it takes: it has more lines, and no room for them yet."""
        self._brought[log] = math.inf

    def put(self, log: Hashable, lines: Iterable[Timed[Line]], now: float) -> None:
        """Add lines, in the order of the log."""
        waiting = self._waiting[log]
        was_empty = not waiting
        for line in lines:
            waiting.append(line)
            self._size += line.size + LINE_BYTES
        self._brought[log] = now
        if was_empty and waiting:
            heappush(self._heads, (waiting[0].time, self._numbers[log], log))

    def take(self, now: float) -> list[Line]:
        """Return the lines that go out now, in their order."""
        found: list[Line] = []
        awaited = sum(self._is_awaited(log, now) for log in self._brought)
        while self._heads and not awaited:
            _, number, log = heappop(self._heads)
            waiting = self._waiting[log]
            line = waiting.popleft()
            self._size -= line.size + LINE_BYTES
            found.append(line.line)
            if waiting:
                heappush(self._heads, (waiting[0].time, number, log))
            else:
                awaited += log in self._brought and self._is_awaited(log, now)
        return found

    def _is_awaited(self, log: Hashable, now: float) -> bool:
        return not self._waiting[log] and now - self._brought[log] < self._quiet
