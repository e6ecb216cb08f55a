"""A training's numbers over time, in a folder that outlives it: lines of JSON, and TensorBoard."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

INTERVAL_SECONDS = 5.0  # at most 17,280 lines, 4 MB, a day


class Sink(Protocol):
    """Takes reports; what it does with those that nobody has asked for is its own business."""

    def due(self) -> bool:
        """True if a report now would be worth its cost."""

    def write(
        self,
        *,
        step: int,
        total_steps: int,
        epoch: float,
        loss: float | None = None,
        samples_per_second: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Take a report, due or not."""

    def close(self) -> None:
        """No report comes after this."""


class LogDirError(RuntimeError):
    """The history cannot be written; the message says what is missing."""


class HistoryFile:
    """Appends to `path`, one JSON object a line, at most every five seconds.

    A resumed training appends too: `attempt` and `round` tell whose steps a line speaks of, and of
    two lines for a step the later one counts. Raises LogDirError where it cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        attempt: int,
        number: int = 0,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a")
        except OSError as error:
            raise LogDirError(f"--log-dir: {error}") from error
        self._life = {"attempt": attempt, "round": number}
        self._interval, self._next = interval_seconds, 0.0

    def due(self) -> bool:
        """True if the last line is old enough."""
        return time.monotonic() >= self._next

    def write(self, **report: Any) -> None:
        """Append a line: `Sink.write`'s names, with the metrics beside them. NaN stays NaN."""
        metrics = report.pop("metrics", None) or {}
        line = {"time": round(time.time(), 3), **self._life, **report, **metrics}
        self._file.write(json.dumps({k: v for k, v in line.items() if v is not None}) + "\n")
        self._file.flush()
        self._next = time.monotonic() + self._interval

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardLog:
    """The same reports as TensorBoard's scalars, below `folder`.

    Raises LogDirError where the package is not installed.
    """

    def __init__(self, folder: Path, *, interval_seconds: float = INTERVAL_SECONDS) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise LogDirError(
                f"--tensorboard: {error}: pip install tensorboard, or use the image that has "
                "accelerate"
            ) from error
        self._writer = SummaryWriter(str(folder))
        self._interval, self._next = interval_seconds, 0.0

    def due(self) -> bool:
        """True if the last report is old enough."""
        return time.monotonic() >= self._next

    def write(self, *, step: int, total_steps: int, **report: Any) -> None:
        """One scalar for each number that is known; the step is the axis."""
        metrics = report.pop("metrics", None) or {}
        for name, value in (report | metrics).items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._next = time.monotonic() + self._interval

    def close(self) -> None:
        """Write out what is buffered."""
        self._writer.close()
