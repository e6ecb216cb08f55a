"""Reads a training's curve from a job's status, or from the history.jsonl of the trainer.

A line of the file that is no report is left out. A loss that is NaN or infinite is kept, because a
plot shows a gap there.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Metric = Literal["loss", "samplesPerSecond"]
METRICS: tuple[Metric, ...] = ("loss", "samplesPerSecond")

# Points of a file that are kept. Of more, every second one is dropped.
MAX_POINTS = 10_000
# Restarts that are kept: the last ones.
MAX_RESTARTS = 1000
# Integers above this are no steps, and floats cannot tell them apart.
_MAX_STEP = 2**53
# How a line of history.jsonl calls a metric.
_IN_HISTORY = {"loss": "loss", "samplesPerSecond": "samples_per_second"}

_Point = tuple[int, float]


@dataclass(frozen=True)
class Curve:
    """A metric by step, and the last steps before restarts. Steps grow from point to point."""

    points: tuple[_Point, ...] = ()
    restarts: tuple[int, ...] = ()


def points_of(status: Mapping[str, Any], metric: Metric = "loss") -> Curve:
    """Return the curve in `status.curve` and `status.history`."""
    place = 1 + METRICS.index(metric)
    points = ((entry[0], entry[place]) for entry in status.get("curve", ()) if len(entry) > place)
    ends = status.get("history", ())
    if status.get("state") in ("Succeeded", "Failed"):
        ends = ends[:-1]  # nothing started again after the last one
    return Curve(tuple(points), tuple(entry["step"] for entry in ends if "step" in entry))


def read_history(lines: Iterable[str], metric: Metric = "loss") -> tuple[Curve, int]:
    """Return the curve in the lines of a history.jsonl, and the number of lines that are none.

    A resumed training repeats steps. The later line counts, and earlier ones at or after its step
    do not. A training that was killed may leave a part of a line.
    """
    kept = _Kept()
    restarts: list[int] = []
    unread, last = 0, 0
    life: object = None
    for line in lines:
        report = _report(line)
        step = _step(report.get("step"))
        if step is None:
            unread += bool(line.strip())
            continue
        now = (report.get("attempt"), report.get("round"))
        if life not in (None, now):
            restarts = [*restarts[1 - MAX_RESTARTS :], last]
        life, last = now, step
        value = _number(report.get(_IN_HISTORY[metric]))
        if value is not None:
            kept.add(step, value)
    return Curve(tuple(kept.all()), tuple(restarts)), unread


class _Kept:
    """Points of growing steps. If there are too many, every second one is dropped."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._last: _Point | None = None
        self._every, self._seen = 1, 0

    def add(self, step: int, value: float) -> None:
        """Add a point, in place of all at or after its step."""
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._last = step, value
        if self._seen % self._every == 0:
            self._points.append(self._last)
        self._seen += 1
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def all(self) -> list[_Point]:
        """Return the points, the last one included."""
        if self._last is None or self._last in self._points[-1:]:
            return self._points
        return [*self._points, self._last]


def thinned(points: Sequence[_Point], columns: int) -> Iterator[_Point]:
    """Yield the points that a plot of so many columns can show.

    These are the first, the last, the lowest and the highest of each column, and those that are no
    numbers.
    """
    if not points:
        return
    low, high = points[0][0], points[-1][0]
    width = max(1, high - low)
    group: list[_Point] = []
    for point in points:
        if group and _column(point[0] - low, width, columns) != _column(
            group[0][0] - low, width, columns
        ):
            yield from _extremes(group)
            group = []
        group.append(point)
    yield from _extremes(group)


def _column(offset: int, width: int, columns: int) -> int:
    return min(columns - 1, offset * columns // width)


def _extremes(group: Sequence[_Point]) -> Iterator[_Point]:
    finite = [place for place, point in enumerate(group) if math.isfinite(point[1])]
    kept = {0, len(group) - 1}
    if finite:
        kept |= {min(finite, key=lambda place: group[place][1])}
        kept |= {max(finite, key=lambda place: group[place][1])}
    gap = next((place for place, point in enumerate(group) if not math.isfinite(point[1])), None)
    yield from (group[place] for place in sorted(kept | ({gap} if gap is not None else set())))


def _report(line: str) -> Mapping[str, Any]:
    try:
        report = json.loads(line)
    except ValueError:
        return {}
    return report if isinstance(report, Mapping) else {}


def _step(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and 0 <= number <= _MAX_STEP else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
