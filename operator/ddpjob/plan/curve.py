"""The curve of the loss: few points, evenly spread over the steps, whatever was reported. Pure.

A point enters the status with a report that is written anyway, so the curve costs no writes.
"""

import json
import math
from collections.abc import Sequence

from ddpjob.api import MAX_POINTS, Point, Progress

# Of the curve as JSON. 64 points have less, unless their numbers have many digits.
MAX_BYTES = 1536


def with_point(points: Sequence[Point], progress: Progress) -> list[Point]:
    """Return `points` with that of `progress`, if it reports a loss that is a finite number.

    Steps grow: a restart repeats the steps after its checkpoint, so their points are left out.
    """
    loss = _number(progress.loss)
    if loss is None:
        return list(points)
    rate = _number(progress.samples_per_second)
    point: Point = [progress.step, loss] if rate is None else [progress.step, loss, rate]
    return _thinned([*(each for each in points if each[0] < progress.step), point])


def _number(text: str | None) -> int | float | None:
    """Return a number of a report as short as JSON has it; None for what is not finite."""
    value = math.nan if text is None else float(text)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _thinned(points: list[Point]) -> list[Point]:
    """Return `points` without those that are missed least, until they fit; both ends stay.

    Between the neighbours of such a point the gap is smallest. So the distances stay within a
    factor of each other that does not grow with the number of reports.
    """
    while len(points) > MAX_POINTS or len(points) > 2 and _size(points) > MAX_BYTES:
        inner = range(1, len(points) - 1)
        del points[min(inner, key=lambda i: points[i + 1][0] - points[i - 1][0])]
    return points


def _size(points: Sequence[Point]) -> int:
    return len(json.dumps(points, separators=(",", ":")))
