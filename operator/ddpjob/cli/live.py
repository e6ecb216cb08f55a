"""Shows a run on this machine: as lines, or as JSON for a program."""

import json
import sys

from ddpjob.client.display import Display, PlainDisplay
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.logs import LogLine
from ddpjob.text import printable, printable_but_colours


class LineDisplay(PlainDisplay):
    """All lines on standard output, those of the job with their own colours."""

    # The reason of a restart or of the end has lines of its own.
    explained = ("Pending", "Starting")

    def line(self, line: LogLine) -> None:
        """Print the line, with its own colours."""
        _print(f"[node {line.node_rank}] {printable_but_colours(line.text)}")

    def note(self, *lines: str) -> None:
        """Print the lines at once."""
        for line in lines:
            _print(printable(line))


class Records(Display):
    """One object a line: `{"status": {…}}`, `{"attempt": 0, …, "line": "…"}` or `{"note": "…"}`."""

    def job(self, job: Snapshot) -> None:
        """Print the whole status of the job."""
        _print(json.dumps({"status": job.body.get("status")}))

    def line(self, line: LogLine) -> None:
        """Print a line that a pod has printed, with where it comes from."""
        record = {"attempt": line.attempt, "round": line.round, "rank": line.rank}
        _print(json.dumps({**record, "nodeRank": line.node_rank, "line": line.text}))

    def note(self, *lines: str) -> None:
        """Print lines of ddpjob itself."""
        for line in lines:
            _print(json.dumps({"note": line}))


def _print(text: str) -> None:
    """Print what is harmless in a terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
