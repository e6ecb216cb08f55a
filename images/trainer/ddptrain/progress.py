"""Tell the outside world how far the training is: one small JSON file, always complete."""

import json
import time
from collections.abc import Mapping
from pathlib import Path


class ProgressFile:
    """Writes `path`, at most every two seconds.

    Ask `due()` first: whatever costs time, such as reading a loss off a GPU, is then done only for
    a report that will be written.
    """

    def __init__(self, path: Path, *, interval_seconds: float = 2.0) -> None:
        self._path = path
        self._interval = interval_seconds
        self._next = 0.0  # monotonic seconds: the first report is due at once

    def due(self) -> bool:
        """True if a report now would be written."""
        return time.monotonic() >= self._next

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
        """Replace the file, due or not: for the reports that `due()` asked for, and the last one.

        `step` counts finished optimizer steps over the whole training, `epoch` may be a fraction.
        NaN and Infinity are written as such: a loss that explodes should be seen.
        """
        report = {
            "step": step,
            "total_steps": total_steps,
            "epoch": round(epoch, 3),
            "loss": loss,
            "samples_per_second": samples_per_second,
            "metrics": dict(metrics) if metrics else None,
        }
        present = {name: value for name, value in report.items() if value is not None}
        temporary = self._path.with_name(self._path.name + ".tmp")
        temporary.write_text(json.dumps(present))
        temporary.replace(self._path)
        self._next = time.monotonic() + self._interval

    def close(self) -> None:
        """The last report stays."""
