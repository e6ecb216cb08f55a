"""Turns pydantic's errors into messages that name the field, the value and the rule."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ddpjob.api.base import PATTERNS, Broken, Model, below, fields_of, part_at
from ddpjob.errors import InvalidJob

_RULES = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must be at most {max_length} characters",
    "string_too_short": "must be at least {min_length} characters",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "literal_error": "must be one of {expected}",
    "int_type": "must be an integer",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
}


# Nobody reads more messages than this.
MAX_PROBLEMS = 100
# Comparing names takes the square of a name's length. No field of ours is longer.
_LONGEST = 40
# How alike two names are, of 1: `nnode` and `nnodes` 0.91, `gpus` and `image` 0.22.
_ALIKE = 0.75


def explain(
    model: type[Model], error: ValidationError, *, most: int = MAX_PROBLEMS
) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that `error` says is broken, when it read `model`.

    They are in the order of the fields, at most `most`.
    """
    details = error.errors(include_url=False)
    problems = (problem for detail in details for problem in _problems(model, detail))
    found: dict[str, InvalidJob] = {}
    for problem in problems:
        found.setdefault(str(problem), problem)
        if len(found) == most:
            break
    return list(found.values())


def _problems(model: type[Model], detail: ErrorDetails) -> Iterator[InvalidJob]:
    path, value = "".join(map(below, detail["loc"])).removeprefix("."), detail["input"]
    context = detail.get("ctx") or {}
    if detail["type"] == "missing":
        yield InvalidJob(path, "is required")
    elif detail["type"] == "extra_forbidden":
        *place, name = detail["loc"]
        yield misfit(path, _unknown_field(str(name), _fields_at(model, place)), value)
    elif detail["type"] == "rules":
        yield from (_broken_problem(path, broken, value) for broken in context["broken"])
    elif detail["type"] == "string_pattern_mismatch":
        pattern = context["pattern"]
        yield misfit(path, PATTERNS.get(pattern, f"must match {pattern}"), value)
    else:
        words = _RULES.get(detail["type"])
        yield misfit(path, words.format(**context) if words else detail["msg"], value)


def _unknown_field(name: str, known: Collection[str]) -> str:
    """Return the rule that an unknown field breaks. It names a known field that is like it."""
    like = [each for each in known if each.lower() == name.lower()]
    if not like and len(name) <= _LONGEST:
        like = get_close_matches(name, known, 1, _ALIKE)
    return f"unknown field (did you mean {like[0]}?)" if like else "unknown field"


def _fields_at(model: type[Model], place: Sequence[str | int]) -> set[str]:
    """Return the JSON names of the fields at `place`, which begins at `model`."""
    models = [model]
    for name in place:
        if isinstance(name, str):  # a position in a list changes no model
            fields = [fields_of(each).get(name) for each in models]
            models = [found for field in fields if field for found in _models_in(field.annotation)]
    return {name for each in models for name in fields_of(each)}


def _models_in(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]


def _broken_problem(path: str, broken: Broken, value: Any) -> InvalidJob:
    """Return the InvalidJob for a rule that `value`, which is at `path`, breaks."""
    where = path + (broken.field if broken.field[:1] in ".[" else f".{broken.field}")
    given = part_at(value, broken.field)
    if given is None and broken.default is not None:
        return misfit(where, broken.rule, broken.default, " (the default)")
    return misfit(where, broken.rule, given)


def misfit(path: str, rule: str, value: Any, note: str = "") -> InvalidJob:
    """Return the InvalidJob for a rule that the value at `path` breaks, with the value."""
    return InvalidJob(path, f"{rule}, got {show(value, path)}{note}", value)


# The values of these fields may hold a secret. A variable's name does not.
_SECRET = re.compile(r"[.](args|command|volumeAttributes)\b|[.]env(\[[^]]*])?([.]value|[.]name)?$")


def show(value: Any, path: str = "") -> str:
    """Return `value` as a message quotes it: one line of at most 80 characters.

    Of an object it has the names of its fields alone. It has nothing of the texts in commands and
    environments, because they may be secrets, and messages are written to logs and Events.
    """
    if value and _SECRET.search(path):
        if isinstance(value, list):
            return "a list"
        if isinstance(value, str) and not path.endswith(".name"):
            return "a text"
    text = _words(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _words(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(below(str(key)).removeprefix(".") for key in islice(value, 80)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_words, value[:80])) + "]"
    return repr(value)
