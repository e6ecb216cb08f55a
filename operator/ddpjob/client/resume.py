"""Goes on in a log whose stream was cut: no piece lost, none twice. No I/O.

A log can be asked for from a second on, and a second may have thousands of lines, several of them
with one time. So what was taken of the last seconds is remembered. The same request gives the same
pieces again, and then the new ones, because a log grows at its end alone. What is remembered is
found in the new stream, and skipped.

Three things make that less simple. Lines are a little out of order, since a container's stdout and
stderr are read by two threads. The new stream may begin before what is remembered: with the rest of
a line that was cut in two, or because the first request was for the last lines only. And it may
begin amid what is remembered, or after it, because the kubelet has rotated the log.
"""

import re
from collections import deque
from datetime import datetime

from ddpjob.client.pieces import Piece

# Seconds before the newest time from which the log is asked for again. Lines are less out of order.
MARGIN = 2
# Bytes of a new stream that are kept while it is not known where it goes on.
MAX_HELD = 4 * 2**20
_TIME = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.]([0-9]{1,9}))?"
    rb"(Z|[-+][0-9]{2}:[0-9]{2})"
)

# Second and nanoseconds.
Moment = tuple[int, bytes]
Key = tuple[int, int]


class Resume:
    """What was taken of one container's log."""

    def __init__(self) -> None:
        self.since: int | None = None
        """The Unix second from which to ask; None for the whole log."""
        self.gap = False
        """Whether lines are missing that the kubelet does not have any more."""
        # Second and hash of all that was taken from `since` on, in the log's order.
        self._taken: list[Key] = []
        self._newest: Moment = (0, b"")
        self._clock = Clock()
        self._is_aligned = True
        # Where in `_taken` the next piece may be, in a stream that is not aligned.
        self._places: list[int] = []
        self._index: dict[Key, list[int]] = {}
        self._held: deque[Piece] = deque()
        self._size = 0
        # Later pieces of earlier streams, which were cut before it was known where they go on.
        self._doubtful: dict[Key, Piece] = {}

    def restart(self) -> None:
        """Begin a new stream, of the log from `since` on."""
        for piece in self._held:
            if (moment := self._clock.moment(piece.time)) > self._newest:
                self._doubtful[_key(piece, moment)] = piece
        self._is_aligned = not self._taken
        self._places, self._index = [], {}
        self._drop()
        for place, key in enumerate(self._taken):
            self._index.setdefault(key, []).append(place)

    def take(self, piece: Piece) -> list[Piece]:
        """Return the pieces that are new, now that the stream has brought this one."""
        moment = self._clock.moment(piece.time)
        if self._is_aligned:
            self._remember(piece, moment)
            return [piece]
        key = _key(piece, moment)
        if self._places:
            is_later = (moment[0] - MARGIN, moment[1]) > self._newest
            return self._match(piece, key, is_later=is_later)
        self._places = [place + 1 for place in self._index.get(key, ())]
        if self._places:  # all before it is older
            self._drop()
            if self._places == [len(self._taken)]:
                self._align()
            return []
        self._hold(piece)
        is_newer = moment > self._newest
        if (moment[0] - MARGIN, moment[1]) > self._newest or is_newer and self._size > MAX_HELD:
            self.gap = True
            return self.settle()
        return []

    def settle(self) -> list[Piece]:
        """Return the pieces that were held back: nothing that was taken before comes any more."""
        held = {_key(piece, self._clock.moment(piece.time)): piece for piece in self._held}
        found = [piece for key, piece in self._doubtful.items() if key not in held]
        found += self._held
        self._align()
        for piece in found:
            self._remember(piece, self._clock.moment(piece.time))
        return found

    def _match(self, piece: Piece, key: Key, *, is_later: bool) -> list[Piece]:
        """Return the pieces that are new, in a stream that has reached what was taken.

        Where lines are equal, in time and text, there is more than one such place. The one that
        skips most is tried to its end.
        """
        size = len(self._taken)
        ended = size in self._places
        places = [place + 1 for place in self._places if self._taken[place : place + 1] == [key]]
        if not (places or ended or is_later):
            return []  # the rest of a line that was cut in two, a little out of order
        if ended or not places:
            self._hold(piece)
        if not places:  # it goes on after the shorter match, if there was one
            self.gap |= not ended
            return self.settle()
        self._places = places
        if places == [size]:
            self._align()
        return []

    def _align(self) -> None:
        """Take all that comes for new."""
        self._is_aligned, self._index, self._doubtful = True, {}, {}
        self._drop()

    def _drop(self) -> None:
        self._held.clear()
        self._size = 0

    def _hold(self, piece: Piece) -> None:
        self._held.append(piece)
        self._size += len(piece.text)
        while self._size > 2 * MAX_HELD and len(self._held) > 1:
            self._size -= len(self._held.popleft().text)

    def _remember(self, piece: Piece, moment: Moment) -> None:
        second = moment[0]
        if self.since is not None and second < self.since:
            self.since = second  # the node's clock was put back
        self._taken.append(_key(piece, moment))
        self._newest = max(self._newest, moment)
        if self.since is None or second - MARGIN > self.since:
            self.since = second - MARGIN
            self._taken = [key for key in self._taken if key[0] >= self.since]


def _key(piece: Piece, moment: Moment) -> Key:
    return moment[0], hash((piece.time, piece.text, piece.number))


class Clock:
    """Reads times, of which many in a row have the same second."""

    def __init__(self) -> None:
        self._text, self._second = (b"", b""), 0

    def moment(self, time: bytes) -> Moment:
        """Return a time as second and nanoseconds. A text that is no time is before all times."""
        found = _TIME.fullmatch(time)
        if not found:
            return 0, b""
        second, nanoseconds, zone = found.groups(b"")
        if (second, zone) != self._text:
            try:
                moment = datetime.fromisoformat((second + zone).decode())
                self._text, self._second = (second, zone), int(moment.timestamp())
            except (ValueError, OverflowError):  # month 13
                return 0, b""
        return self._second, nanoseconds.ljust(9, b"0")
