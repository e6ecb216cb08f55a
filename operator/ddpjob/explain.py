"""Turns the model's complaints into messages that name field, value and rule.

In the API's words.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ddpjob.errors import InvalidJob

_RULES = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must be at most {max_length} characters",
    "string_too_short": "must be at least {min_length} characters",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be one of {expected}",
    "int_type": "must be an integer",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}


def explain(error: ValidationError) -> list[InvalidJob]:
    """One InvalidJob for each thing that is wrong, in the order of the fields."""
    problems = [_problem(detail) for detail in error.errors(include_url=False)]
    return list({str(problem): problem for problem in problems}.values())


def _problem(detail: ErrorDetails) -> InvalidJob:
    context, value = detail.get("ctx") or {}, detail["input"]
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("int", "str"):  # those are branches of a union, not fields
            path += f".{part}" if path else str(part)
    if field := context.get("field"):
        path += f".{field}"
        value = value.get(field) if isinstance(value, Mapping) else None
    words = _RULES.get(detail["type"])
    rule = words.format(**context) if words else detail["msg"]
    if detail["type"] == "missing":
        return InvalidJob(path, rule)
    return InvalidJob(path, f"{rule}, got {show(value)}", value)


def show(value: Any) -> str:
    """A value as a message quotes it: JSON's words for nothing, one line, at most 80 characters."""
    if value is None:
        return "nothing"
    text = "an object" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
