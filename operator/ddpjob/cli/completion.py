"""`ddpjob completion`: the script with which a shell completes commands, options and jobs.

kubectl completes `kubectl ddpjob …` by the program `kubectl_complete-ddpjob`. It gives that program
the words after `ddpjob`, the last of which is to be completed, and reads the completions and
`:DIRECTIVE`, as cobra's own programs print them.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ddpjob.cli.options import bad
from ddpjob.cli.output import document, say

# Files are completed where there is no other completion, as in the scripts of `ddpjob completion`.
DIRECTIVE = ":0"


SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None,
        typer.Argument(metavar="SHELL", help="bash, zsh or fish; by default $SHELL."),
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
    if name not in SHELLS:
        raise bad(f"$SHELL is {name!r}; name one of {', '.join(SHELLS)}", "SHELL")
    script = scripts.get_completion_script(
        prog_name="ddpjob", complete_var="_DDPJOB_COMPLETE", shell=str(name)
    )
    document(script)


def complete() -> None:
    """Print the completions of the arguments: the entry point of `kubectl_complete-ddpjob`."""
    from ddpjob.cli import main

    words = ["ddpjob", *sys.argv[1:]]
    os.environ["_DDPJOB_COMPLETE"] = "complete_bash"
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = shlex.join(words), str(len(words) - 1)
    sys.argv = words[:1]
    try:
        main()
    finally:
        say(DIRECTIVE)
