"""Standard output as a terminal: its colours, and its end."""

import os

from rich.console import Console

COLOURS = {
    "Running": "green",
    "Succeeded": "green",
    "Restarting": "yellow",
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
