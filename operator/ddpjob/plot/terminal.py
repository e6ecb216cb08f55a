"""Draws a curve with the characters of a terminal: braille, of which each has two by four dots."""

from collections.abc import Iterator, Sequence

from ddpjob.plot.axes import Axis, axis_of, step_axis, words
from ddpjob.plot.curve import thinned

# Below this there is no room for a curve beside its labels.
LEAST_WIDTH, LEAST_HEIGHT = 30, 6
# The bits of a braille character by column and row of the dot.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800
RESTART = "┊"
# What stands for the characters of a plot where only ASCII can be printed.
ASCII = str.maketrans(
    {"┤": "+", "│": "|", "└": "+", "─": "-", "┬": "+", RESTART: ":"}
    | {chr(_BRAILLE + bits): "*" for bits in range(1, 256)}
)


def text(
    points: Sequence[tuple[int, float]],
    restarts: Sequence[int],
    width: int = 80,
    height: int = 16,
    *,
    label: str = "loss",
    is_log: bool = False,
) -> str:
    """Return lines of at most `width` characters, `height` in number: `label` by step.

    A column of its own marks each of the steps `restarts`. There is a gap at a value that is no
    number, and at one that a logarithm does not have.
    """
    width, height = max(width, LEAST_WIDTH), max(height, LEAST_HEIGHT)
    y = axis_of((value for _, value in points), is_log=is_log)
    x = step_axis([*(step for step, _ in points), *restarts])
    if x is None or y is None:
        return f"no {label} yet"
    rows = height - 3  # without the heading, the foot and its numbers
    labels = {
        round((1 - y.place(value)) * (rows - 1)): words(value) for value in y.ticks(rows // 2)
    }
    margin = max(map(len, [*labels.values(), label]))
    columns = width - margin - 2
    cells = _curve(x, y, points, columns, rows)
    marks = {round(x.place(step) * (columns - 1)) for step in restarts if x.has(step)}
    heading = f"{label:>{margin}}" + (f"   {RESTART} restart" if marks else "")
    lines = [heading]
    for row in range(rows):
        line = "".join(
            chr(_BRAILLE + cells[row][column])
            if cells[row][column]
            else RESTART
            if column in marks
            else " "
            for column in range(columns)
        )
        side = "┤" if row in labels else "│"
        lines.append(f"{labels.get(row, ''):>{margin}} {side}{line}".rstrip())
    return "\n".join([*lines, *_foot(x, margin, columns)])


def _curve(
    x: Axis, y: Axis, points: Sequence[tuple[int, float]], columns: int, rows: int
) -> list[list[int]]:
    """Return the bits of each cell, row by row."""
    cells = [[0] * columns for _ in range(rows)]
    last: tuple[int, int] | None = None
    for step, value in thinned(points, 2 * columns):
        if not y.has(value):
            last = None
            continue
        dot = (
            round(x.place(step) * (2 * columns - 1)),
            round((1 - y.place(value)) * (4 * rows - 1)),
        )
        for across, down in _line(last or dot, dot):
            cells[down // 4][across // 2] |= _DOTS[across % 2][down % 4]
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
