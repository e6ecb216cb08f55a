"""Takes the stream of a pod's log apart, in bounded memory. No I/O.

The kubelet writes a time before each line. A line may be 300 MB long, or never end, so a long line
comes in pieces of one size. The same log gives the same pieces, however its stream is cut into
chunks: that is how `resume` finds its place again.
"""

from typing import NamedTuple

# Bytes of a piece. Nearly every line is shorter, and so is one piece.
PIECE = 64 * 1024
# Characters of a time, such as 2026-11-24T20:00:00.123456789Z or …+02:00.
_SHORTEST, _LONGEST = 20, 40


class Piece(NamedTuple):
    """A line, or a part of a long one."""

    time: bytes
    """The kubelet's time of the line; empty for the kubelet's own words, which have none."""
    text: bytes
    """The text without its line end. It may be anything."""
    number: int
    """The number of the piece in its line, from 0."""
    is_last: bool
    """Whether the line ends with this piece."""


class Splitter:
    """Splits the chunks of one stream into pieces."""

    def __init__(self, size: int = PIECE) -> None:
        self._size = size
        # What has come of the present piece; with the line's time, while that is not whole.
        self._buffer = bytearray()
        self._time: bytes | None = None
        self._number = 0

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return the pieces that are whole now."""
        found: list[Piece] = []
        first, *lines = chunk.split(b"\n")
        self._grow(first, found)
        if not lines:
            return found
        self._finish(found)
        *lines, rest = lines
        for line in lines:
            time, text = _cut(line)
            if len(text) <= self._size:
                found.append(Piece(time, text, 0, True))
            else:
                self._grow(line, found)
                self._finish(found)
        self._grow(rest, found)
        return found

    def end(self) -> list[Piece]:
        """Return the line without an end with which the log stops, if there is one."""
        found: list[Piece] = []
        if self._buffer or self._time is not None:
            self._finish(found)
        return found

    def _grow(self, part: bytes, found: list[Piece]) -> None:
        """Take more of the present line."""
        self._buffer += part
        if self._time is None and len(self._buffer) > _LONGEST:
            self._open()
        while self._time is not None and len(self._buffer) > self._size:
            text = bytes(self._buffer[: self._size])
            found.append(Piece(self._time, text, self._number, False))
            self._number += 1
            del self._buffer[: self._size]

    def _finish(self, found: list[Piece]) -> None:
        """End the present line."""
        if self._time is None:
            self._open()
            self._grow(b"", found)
        found.append(Piece(self._time or b"", bytes(self._buffer), self._number, True))
        self._buffer, self._time, self._number = bytearray(), None, 0

    def _open(self) -> None:
        """Separate the time from the text."""
        self._time, text = _cut(bytes(self._buffer))
        self._buffer = bytearray(text)


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Return the time and the text of a line; without a time, nothing and the line."""
    time, space, text = line.partition(b" ")
    is_time = space and _SHORTEST <= len(time) <= _LONGEST and time[4:5] == b"-" == time[7:8]
    return (time, text) if is_time and time[10:11] == b"T" else (b"", line)
