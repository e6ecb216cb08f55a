"""Lines of logs as they are printed. Each may be anything: escapes, NULs, 300 MB."""

import json
import re
from collections.abc import Sequence

from ddpjob.cli.logs import Format
from ddpjob.cli.say import coloured, raw, say
from ddpjob.cli.screen import Screen
from ddpjob.client.logs import LogLine

# Bytes of a line that are shown. A longer one is cut; raw has all of it.
SHOWN = 16 * 1024
# A colour that a script has given to its words, and what a progress bar has written over.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,32}m")
# SGR codes of the prefix. Red is for errors.
COLOURS = (36, 33, 32, 35, 34, 96)


class Printer:
    """Prints batches of lines in one format."""

    def __init__(self, output: Format, *, timestamps: bool) -> None:
        self._output, self._timestamps = output, timestamps
        self._coloured = output is Format.TEXT and Screen().color_system is not None
        self._width = 0

    def print(self, lines: Sequence[LogLine]) -> int:
        """Print the lines, and return how many of them began."""
        if self._output is Format.RAW:
            raw(b"".join(line.content + (b"\n" if line.is_last else b"") for line in lines))
        else:
            self._print([line for line in lines if line.part == 0])
        return sum(line.part == 0 for line in lines)

    def _print(self, lines: Sequence[LogLine]) -> None:
        if self._output is Format.JSON:
            say(*(json.dumps(record(line)) for line in lines))
            return
        heads = [self._head(line) for line in lines]
        self._width = max([self._width, *map(len, heads)])
        colours = [_colour(line) if self._coloured else None for line in lines]
        coloured(
            (f"{head:<{self._width}} | ", colour, shown(line))
            for head, colour, line in zip(heads, colours, lines, strict=True)
        )

    def _head(self, line: LogLine) -> str:
        time = f"{line.time} " if self._timestamps else ""
        return time + line.place


def shown(line: LogLine) -> str:
    """Return the text of a line without colours, as a terminal would be left by it."""
    content = line.content.rstrip(b"\r")
    content = content[content.rfind(b"\r") + 1 :]  # of a progress bar the last state
    cut = len(content) > SHOWN or not line.is_last
    text = _COLOUR.sub("", content[:SHOWN].decode(errors="replace"))
    return text + (" … (the line goes on)" if cut else "")


def record(line: LogLine) -> dict[str, str | int | bool | None]:
    """Return the line as `-o json` has it."""
    content = line.content
    found: dict[str, str | int | bool | None] = {
        "time": line.time,
        "attempt": line.attempt,
        "round": line.round,
        "rank": line.rank,
        "nodeRank": line.node_rank,
        "node": line.node,
        "pod": line.pod,
        "container": line.container,
        "line": content[:SHOWN].decode(errors="replace"),
    }
    if len(content) > SHOWN or not line.is_last:
        found["cut"] = True
    return found


def _colour(line: LogLine) -> int:
    return COLOURS[(line.node_rank if line.rank is None else line.rank) % len(COLOURS)]
