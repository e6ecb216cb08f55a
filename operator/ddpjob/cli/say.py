"""Prints what the commands have to say, which may quote anybody. Nothing else prints.

live.py, which prints the logs of a local run in their own colours, is the one exception.
"""

import io
import os
import sys
from collections.abc import Iterable

import typer

from ddpjob.text import printable, printable_lines


def escape_the_unknown() -> None:
    """Have characters that an output does not have, as those of a log, printed as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(*lines: str, err: bool = False) -> None:
    """Print each of these as one printable line."""
    if lines:
        typer.echo("\n".join(map(printable, lines)), err=err)


def note(*lines: str) -> None:
    """Print lines of ddpjob itself to standard error, so that they are not among the data."""
    say(*lines, err=True)


def document(text: str) -> None:
    """Print a text of several lines, such as an object in JSON, as printable lines."""
    typer.echo(printable_lines(text.removesuffix("\n")))


def coloured(lines: Iterable[tuple[str, int | None, str]]) -> None:
    """Print lines that begin with some words in a colour, an SGR code; None is no colour."""
    texts = (
        f"{printable(head)}{printable_lines(text)}"
        if colour is None
        else f"\x1b[{colour}m{printable(head)}\x1b[0m{printable_lines(text)}"
        for head, colour, text in lines
    )
    if found := "\n".join(texts):
        typer.echo(found)


def raw(content: bytes) -> None:
    """Print bytes as they are. Only for somebody who has asked for that."""
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def close() -> None:
    """Give up standard output, which nobody reads. Python would write what is left at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
