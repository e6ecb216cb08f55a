"""Draws a curve as SVG: no script, no style sheet, nothing from elsewhere.

It may stand in a page or be a picture of its own, on a light or a dark ground. So it has no ground,
and its colours are seen on both.
"""

import html
from collections.abc import Sequence

from ddpjob.plot.axes import Axis, axis_of, step_axis, words
from ddpjob.plot.curve import thinned
from ddpjob.text import printable

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 40
# Each has at least 3:1 on white and on #0d1117, and the text at least 4:1.
TEXT, LINE, MARK = "#6e7781", "#2f81f7", "#d1611b"
# Characters that fit beside the number of restarts.
MAX_TITLE = 52


def svg(
    points: Sequence[tuple[int, float]],
    restarts: Sequence[int],
    title: str,
    *,
    label: str = "loss",
    is_log: bool = False,
) -> str:
    """Return an SVG of `label` by step, with a mark at each of the steps `restarts`.

    There is a gap at a value that is no number, and at one that a logarithm does not have.
    """
    name = html.escape(printable(title, MAX_TITLE))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="{TEXT}"><title>{name}</title>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{name}</text>',
    ]
    y = axis_of((value for _, value in points), is_log=is_log)
    x = step_axis([*(step for step, _ in points), *restarts])
    if x is None or y is None:
        parts.append(f'<text x="{LEFT}" y="{HEIGHT / 2:g}">no {html.escape(label)} yet</text>')
        return "".join([*parts, "</svg>\n"])
    parts += [*_grid(x, y, label), *_marks(x, restarts)]
    lines, dots = _paths(x, y, [*thinned(points, WIDTH)])
    for data, width in ((lines, 2), (dots, 5)):
        if data:
            parts.append(
                f'<path d="{data}" fill="none" stroke="{LINE}" stroke-width="{width}" '
                'stroke-linecap="round" stroke-linejoin="round"/>'
            )
    return "".join([*parts, "</svg>\n"])


def _left(x: Axis, step: float) -> float:
    return LEFT + x.place(step) * (WIDTH - LEFT - RIGHT)


def _top(y: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM)


def _grid(x: Axis, y: Axis, label: str) -> list[str]:
    foot = HEIGHT - BOTTOM
    parts = [f'<text x="{LEFT - 8}" y="{TOP - 12}" text-anchor="end">{html.escape(label)}</text>']
    for value in y.ticks(5):
        here = _top(y, value)
        parts.append(
            f'<path d="M{LEFT} {here:.1f}H{WIDTH - RIGHT}" stroke="{TEXT}" stroke-opacity=".35"/>'
            f'<text x="{LEFT - 8}" y="{here + 4:.1f}" text-anchor="end">{words(value)}</text>'
        )
    for step in x.ticks(7):
        parts.append(
            f'<text x="{_left(x, step):.1f}" y="{foot + 18}" text-anchor="middle">'
            f"{words(step)}</text>"
        )
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step</text>')
    return parts


def _marks(x: Axis, restarts: Sequence[int]) -> list[str]:
    places = sorted({round(_left(x, step)) for step in restarts if x.has(step)})
    if not places:
        return []
    lines = "".join(f"M{place} {TOP}V{HEIGHT - BOTTOM}" for place in places)
    count = f"{len(restarts)} restart{'s' if len(restarts) > 1 else ''}"
    return [
        f'<path d="{lines}" stroke="{MARK}" stroke-width="1.5" stroke-dasharray="4 3"/>',
        f'<text x="{WIDTH - RIGHT}" y="20" text-anchor="end" fill="{MARK}">{count}</text>',
    ]


def _paths(x: Axis, y: Axis, points: Sequence[tuple[int, float]]) -> tuple[str, str]:
    """Return the data of two paths: the lines, and the dots of points between two gaps."""
    lines, dots = [], []
    places = [f"{_left(x, s):.1f} {_top(y, v):.1f}" if y.has(v) else "" for s, v in points]
    for before, here, after in zip(["", *places], places, [*places[1:], ""], strict=False):
        if here and (before or after):
            lines.append(f"L{here}" if before else f"M{here}")
        elif here:
            dots.append(f"M{here}h0")
    return "".join(lines), "".join(dots)
