"""A metric over the steps of a training, with its restarts: as SVG, and as text. Pure."""

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ddpjob.text import printable

Metric = Literal["loss", "samplesPerSecond"]
# What plots call a metric, and what a line of history.jsonl calls it.
LABELS: dict[Metric, str] = {"loss": "loss", "samplesPerSecond": "samples/s"}
_IN_HISTORY = {"loss": "loss", "samplesPerSecond": "samples_per_second"}

# Values that can be shown lie between these: half of the least and twice the largest are numbers.
_LEAST, _LARGEST = 1e-300, 1e300

# Of the text: its height, the least width with room for a curve, the sign of a restart.
ROWS, LEAST_WIDTH, RESTART = 18, 30, "┊"
# A braille character has two by four dots. Their bits, by column and row.
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

# Of the SVG, which has no ground: it is seen on a light one and on a dark one.
WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 40
# Each has at least 3:1 on white and on #0d1117, and the text at least 4:1.
TEXT, LINE, MARK = "#6e7781", "#2f81f7", "#d1611b"
# Characters that fit beside the number of restarts.
MAX_TITLE = 52


@dataclass(frozen=True)
class Curve:
    """A metric by step, and the last steps before restarts. Steps grow from point to point.

    A value that is no number, such as a loss of NaN, is a gap.
    """

    points: tuple[tuple[int, float], ...] = ()
    restarts: tuple[int, ...] = ()
    label: str = "loss"

    def axes(self, *, is_log: bool) -> "tuple[Axis, Axis] | None":
        """Return the axes of steps and of values, or None if there is nothing to show."""
        values = Axis.of((value for _, value in self.points), is_log=is_log)
        steps = Axis.of([*(step for step, _ in self.points), *self.restarts], is_whole=True)
        return (steps, values) if steps and values else None


def points_of(status: Mapping[str, Any], metric: Metric = "loss") -> Curve:
    """Return the curve in `status.curve` and `status.history`."""
    place = 1 + list(LABELS).index(metric)
    points = ((entry[0], entry[place]) for entry in status.get("curve", ()) if len(entry) > place)
    ends = status.get("history", ())
    if status.get("state") in ("Succeeded", "Failed"):
        ends = ends[:-1]  # nothing started again after the last one
    restarts = tuple(entry["step"] for entry in ends if "step" in entry)
    return Curve(tuple(points), restarts, LABELS[metric])


def read_history(lines: Iterable[str], metric: Metric = "loss") -> tuple[Curve, int]:
    """Return the curve in the lines of a history.jsonl, and the number of lines that are none.

    A resumed training repeats steps. The later line counts, and earlier ones at or after its step
    do not. A training that was killed may leave a part of a line.
    """
    points: list[tuple[int, float]] = []
    restarts: list[int] = []
    unread, last, life = 0, 0, None
    for line in filter(str.strip, lines):
        try:
            report = json.loads(line)
            step = int(report["step"])
        except (ValueError, TypeError, KeyError):
            unread += 1
            continue
        now = (report.get("attempt"), report.get("round"))
        if life not in (None, now):
            restarts.append(last)
        life, last = now, step
        value = report.get(_IN_HISTORY[metric])
        if isinstance(value, int | float):
            while points and points[-1][0] >= step:
                points.pop()
            points.append((step, value))
    return Curve(tuple(points), tuple(restarts), LABELS[metric]), unread


