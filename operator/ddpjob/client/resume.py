"""Goes on in a log whose stream was cut: no line lost, none twice. No I/O.

A log can be asked for from a second on. A log grows at its end alone, so the same request gives the
same lines again, and then the new ones: all is skipped up to the line that was given last. Lines
may be equal, in time and text, so they are counted.

Lines are a little out of order, since a container's stdout and stderr are read by two threads. And
the line that was given last may be missing, because the kubelet has rotated the log.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ddpjob.times import unix_seconds

# Bytes of a line with its time. A longer one is cut here.
MAX_LINE = 2**20
# Seconds before the newest time from which the log is asked for again. Lines are less out of order.
MARGIN = 2


class Line(NamedTuple):
    """A line as the kubelet sends it."""

    time: str
    """The kubelet's time of the line; empty for the kubelet's own words, which have none."""
    seconds: float
    """The time in Unix seconds."""
    text: bytes
    """The text without its line end. It may be anything."""


class Splitter:
    """Splits the chunks of one stream into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that are whole now."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[:MAX_LINE]
        return [_read(line) for line in lines]

    def end(self) -> list[Line]:
        """Return the line without an end with which the log stops, if there is one."""
        rest, self._rest = self._rest, b""
        return [_read(rest)] if rest else []


def _read(line: bytes) -> Line:
    before, _, text = line[:MAX_LINE].partition(b" ")
    time = before.decode(errors="replace")
    seconds = unix_seconds(time)
    return Line("", 0.0, line[:MAX_LINE]) if seconds is None else Line(time, seconds, text)


class Resume:
    """What was given of one container's log."""

    def __init__(self) -> None:
        self.since: int | None = None
        """The Unix second from which to ask; None for the whole log."""
        self.last: Line | None = None
        """The line that was given last."""
        self.gap = False
        """Whether lines are missing that the kubelet does not have any more."""
        self._given = Counter[Line]()  # from `since` on
        self._newest = 0.0
        # What the present stream has to bring again before its lines are new.
        self._again = Counter[Line]()
        self._held: list[Line] = []

    def restart(self) -> None:
        """Begin a new stream, of the log from `since` on."""
        self._again = self._given.copy()
        self._held = []

    def take(self, lines: Iterable[Line]) -> list[Line]:
        """Return the lines that are new, now that the stream has brought these."""
        found: list[Line] = []
        for line in lines:
            if not self._again:
                self._give(line)
                found.append(line)
            elif self._again[line]:
                self._skip(line)
            else:  # new, or before the first line that was asked for
                self._held.append(line)
                if line.seconds > self._newest + MARGIN:
                    found += self.end()
        return found

    def end(self) -> list[Line]:
        """Return the lines that were held back: the stream does not have what was given last."""
        found, self._held = self._held, []
        self.gap |= bool(self._again)
        self._again.clear()
        for line in found:
            self._give(line)
        return found

    def _skip(self, line: Line) -> None:
        self._again[line] -= 1
        if line == self.last and not self._again[line]:
            self._again.clear()
            self._held = []

    def _give(self, line: Line) -> None:
        self.last = line
        self._given[line] += 1
        self._newest = max(self._newest, line.seconds)
        since = int(line.seconds) - MARGIN
        if self.since is None or since > self.since:
            self.since = since
            kept = {old: count for old, count in self._given.items() if old.seconds >= since}
            self._given = Counter(kept)
        elif line.seconds < self.since:
            self.since = since  # the node's clock was put back
