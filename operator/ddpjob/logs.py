"""The format of log records: one line each. A text that a record quotes cannot begin a line."""

import logging
from typing import Any

from ddpjob.text import printable, printable_lines

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

    def formatStack(self, stack_info: str) -> str:
        """Return the stack, printable and indented."""
        return INDENT + printable_lines(stack_info, MAX_TRACE, indent=INDENT)


def configure(level: int, layout: str) -> None:
    """Make this process log in the format `layout` to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(layout))
    logging.basicConfig(level=level, handlers=[handler])
