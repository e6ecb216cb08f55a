"""Ctrl-C while a command looks on: the job goes on, and how to come back to it is said."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ddpjob.cli.say import note


@contextmanager
def detaching(*lines: str) -> Iterator[None]:
    """Print these lines if Ctrl-C ends the block, and end the command with exit code 130."""
    from ddpjob.cli.exits import Exit

    try:
        yield
    except KeyboardInterrupt:
        note("", *lines)
        raise typer.Exit(Exit.DETACHED) from None
