"""Shows a local run as lines of JSON, for the program that has started it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddpjob.cli.live import Display, Status
from ddpjob.client.logs import LogLine


@contextmanager
def records() -> Iterator[Display]:
    """Return the display that prints an object for each change, line and note."""
    yield Records()


class Records:
    """One object a line: `{"status": {…}}`, `{"attempt": 0, …, "line": "…"}` or `{"note": "…"}`."""

    def status(self, status: Status) -> None:
        """Print the whole status of the job."""
        self._print(status=status)

    def line(self, line: LogLine) -> None:
        """Print a line that a pod has printed, with where it comes from."""
        place = {"attempt": line.attempt, "round": line.round}
        self._print(**place, rank=line.rank, nodeRank=line.node_rank, line=line.text)

    def note(self, *lines: str) -> None:
        """Print lines of ddpjob itself."""
        for line in lines:
            self._print(note=line)

    def _print(self, **record: Any) -> None:
        sys.stdout.write(json.dumps(record) + "\n")  # ASCII, so it is harmless in a terminal
        sys.stdout.flush()
