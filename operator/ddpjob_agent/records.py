"""Reads what the kernel and other processes write; the latter is hostile until it is read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from typing import Any, Iterator  # noqa: UP035 - Python 3.8

# A hook's record has two texts of 4000 characters; torchrun's has whole tracebacks of all ranks.
RECORD_BYTES = 4 * 2**20


def read_json(path: str, limit: int) -> Any:
    """The JSON in a regular file of at most `limit` bytes. Raises OSError or ValueError."""
    content = read_bytes(path, limit + 1)
    if len(content) > limit:
        raise ValueError(f"larger than {limit} bytes")
    return load(content)


def load(content: bytes) -> Any:
    """The value that is written as JSON. Raises ValueError."""
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def names_in(folder: str, pattern: str) -> list[str]:
    """Names in `folder` that match, sorted; none where there is no folder."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = [name for name in os.listdir(folder) if re.fullmatch(pattern, name)]
    return sorted(found)


def read_records(folder: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Every readable JSON object in the files `<prefix>*.json` of `folder`.

    With `ended_at`, when it was written or its process touched it at its end.
    """
    for name in names_in(folder, re.escape(prefix) + r".*\.json"):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError, ValueError):
            for record in objects([read_json(path, RECORD_BYTES)]):
                yield {**record, "ended_at": os.stat(path).st_mtime}


def objects(value: Any) -> list[dict[str, Any]]:
    """The JSON objects in a list; none where `value` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def integer(value: Any, least: int = 0, most: int = 2**31 - 1) -> int | None:
    """`value` if it is an integer from `least` to `most`, else None."""
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return value if good else None


def number(value: Any) -> float | None:
    """`value` as a float, NaN and infinities included; None where it is no number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def past(value: Any, now: float) -> float:
    """The unix time `value` if it is one and not after `now`, else `now`."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds <= now else now


def read_text(path: str) -> str:
    """The text in a file of the system, empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_bytes(path: str, limit: int) -> bytes:
    """The first bytes of a regular file. Raises OSError, or ValueError of another one."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not block us
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        return file.read(limit)


def compact(content: Any) -> bytes:
    """JSON in as few bytes as the termination message has."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
