"""Reads and writes JSON whose objects are nested too deeply, and bounds the depth of a job.

An API server stores 10,000 levels, in the open subtrees of a DDPJob's spec too. The readers and
writers of JSON here stop far earlier, and one such object must not stop them for all the others. So
deep parts are cut off. The rest is still too deep for a job, so the job is refused.
"""

import asyncio
import gc
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import orjson

# One object of the API, or a part of one.
Body = dict[str, Any]

P = ParamSpec("P")
T = TypeVar("T")

# Levels of a job. A pod has about 15.
MAX_LEVELS = 100
# Levels that are read. orjson writes 254 and reads 1024.
CUT_LEVELS = 128

# Bytes of JSON that may take longer to read than other tasks should wait.
LARGE = 64 * 1024

# A string may lack its end; the marks are possessive, so that each character is seen once.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)


def is_deep(value: Any, levels: int = MAX_LEVELS) -> bool:
    """Return whether objects or lists are nested in more than so many levels."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            part
            for item in layer
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
        if not layer:
            return False
    return True


def read_json(text: bytes) -> Any:
    """Return the parsed `text` without its too deep parts. Raises orjson.JSONDecodeError."""
    # Garbage collection would look through much of it again and again: half a million empty lists
    # take six times as long.
    collects = len(text) > LARGE and gc.isenabled()
    if collects:
        gc.disable()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(_without_depths(text))
    finally:
        if collects:
            gc.enable()


async def aside(large: bool, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return what `work` returns. If it is `large`, it runs in a thread, so others have a turn.

    Python changes threads every 5 ms, except within a single call of a library.
    """
    return await asyncio.to_thread(work, *args, **options) if large else work(*args, **options)


def write_json(value: Any) -> bytes:
    """Return `value` as JSON without its too deep parts."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_cut(value, CUT_LEVELS))


def merged(old: Any, patch: Any) -> Any:
    """Return what a JSON merge patch (RFC 7396) makes of a value, which stays as it is."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def _without_depths(text: bytes) -> bytes:
    """JSON with null for every object and list that is too deep."""
    parts, level, kept = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in (b"{", b"["):
            level += 1
            if level == CUT_LEVELS + 1:
                parts += [text[kept : token.start()], b"null"]
        elif token[0] in (b"}", b"]"):
            level -= 1
            if level == CUT_LEVELS:
                kept = token.end()
    return b"".join([*parts, text[kept:]])


def _cut(value: Any, levels: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(part, levels - 1) for name, part in value.items()} if levels else None
    if isinstance(value, list):
        return [_cut(part, levels - 1) for part in value] if levels else None
    return value
