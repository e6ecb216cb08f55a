"""Reads the result that rank 0 has left: one JSON value for whoever started the job."""

from __future__ import annotations

import json
import os
from typing import Any

from ddpjob_agent.config import Config, say
from ddpjob_agent.records import read_json

# Bytes of a result in the termination message and in the status, as compact ASCII.
RESULT_BYTES = 2048
# Bytes of the file, which may have blanks.
FILE_BYTES = 64 * 1024
# Objects and lists within each other.
LEVELS = 32


def read_result(config: Config) -> dict[str, Any] | None:
    """`value` and `size` for the termination message; None without a file, or of another node.

    A value that is no JSON, or too large, is left out.
    """
    if config.node_rank != 0:
        return None
    try:
        size = os.stat(config.result_file).st_size
    except OSError:
        return None
    try:
        if size <= FILE_BYTES:
            value = read_json(config.result_file, FILE_BYTES)
            if is_deep(value, LEVELS):
                raise ValueError("nested too deeply")
            size = len(json.dumps(value, separators=(",", ":")))
            if size <= RESULT_BYTES:
                return {"value": value, "size": size}
        problem = f"has {size} bytes, and {RESULT_BYTES} are the limit"
    except (OSError, ValueError) as error:
        # A size within the limit, and no value: it is no JSON.
        size, problem = min(size, RESULT_BYTES), f"is no JSON: {error}"
    say(f"the result in {config.result_file} {problem}; it is left out")
    return {"size": size}


def is_deep(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested in more than so many levels."""
    parts = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(parts, list):
        return False
    return levels == 0 or any(is_deep(part, levels - 1) for part in parts)
