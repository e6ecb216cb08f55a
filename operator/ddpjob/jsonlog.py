"""The operator's log as JSON: an object in each line."""

import logging
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from ddpjob.text import MAX_LINE, MAX_TRACE, printable, printable_lines

# What a change of state has besides (controller/reconcile.py). kopf's records have objects.
FIELDS = ("namespace", "job", "state", "attempt", "round", "restarts", "reason")
_NAMES = {"levelname": "level", "name": "logger", "exc_info": "traceback"}


class JsonLines(JsonFormatter):
    """A formatter that makes an object of each record, as long at most as `text.Lines`."""

    def __init__(self) -> None:
        super().__init__(["levelname", "name", "message"], rename_fields=_NAMES, timestamp="time")

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Return what is logged of a record."""
        text = printable(log_data["message"], MAX_LINE)
        kept = ("time", *_NAMES.values(), *FIELDS)
        return {name: log_data[name] for name in kept if name in log_data} | {"message": text}

    def formatException(self, ei: Any) -> str:
        """Return the traceback, printable."""
        return printable_lines(logging.Formatter.formatException(self, ei), MAX_TRACE)
