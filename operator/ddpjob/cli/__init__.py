"""The command line: `ddpjob …`, also as `kubectl ddpjob …`."""

import logging
from typing import Annotated

import typer

from ddpjob import __version__, logs
from ddpjob.cli.convert import convert as convert_command
from ddpjob.cli.crd import crd as crd_command
from ddpjob.cli.plot import plot as plot_command
from ddpjob.cli.run import run as run_command
from ddpjob.cli.say import say
from ddpjob.cli.uninstall import uninstall as uninstall_command
from ddpjob.cli.validate import validate as validate_command

app = typer.Typer(
    name="ddpjob",
    help="Distributed PyTorch on Kubernetes, or on this machine.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run_command)
app.command("validate")(validate_command)
app.command("plot")(plot_command)
app.command("convert")(convert_command)
app.command("crd")(crd_command)
app.command("uninstall")(uninstall_command)


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
    logs.configure(logging.WARNING, "%(message)s")
    app()
