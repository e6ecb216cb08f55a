"""Goes on in a log whose stream was cut: no line lost, none twice. No I/O.

A log can be asked for from a second on. It grows at its end alone, so the same request gives the
same lines again, and then the new ones: all is skipped up to the line that was given last. Lines
may be equal, in time and text, so they are counted.
"""

from collections import Counter
from typing import NamedTuple

from ddpjob.times import unix_seconds

# Bytes of a line with its time. A longer one is cut here.
MAX_LINE = 2**20
# Seconds before the last line from which the log is asked for again: a container's stdout and
# stderr are read by two threads, so their lines are a little out of order.
MARGIN = 2


class Line(NamedTuple):
    """A line as the kubelet sends it."""

    time: str
    """The kubelet's time of the line; empty for the kubelet's own words, which have none."""
    seconds: float
    """The time in Unix seconds."""
    text: bytes
    """The text without its line end. It may be anything."""


class Resume:
    """What was given of one container's log."""

    def __init__(self) -> None:
        self.last: Line | None = None
        """The line that was given last."""
        self.has_gap = False
        """Whether lines are missing that the kubelet does not have any more."""
        self._given = Counter[Line]()  # of the last seconds
        self._newest = 0.0
        # How often the stream has the last line before what is new. Until then, others are held.
        self._again = 0
        self._held: list[Line] = []
        self._rest = b""

    @property
    def since(self) -> int | None:
        """Return the Unix second from which to ask; None for the whole log."""
        return None if self.last is None else int(self.last.seconds) - MARGIN

    def restart(self) -> None:
        """Begin a new stream, of the log from `since` on."""
        self._again = self._given[self.last] if self.last else 0
        self._held, self._rest = [], b""

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that are known to be whole and new, now that this has come."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[:MAX_LINE]
        return [new for line in lines for new in self._take(_read(line))]

    def end(self) -> list[Line]:
        """Return what is left at the log's end: a line without an end, and those held back."""
        return (self.feed(b"\n") if self._rest else []) + self._release()

    def _take(self, line: Line) -> list[Line]:
        if not line.time:
            return [line]
        # One that is so much newer comes after the last one, which the kubelet has rotated away.
        if self._again and line.seconds <= self._newest + MARGIN:
            if line == self.last:
                self._again -= 1
            elif line not in self._given:
                self._held.append(line)
            return []
        found = [*self._release(), line]
        self._give(line)
        return found

    def _release(self) -> list[Line]:
        """Return the lines held back, if the stream does not have the last one."""
        found = self._held if self._again else []
        self.has_gap |= self._again > 0
        self._again, self._held = 0, []
        for line in found:
            self._give(line)
        return found

    def _give(self, line: Line) -> None:
        if self.last and int(line.seconds) != int(self.last.seconds):
            begin = line.seconds - MARGIN
            kept = {old: count for old, count in self._given.items() if old.seconds >= begin}
            self._given = Counter(kept)
        self._given[line] += 1
        self.last = line
        self._newest = max(self._newest, line.seconds)


def _read(line: bytes) -> Line:
    before, _, text = line[:MAX_LINE].partition(b" ")
    time = before.decode(errors="replace")
    seconds = unix_seconds(time)
    return Line("", 0.0, line[:MAX_LINE]) if seconds is None else Line(time, seconds, text)
