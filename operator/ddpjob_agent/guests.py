"""Bounds what connections take that have not shown a token: anybody may open them.

Their memory counts as the training's.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from contextlib import suppress
from typing import Any

# Of a request: its head, and its time. Nobody who has something to ask needs more.
HEAD_BYTES, REQUEST_SECONDS = 8 * 1024, 5.0
# So many are there at a time. The next one waits until the oldest has had a second, which it loses
# then: all members of a large group may come at once, but each sends its request at once too.
MOST_GUESTS, GUEST_SECONDS = 128, 1.0


class Guests:
    """The connections of one server, from their arrival to their end or their token."""

    def __init__(self) -> None:
        self.arrivals: dict[socket.socket, float] = {}  # the oldest first
        self.changed = threading.Condition()

    def arrive(self, guest: socket.socket) -> None:
        """Wait for room, and make it."""
        with self.changed:
            while len(self.arrivals) >= MOST_GUESTS:
                oldest, at = next(iter(self.arrivals.items()))
                seconds = at + GUEST_SECONDS - time.monotonic()
                if seconds > 0:
                    self.changed.wait(seconds)
                else:
                    del self.arrivals[oldest]
                    with suppress(OSError):  # it may just have ended by itself
                        oldest.shutdown(socket.SHUT_RDWR)
            self.arrivals[guest] = time.monotonic()

    def leave(self, guest: socket.socket) -> None:
        """Count a connection no more."""
        with self.changed:
            if self.arrivals.pop(guest, None) is not None:
                self.changed.notify()


class Request(io.RawIOBase):
    """A request as it comes in: so many bytes, all of them within so many seconds."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.left = HEAD_BYTES  # bytes that may still come; whoever wants a body adds it
        self.deadline = time.monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, room: Any) -> int:
        """Read into `room`. Raises TimeoutError where it is too slow, or too long."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0 or self.left <= 0:
            raise TimeoutError
        self.connection.settimeout(seconds)
        count = self.connection.recv_into(room, min(len(room), self.left))
        self.connection.settimeout(REQUEST_SECONDS)  # for the answer
        self.left -= count
        return count
