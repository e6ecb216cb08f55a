"""Makes text of others printable: one line, without hidden characters, and not too long.

Others are users (names of fields, values), pods and their scripts, the API server and webhooks.
Their text could end a line of a log and begin one of its own, move a terminal's cursor, or turn the
order of letters around.
"""

import logging
import re
from typing import Any

# Letters and marks that take no place or no ink; Python calls all others of this kind unprintable.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

# A colour or the like that words are given in a terminal. It moves nothing.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,32}m)")


def printable(text: str, limit: int | None = None) -> str:
    """Return `text` with every invisible character escaped as Python does.

    With a `limit` the result has at most so many characters, and ends with an ellipsis if a part is
    left out. A second call with the result changes nothing.
    """
    if limit is not None and len(text) > limit:
        text = text[:limit] + "…"
    if not text.isprintable() or (not text.isascii() and _UNSEEN.search(text)):
        text = "".join(map(_seen, text))
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def printable_lines(text: str, limit: int | None = None, *, indent: str = "") -> str:
    """Return a traceback made printable: lines and tabs stay.

    Lines after the first begin with `indent`.
    """
    if limit is not None:
        text = text[:limit]
    lines = ("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    return f"\n{indent}".join(lines)


def printable_but_colours(line: str) -> str:
    """Return a line of a log printable, but for tabs and colours (SGR), which end with the line.

    Of a progress bar, which writes over its line, it is the last state.
    """
    if "\r" in line:
        line = next(filter(None, reversed(line.split("\r"))), "")
    parts = _COLOUR.split(line)
    parts[::2] = map(printable_lines, parts[::2])
    return "".join(parts) + ("\x1b[0m" if len(parts) > 1 else "")


def printable_end(text: str, limit: int) -> str:
    """Return a traceback made printable, its end where it is longer than `limit` characters.

    Lines and tabs stay. What is cut begins with a line of an ellipsis alone. A second call with the
    result changes nothing.
    """
    shown = printable_lines(text[-limit:])
    if len(text) <= limit and len(shown) <= limit:
        return shown
    kept = shown[2 - limit :]
    rest = kept.partition("\n")[2]  # a line that has lost its beginning says little
    return "…\n" + (rest if rest.strip() else kept)


def printable_bytes(text: str, limit: int) -> str:
    """Return `text` as `printable` does, in at most `limit` bytes of UTF-8.

    It ends with an ellipsis if a part is left out. A second call with the result changes nothing.
    """
    content = printable(text[:limit]).encode()
    if len(text) <= limit and len(content) <= limit:
        return content.decode()
    return content[: limit - 3].decode(errors="ignore") + "…"


def _seen(character: str) -> str:
    if character.isprintable() and not _UNSEEN.match(character):
        return character
    return character.encode("unicode_escape").decode()


# Characters of a line, and of a traceback.
MAX_LINE, MAX_TRACE = 8192, 32768
# The indent of a traceback, so that only records begin at the left.
INDENT = "  "


class Lines(logging.Formatter):
    """A formatter that makes messages and tracebacks printable. Tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record's line, printable."""
        return printable(super().formatMessage(record), MAX_LINE)

    def formatException(self, ei: Any) -> str:
        """Return the traceback, printable and indented."""
        return INDENT + printable_lines(super().formatException(ei), MAX_TRACE, indent=INDENT)


def configure(level: int, formatter: logging.Formatter) -> None:
    """Make this process log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])
