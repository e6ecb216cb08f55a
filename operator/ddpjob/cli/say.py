"""Prints the lines of the commands, which may quote anybody. live.py prints logs of pods."""

import sys

import typer

from ddpjob.text import printable

# The exit code of all commands for what a user gave them and they cannot take.
BAD_INPUT = 2


def say(*lines: str, err: bool = False) -> None:
    """Print each of these as one printable line."""
    for line in lines:
        typer.echo(printable(line), err=err)


def can_print(text: str) -> bool:
    """Return whether standard output has all characters of `text`."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
