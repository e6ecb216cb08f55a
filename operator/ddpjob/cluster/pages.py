"""Reads an answer to a list object by object, while it arrives.

A page of 500 objects of 1.5 MB, as an API server stores them, is 750 MB of text. Whoever reads it
piece by piece, and keeps little of each, needs room for one of them.
"""

import codecs
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import orjson

from ddpjob.json_depth import aside, read_json

# Characters of an incomplete value that must arrive before it is parsed again.
MIN_CHARS = 64 * 1024
# Characters of one value. etcd's own limit is 1.5 MiB.
MAX_CHARS = 16 * 1024 * 1024
_BLANKS = re.compile(r"[ \t\n\r]*")
# A string may lack its end; the marks are possessive, so that each character is seen once.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)

Take: TypeAlias = Callable[[dict[str, Any]], None]


async def read_page(chunks: AsyncIterator[bytes], take: Take) -> dict[str, Any]:
    """Return the object without its `items`, and hand each item to `take`.

    Raises ValueError if the text or one of its items is not a JSON object.
    """
    text = _Text(chunks)
    await text.expect("{")
    page: dict[str, Any] = {}
    while not await text.follows("}"):
        if page:
            await text.expect(",")
        name = await text.value()
        await text.expect(":")
        if name == "items" and await text.follows("["):
            page["items"] = []
            await _read_items(text, take)
        else:
            page[str(name)] = await text.value()
    return page


async def _read_items(text: "_Text", take: Take) -> None:
    first = True
    while not await text.follows("]"):
        if not first:
            await text.expect(",")
        first = False
        item = await text.value()
        if not isinstance(item, dict):
            raise ValueError("an item of a list is no object")
        take(item)


def _integer(text: str) -> int | float:
    """Return the number that `read_json` returns, so that lists and watches agree."""
    return int(text) if len(text) < 19 else orjson.loads(text)


class _Text:
    """The part of the answer that has arrived and has not been read."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._scan = json.JSONDecoder(parse_int=_integer).raw_decode
        self._text, self._at, self._ended = "", 0, False

    async def follows(self, mark: str) -> bool:
        """Return whether this character comes next. If so, it is read."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._text):
                break
            if not await self._grow(1):
                raise ValueError("the answer was cut")
        found = self._text[self._at] == mark
        self._at += found
        return found

    async def expect(self, mark: str) -> None:
        """Read this character. Raises ValueError where another one comes."""
        if not await self.follows(mark):
            raise ValueError(f"{mark!r} was expected")

    async def value(self) -> Any:
        """Read a whole value. Raises ValueError."""
        await self.follows("")  # beyond blanks
        while True:
            try:
                found, end = self._scan(self._text, self._at)
            except RecursionError:
                found, end = await aside(True, self._deep)
            except json.JSONDecodeError:
                end = -1
            # A number that ends where the text does may have further digits.
            if end >= 0 and (end < len(self._text) or self._ended):
                self._at = end
                return found
            unread = len(self._text) - self._at
            if unread > MAX_CHARS:
                raise ValueError("no JSON")
            has_grown = await self._grow(max(MIN_CHARS, 2 * unread))
            if not has_grown and end < 0:
                raise ValueError("no JSON")

    def _deep(self) -> tuple[Any, int]:
        """The value that is too deep for Python's own reader, without what lies too deep."""
        level = 0
        for token in _TOKEN.finditer(self._text, self._at):
            level += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
            if level == 0:
                return read_json(self._text[self._at : token.end()].encode()), token.end()
        return None, -1

    async def _grow(self, chars: int) -> bool:
        """Have at least so many characters unread; False if there are no more than now."""
        before = len(self._text) - self._at
        parts, have = [self._text[self._at :]], before
        while have < chars and not self._ended:
            chunk = await anext(self._chunks, None)
            self._ended = chunk is None
            part = self._decode(chunk or b"", self._ended)
            parts.append(part)
            have += len(part)
        self._text, self._at = "".join(parts), 0
        return have > before