@dataclass(frozen=True)
class Axis:
    """A range of values, by themselves or by their logarithms."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    """Whether the ticks are integers."""

    @classmethod
    def of(
        cls, values: Iterable[float], *, is_log: bool = False, is_whole: bool = False
    ) -> "Axis | None":
        """Return the axis on which all values lie that can be shown, or None if there are none.

        The axis of equal values has room around them.
        """
        least = _LEAST if is_log else -_LARGEST
        shown = [value for value in values if least <= value <= _LARGEST]
        if not shown:
            return None
        axis = cls(min(shown), max(shown), is_log, is_whole)
        if axis._at(axis.low) < axis._at(axis.high):
            return axis
        room = abs(axis.low) / 2 or 1.0
        return cls(axis.low - room, axis.high + room, is_log, is_whole)

    def place(self, value: float) -> float:
        """Return where `value` lies, from 0 (low) to 1 (high)."""
        low = self._at(self.low)
        return (self._at(value) - low) / (self._at(self.high) - low)

    def has(self, value: float) -> bool:
        """Return whether `value` can be shown."""
        return self.low <= value <= self.high

    def ticks(self, most: int) -> list[float]:
        """Return at most `most` round numbers in the range, or its ends if there are none."""
        found = self._decades(most) if self.is_log else []
        if len(found) < 2:
            found = self._round_numbers(most)
        return found if len(found) > 1 else [self.low, self.high]

    def _at(self, value: float) -> float:
        return math.log10(value) if self.is_log else value

    def _decades(self, most: int) -> list[float]:
        """Return powers of ten, with their multiples by 2 and 5 if there is room."""
        powers = range(math.floor(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        many = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        found = list(filter(self.has, many))
        if len(found) > most:
            found = list(filter(self.has, many[::3]))
        return found[:: max(1, math.ceil(len(found) / most))]

    def _round_numbers(self, most: int) -> list[float]:
        """Return multiples of 1, 2 or 5 times a power of ten, none if the range is too small."""
        wanted = max(1.0 if self.is_whole else 0.0, (self.high - self.low) / most)
        if wanted < _LEAST:
            return []
        power = 10.0 ** math.floor(math.log10(wanted))
        for step in (power, 2 * power, 5 * power, 10 * power, 20 * power):
            numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
            if len(numbers) <= most:
                return sorted({number * step for number in numbers if self.has(number * step)})
        return []


def words(value: float) -> str:
    """Return a tick's number in few characters: `0.25`, `1.5k`, `20M`, `1e-07`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1e12 and (size > 1e3 or abs(value) >= 1e4):
            return f"{value / size:.4g}{unit}"
    text = f"{value:.4g}"
    return text if len(text) <= 8 else f"{value:.2g}"


