"""Reads a JSON value as kubectl and the API server do. Pure."""

import json
import re
from collections.abc import Iterator
from typing import Any

from ddpjob.errors import InvalidJob

_BLANKS = re.compile(r"[ \t\r\n]*")
# The marks are possessive, so that each character is seen once.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]:]')


def read_value(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and where it ends.

    As in Go, `2.0` is the integer 2, and integers of more than 64 bits lose digits. Raises
    json.JSONDecodeError if it is not JSON, and InvalidJob for an object with equal keys, of which
    kubectl would lose one, and for a number that is too large.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except _TooLarge as error:
        where = f"line {_line(text, text.find(error.number, start))}"
        raise InvalidJob(where, f"must be a smaller number, got {error.number[:80]}") from None
    for position, key in _duplicates(text, start, end):
        raise InvalidJob(f"line {_line(text, position)}", f"duplicate key {key!r}")
    return value, end


def skip_blanks(text: str, start: int) -> int:
    """Return where the next value begins, or the length of `text` if there is none."""
    match = _BLANKS.match(text, start)
    assert match
    return match.end()


class _TooLarge(Exception):
    def __init__(self, number: str) -> None:
        self.number = number


def _integer(text: str) -> int | float:
    number = int(text) if len(text) <= 20 else 2**64
    return number if -(2**63) <= number < 2**63 else _real(text)


def _real(text: str) -> int | float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _TooLarge(text)
    return int(number) if number.is_integer() and abs(number) < 2**63 else number


def _constant(text: str) -> None:
    raise json.JSONDecodeError(f"JSON has no number {text}", "", 0)


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=_constant)


def _duplicates(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield position and name of each key that its object has had before; `text` is JSON there."""
    levels: list[set[str]] = []
    last, position = "", start
    for token in _TOKEN.finditer(text, start, end):
        kind = token[0][0]
        if kind in "{[":
            levels.append(set())
        elif kind in "}]":
            levels.pop()
        elif kind == '"':
            last, position = token[0], token.start()
        elif (key := str(json.loads(last))) in levels[-1]:
            yield position, key
        else:
            levels[-1].add(key)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
