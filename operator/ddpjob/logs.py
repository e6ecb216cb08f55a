"""The format of log records: one line each, and whoever is quoted in it cannot begin another."""

import logging
from typing import Any

from ddpjob.text import printable, printable_lines

MAX_LINE, MAX_TRACE = 8192, 32768  # characters
INDENT = "  "  # of a traceback: a line that begins at the left is a record


class Lines(logging.Formatter):
    """Makes messages printable, and tracebacks, which keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's line."""
        return printable(super().formatMessage(record), MAX_LINE)

    def formatException(self, ei: Any) -> str:
        """The traceback below it."""
        return INDENT + printable_lines(super().formatException(ei), MAX_TRACE, indent=INDENT)

    def formatStack(self, stack_info: str) -> str:
        """Likewise."""
        return INDENT + printable_lines(stack_info, MAX_TRACE, indent=INDENT)


def configure(level: int, layout: str) -> None:
    """Have this process log so, on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(layout))
    logging.basicConfig(level=level, handlers=[handler])
