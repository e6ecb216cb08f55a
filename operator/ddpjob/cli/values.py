"""Values of options that several commands take: times such as 8h, files, and what they must be."""

import re
from typing import Annotated

import typer

from ddpjob.text import printable

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([dhms])", re.ASCII)

# Beside the argument FILES, because `kubectl apply` and `submit` have the option.
FileNames = Annotated[
    list[str] | None,
    typer.Option("--filename", "-f", help="Another way to name a file. May be repeated."),
]


def seconds(text: str) -> float:
    """Return a time such as `8h`, `1h30m`, `90s` or `90` in seconds. Raises typer.BadParameter."""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", text, re.ASCII):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise bad(f"must be a time such as 90s, 30m, 8h or 1h30m, got {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def bad(rule: str, option: str | None = None) -> typer.BadParameter:
    """Return the error for an option's value: the rule, and the value."""
    return typer.BadParameter(printable(rule), param_hint=option)


def files_of(arguments: list[str] | None, option: list[str] | None) -> list[str]:
    """Return the files that a command was given in either way. Raises BadParameter for none."""
    if found := [*(arguments or ()), *(option or ())]:
        return found
    raise bad("name a file; - is standard input", "FILES")
