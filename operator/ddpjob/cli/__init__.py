"""The command line: `ddpjob …`, also as `kubectl ddpjob …`.

A verb is in the module of its name, which is imported when the verb is asked for.
"""

import logging
from typing import Annotated

import typer

from ddpjob.cli.say import escape_the_unknown, say
from ddpjob.cli.verbs import Verbs
from ddpjob.logs import configure as configure_log
from ddpjob.version import __version__

HELP = "Distributed PyTorch on Kubernetes, or on this machine."

app = typer.Typer(
    name="ddpjob",
    cls=Verbs,
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # its import takes as long as all the rest of `--help`
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Distributed PyTorch on Kubernetes, or on this machine."""


def main() -> None:
    """Run the command line: the entry point of the console scripts."""
    configure_log(logging.WARNING, "%(message)s")
    escape_the_unknown()
    app(prog_name="ddpjob")
