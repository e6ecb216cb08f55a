"""Tables in aligned columns, as kubectl has them: without lines, cut at the terminal's width."""

import os
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ddpjob.cli.output import say

GAP = "  "
Row = Sequence[str]
COLOURS = {
    "Running": "green",
    "Succeeded": "green",
    "Restarting": "yellow",
    "Idle": "yellow",
    "Queued": "yellow",
    "Suspended": "dim",
    "Failed": "red",
}


class Screen(Console):
    """Standard output. Raises BrokenPipeError if nobody reads it, so that the caller can end.

    `NO_COLOR` in the environment and a pipe turn colours off, and bold letters too.
    """

    def __init__(self) -> None:
        super().__init__(
            color_system=None if os.environ.get("NO_COLOR") else "auto",
            highlight=False,
            markup=False,
            emoji=False,
        )

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError; rich would exit within the task that prints."""
        raise BrokenPipeError


def widths(rows: Sequence[Row]) -> list[int]:
    """Return the width of each column in cells of a terminal."""
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def lines(headings: Row, rows: Sequence[Row]) -> list[str]:
    """Return the table as lines without colours. Cells must be printable."""
    sizes = widths([headings, *rows])
    return [line(row, sizes) for row in (headings, *rows)]


def line(row: Row, sizes: Sequence[int]) -> str:
    """Return a row whose columns have these widths."""
    return GAP.join(map(set_cell_size, row, sizes)).rstrip()


def styled(headings: Row, rows: Sequence[Row], width: int) -> list[Text]:
    """Return the table as lines for a terminal: states have colours, and long lines are cut."""
    sizes = widths([headings, *rows])
    found = [Text(line(headings, sizes), style="bold")]
    for row in rows:
        text, start = Text(line(row, sizes)), 0
        for heading, cell, size in zip(headings, row, sizes, strict=True):
            if heading == "STATE":
                text.stylize(COLOURS.get(cell, ""), start, start + len(cell))
            start += size + len(GAP)
        found.append(text)
    for text in found:
        text.truncate(width, overflow="ellipsis")
    return found


def show(headings: Row, rows: Sequence[Row], screen: Screen) -> None:
    """Print the table, with colours on a terminal."""
    if screen.is_terminal:
        for text in styled(headings, rows, screen.width):
            screen.print(text, soft_wrap=True)
    else:
        say(*lines(headings, rows))
