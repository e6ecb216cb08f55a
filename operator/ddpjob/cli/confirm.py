"""Asks before something is lost: on a terminal, and only there."""

import os

import typer

from ddpjob.cli.exits import Exit
from ddpjob.cli.say import note

STDIN, STDERR = 0, 2


def check_can_ask() -> None:
    """Raise typer.BadParameter where nobody could answer."""
    if not (os.isatty(STDIN) and os.isatty(STDERR)):
        raise typer.BadParameter("needed, as there is no terminal to ask on", param_hint="--yes")


def confirm(question: str) -> None:
    """Ask on the terminal, and end the command unless the answer is yes."""
    try:
        is_wanted = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        note("")
        is_wanted = False
    if not is_wanted:
        note("nothing was deleted")
        raise typer.Exit(Exit.DETACHED)
