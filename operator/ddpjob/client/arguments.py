"""Arguments of a call that is sent as JSON: the errors that say why one cannot be. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ddpjob.errors import InvalidJob

# Bytes of the arguments as JSON. The code of a job has a few MiB.
MAX_ARGUMENTS = 64 * 1024


def refusal(rule: str) -> InvalidJob:
    """Return the error that says why a call cannot be sent."""
    return InvalidJob("launch", rule)


def right_place(name: str, value: Any) -> str:
    """Return where a keyword argument belongs that the function, or the script, does not take."""
    if name in ("namespace", "context", "kubeconfig"):
        return f"pass client=Client({name}={value!r})"
    return "fields of the job belong into spec={...}"


def check_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidJob unless all of these arguments are JSON, and not too large."""
    if is_endless([args, dict(kwargs)]):
        raise refusal("an argument contains itself, or is nested too deeply")
    named = [*((f"argument {i}", value) for i, value in enumerate(args, start=1)), *kwargs.items()]
    for name, value in named:
        if problem := json_problem(value, name):
            raise refusal(problem)
    size = len(json.dumps([list(args), dict(kwargs)]))
    if size > MAX_ARGUMENTS:
        text = f"the arguments have {size:,} bytes as JSON, and {MAX_ARGUMENTS:,} are the limit"
        raise refusal(f"{text}; send them as a file of the folder")


def is_endless(value: Any) -> bool:
    """Return whether lists and dicts contain themselves, or are nested very deeply."""
    try:
        json.dumps(value, default=lambda other: None, skipkeys=True)
    except (ValueError, RecursionError):
        return True
    return False


def json_problem(value: Any, where: str) -> str:
    """Return why a value cannot be sent as JSON, or an empty text. Tuples are lists in JSON."""
    if value is None or type(value) in (bool, int, float, str):
        return ""
    if type(value) in (list, tuple):
        parts = [(f"{where}[{i}]", part) for i, part in enumerate(value)]
    elif type(value) is dict:
        if wrong := [key for key in value if type(key) is not str]:
            return f"{where} has the key {wrong[0]!r}, and keys of JSON are texts"
        parts = [(f"{where}[{key!r}]", part) for key, part in value.items()]
    else:
        kind = type(value).__name__
        return (
            f"{where} is a {kind}, which cannot be sent; arguments are numbers, texts, lists and "
            "dicts of them"
        )
    return next(filter(None, (json_problem(part, name) for name, part in parts)), "")