def text(curve: Curve, width: int, *, is_log: bool = False) -> list[str]:
    """Return lines of at most `width` characters, for a terminal.

    A column of its own marks the step of each restart.
    """
    axes = curve.axes(is_log=is_log)
    if axes is None:
        return [f"no {curve.label} yet"]
    x, y = axes
    rows = ROWS - 3  # without the heading, the foot and its numbers
    labels = {
        round((1 - y.place(value)) * (rows - 1)): words(value) for value in y.ticks(rows // 2)
    }
    margin = max(map(len, [*labels.values(), curve.label]))
    columns = max(width, LEAST_WIDTH) - margin - 2
    cells = _cells(curve, x, y, columns, rows)
    marks = {round(x.place(step) * (columns - 1)) for step in curve.restarts if x.has(step)}
    lines = [f"{curve.label:>{margin}}" + (f"   {RESTART} restart" if marks else "")]
    for row, bits in enumerate(cells):
        blanks = [RESTART if column in marks else " " for column in range(columns)]
        shown = [
            chr(_BRAILLE + bit) if bit else blank for bit, blank in zip(bits, blanks, strict=True)
        ]
        side = "┤" if row in labels else "│"
        lines.append(f"{labels.get(row, ''):>{margin}} {side}{''.join(shown)}".rstrip())
    return [*lines, *_foot(x, margin, columns)]


def _cells(curve: Curve, x: Axis, y: Axis, columns: int, rows: int) -> list[list[int]]:
    """Return the bits of each cell, row by row."""
    cells = [[0] * columns for _ in range(rows)]
    last: tuple[int, int] | None = None
    for step, value in curve.points:
        if not y.has(value):
            last = None
            continue
        across = round(x.place(step) * (2 * columns - 1))
        dot = across, round((1 - y.place(value)) * (4 * rows - 1))
        for right, down in _line(last or dot, dot):
            cells[down // 4][right // 2] |= _DOTS[right % 2][down % 4]
        last = dot
    return cells


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the dots from one to the other."""
    across, down = end[0] - start[0], end[1] - start[1]
    count = max(abs(across), abs(down), 1)
    for number in range(count + 1):
        yield start[0] + round(across * number / count), start[1] + round(down * number / count)


def _foot(x: Axis, margin: int, columns: int) -> list[str]:
    """Return the axis of steps, and the numbers below it."""
    line, numbers = ["─"] * columns, [" "] * columns
    free = 0
    for step in x.ticks(max(2, columns // 10)):
        place, number = round(x.place(step) * (columns - 1)), words(step)
        first = min(max(0, place - len(number) // 2), columns - len(number))
        if first >= free:
            line[place] = "┬"
            numbers[first : first + len(number)] = number
            free = first + len(number) + 1
    if free + len("step") <= columns:
        numbers[-len("step") :] = "step"
    indent = " " * (margin + 1)
    return [f"{indent}└{''.join(line)}", f"{indent} {''.join(numbers)}".rstrip()]


def svg(curve: Curve, title: str, *, is_log: bool = False) -> str:
    """Return an SVG without script and style sheet, with a mark at the step of each restart."""
    name = html.escape(printable(title, MAX_TITLE))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="{TEXT}"><title>{name}</title>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{name}</text>',
    ]
    if axes := curve.axes(is_log=is_log):
        x, y = axes
        parts += [*_grid(x, y, curve.label), *_marks(x, curve.restarts), _path(curve, x, y)]
    else:
        parts.append(f'<text x="{LEFT}" y="{HEIGHT / 2:g}">no {curve.label} yet</text>')
    return "".join([*parts, "</svg>\n"])


def _left(x: Axis, step: float) -> float:
    return LEFT + x.place(step) * (WIDTH - LEFT - RIGHT)


def _top(y: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM)


def _grid(x: Axis, y: Axis, label: str) -> Iterator[str]:
    yield f'<text x="{LEFT - 8}" y="{TOP - 12}" text-anchor="end">{label}</text>'
    for value in y.ticks(5):
        here = _top(y, value)
        yield f'<path d="M{LEFT} {here:.1f}H{WIDTH - RIGHT}" stroke="{TEXT}" stroke-opacity=".35"/>'
        yield f'<text x="{LEFT - 8}" y="{here + 4:.1f}" text-anchor="end">{words(value)}</text>'
    for step in x.ticks(7):
        place = f'x="{_left(x, step):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        yield f'<text {place} text-anchor="middle">{words(step)}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step</text>'


def _marks(x: Axis, restarts: tuple[int, ...]) -> Iterator[str]:
    if restarts:
        places = sorted({round(_left(x, step)) for step in restarts if x.has(step)})
        lines = "".join(f"M{place} {TOP}V{HEIGHT - BOTTOM}" for place in places)
        yield f'<path d="{lines}" stroke="{MARK}" stroke-width="1.5" stroke-dasharray="4 3"/>'
        count = f"{len(restarts)} restart{'s' if len(restarts) > 1 else ''}"
        yield f'<text x="{WIDTH - RIGHT}" y="20" text-anchor="end" fill="{MARK}">{count}</text>'


def _path(curve: Curve, x: Axis, y: Axis) -> str:
    """Return the path of the lines; a point between two gaps is a line of no length."""
    data, last = "", False
    for step, value in curve.points:
        if y.has(value):
            place = f"{_left(x, step):.1f} {_top(y, value):.1f}"
            data += f"L{place}" if last else f"M{place}h0"
        last = y.has(value)
    style = 'stroke-width="2" stroke-linecap="round" stroke-linejoin="round"'
    return f'<path d="{data}" fill="none" stroke="{LINE}" {style}/>'
