"""`ddpjob completion`: the script with which a shell completes commands, options and jobs."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ddpjob.cli.say import document
from ddpjob.cli.values import bad


class Shell(StrEnum):
    """A shell that has completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[
        Shell | None, typer.Argument(metavar="SHELL", help="bash, zsh or fish; by default $SHELL.")
    ] = None,
) -> None:
    """Print the completion script of a shell.

    To have it in every session: ddpjob completion bash >> ~/.bashrc, or
    ddpjob completion zsh >> ~/.zshrc, or
    ddpjob completion fish > ~/.config/fish/completions/ddpjob.fish
    """
    from typer import completion as library

    scripts: Any = library
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in tuple(Shell):
        raise bad(f"$SHELL is {name!r}; name one of {', '.join(Shell)}", "SHELL")
    script = scripts.get_completion_script(
        prog_name="ddpjob", complete_var="_DDPJOB_COMPLETE", shell=str(name)
    )
    document(script)
