r"""RE2 expressions of users, small ones: what they may cost the operator is bounded.

RE2's search takes linear time, but what it takes for a character grows with the expression's
program, and `a\pL{441}` is a program of half a million instructions. So all expressions of a job
share a number of instructions.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import re2

MAX_PROGRAM = 2000  # RE2's instructions in all expressions of a job together
MAX_CLASSES = 16  # \p and \P in them together: to read a single one takes RE2 up to 0.3 ms
_MEMORY = 256 * 1024  # bytes of one expression: some 2700 instructions, and what a search caches

_SHARED = "in all expressions of a job together"
_LARGE = f"must be smaller: RE2 may make at most {MAX_PROGRAM} instructions {_SHARED}"
_CLASSES = f"must have fewer Unicode classes: at most {MAX_CLASSES} of \\p and \\P {_SHARED}"


@lru_cache(maxsize=1)  # one job's, for all failures of one look; 8 MiB at most
def compile_all(texts: tuple[str, ...]) -> tuple[Any, ...]:
    """Each expression, compiled, or the rule that it breaks, a str.

    The first one that is too large, and all that come after it, are not compiled.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    found: list[Any] = []
    instructions = classes = 0
    for text in texts:
        classes += len(re.findall(r"\\[pP]", text))
        if classes > MAX_CLASSES:
            found.append(_CLASSES)
        elif instructions > MAX_PROGRAM:
            found.append(_LARGE)
        else:
            found.append(compiled := _compile(text, options))
            instructions += MAX_PROGRAM + 1 if compiled is _LARGE else _size(compiled)
            if instructions > MAX_PROGRAM:
                found[-1] = _LARGE
    return tuple(found)


def broken(texts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(position, rule) of every expression that is none, and of the first that is too large."""
    for position, found in enumerate(compile_all(texts)):
        if isinstance(found, str):
            yield position, found
            if found in (_LARGE, _CLASSES):
                return


def _compile(text: str, options: Any) -> Any:
    try:
        return re2.compile(text, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace")
        # What RE2 says where the memory does not do.
        return _LARGE if "too large" in said else f"must be an RE2 expression: {said}"


def _size(compiled: Any) -> int:
    return 0 if isinstance(compiled, str) else int(compiled.programsize)
