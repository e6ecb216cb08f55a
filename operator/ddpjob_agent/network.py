"""Beside the launcher: looks for the master's name."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time

# Each look for the master's name waits so long, the first one too; see MasterWatch.
LOOK_SECONDS = 5.0
# The time between two lines that say what is waited for.
SAY_SECONDS = 15.0
# The longest such time where nothing ends the wait.
SAY_MOST_SECONDS = 1800.0


class MasterWatch(threading.Thread):
    """Looks for the master's name beside the launcher, to say what is missing.

    CoreDNS remembers for 5 to 30 s, for all pods, that a name was asked for before it existed. So
    the launcher, whose imports take seconds, asks first and this thread never does; asking again
    while the absence is remembered neither helps nor prolongs it.
    """

    def __init__(self, host: str, look_seconds: float) -> None:
        super().__init__(daemon=True, name="master-watch")
        self.host, self.look_seconds = host, look_seconds
        self.found = threading.Event()

    def run(self) -> None:
        """Look until the name is found, less and less often. The resolver may block for long."""
        begin = time.monotonic()
        while not self.found.is_set():
            time.sleep(max(self.look_seconds, min(60.0, (time.monotonic() - begin) / 20)))
            with contextlib.suppress(OSError, UnicodeError):
                socket.getaddrinfo(self.host, None)
                self.found.set()


def say_seconds(waited: float, limit: float) -> float:
    """Until it is said again that something is waited for: less and less often without a limit."""
    return SAY_SECONDS if limit < math.inf else max(SAY_SECONDS, min(waited, SAY_MOST_SECONDS))
