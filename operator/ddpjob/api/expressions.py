r"""Compiles users' RE2 expressions, and refuses those that would cost the operator too much.

RE2's search takes linear time, but the time for a character grows with the expression's program,
and `a\pL{441}` is a program of half a million instructions. So all expressions of a job share a
number of instructions.
"""

import re
from functools import lru_cache
from typing import Any

import re2

# RE2's instructions in all expressions of a job together.
MAX_PROGRAM = 2000
# \p and \P in all expressions of a job together. RE2 takes up to 0.3 ms to read one of them.
MAX_CLASSES = 16
# Bytes of one expression: some 2700 instructions, and the cache of a search.
_MEMORY = 256 * 1024

_SHARED = "in all expressions of a job together"
_LARGE = f"must be smaller: RE2 may make at most {MAX_PROGRAM} instructions {_SHARED}"
_CLASSES = f"must have fewer Unicode classes: at most {MAX_CLASSES} of \\p and \\P {_SHARED}"
SHARED = (_LARGE, _CLASSES)


# One entry holds one job's expressions, for all failures of one decision: 8 MiB at most.
@lru_cache(maxsize=1)
def compile_all(texts: tuple[str, ...]) -> tuple[Any, ...]:
    """Return each expression compiled, or the rule that it breaks, as a str.

    The first expression that is too large is not compiled, and neither are those after it: they
    break a rule of SHARED.
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
            compiled, size = _compile(text, options)
            instructions += size
            found.append(_LARGE if instructions > MAX_PROGRAM else compiled)
    return tuple(found)


def _compile(text: str, options: Any) -> tuple[Any, int]:
    """Return the expression compiled, or the rule that it breaks, and its instructions."""
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        message = error.args[0].decode(errors="replace")
        if "too large" in message:  # the memory is not enough
            return _LARGE, MAX_PROGRAM + 1
        return f"must be an RE2 expression: {message}", 0
    return compiled, int(compiled.programsize)
