"""A log record is one line, whoever is quoted in it; a traceback below it keeps its lines."""

import io
import json
import logging

from ddpjob.jsonlog import JsonLines
from ddpjob.text import Lines

FORGED = "boom\n2027-01-15 08:00:00 INFO ddpjob released\x1b[2J\r\u202e"


def logged(*arguments: object, error: Exception | None = None) -> list[str]:
    """The lines of a record with these arguments, of an exception that was raised if given."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        if error is not None:
            raise error
        logger.warning("job=%s error=%s", *arguments)
    except Exception:
        logger.exception("job=%s error=%s", *arguments)
    text = stream.getvalue()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_a_record_is_one_line() -> None:
    (line,) = logged("a/b", FORGED)
    assert line == (
        r"WARNING job=a/b error=boom\n2027-01-15 08:00:00 INFO ddpjob released\x1b[2J\r\u202e"
    )
    (line,) = logged("a/b", "x" * 100_000)
    assert len(line) == 8192


def test_a_traceback_keeps_its_lines_and_none_of_them_can_be_a_record() -> None:
    first, *rest = logged("a/b", "c", error=ValueError(FORGED))
    assert first == "ERROR job=a/b error=c" and rest[0] == "  Traceback (most recent call last):"
    assert any("raise error" in line for line in rest)
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_a_record_of_json_is_one_object_with_its_fields_and_nothing_of_others() -> None:
    handler = logging.StreamHandler(stream := io.StringIO())
    handler.setFormatter(JsonLines())
    logger = logging.Logger("ddpjob")
    logger.addHandler(handler)
    fields = {"job": "digits", "attempt": 1, "reason": "Signal"}
    logger.info("job=%(job)s", fields, extra={**fields, "settings": object()})
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("%s", FORGED)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time")
    assert first == {"level": "INFO", "logger": "ddpjob", "message": "job=digits", **fields}
    assert second["message"].isprintable() and "ValueError: boom" in second["traceback"]
