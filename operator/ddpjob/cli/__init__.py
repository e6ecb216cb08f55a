"""The command line: `ddpjob …`, also as `kubectl ddpjob …`.

The modules that are imported here hold the commands' options and little else: what a command needs
beyond them is imported when it runs, because `--help` and each TAB import all of them.
"""

import logging
from typing import Annotated

import typer

from ddpjob.cli.completion import completion as completion_command
from ddpjob.cli.convert import convert as convert_command
from ddpjob.cli.crd import crd as crd_command
from ddpjob.cli.delete import delete as delete_command
from ddpjob.cli.describe import describe as describe_command
from ddpjob.cli.doctor import doctor as doctor_command
from ddpjob.cli.exits import Commands
from ddpjob.cli.get import get as get_command
from ddpjob.cli.logs import logs as logs_command
from ddpjob.cli.plot import plot as plot_command
from ddpjob.cli.program import ProgramCommand
from ddpjob.cli.rerun import rerun as rerun_command
from ddpjob.cli.resume import resume as resume_command
from ddpjob.cli.run import run as run_command
from ddpjob.cli.say import escape_the_unknown, say
from ddpjob.cli.stacks import stacks as stacks_command
from ddpjob.cli.submit import submit as submit_command
from ddpjob.cli.suspend import suspend as suspend_command
from ddpjob.cli.top import top as top_command
from ddpjob.cli.validate import validate as validate_command
from ddpjob.cli.version import version as version_command
from ddpjob.cli.wait import wait as wait_command
from ddpjob.logs import configure as configure_log
from ddpjob.version import __version__

HELP = "Distributed PyTorch on Kubernetes, or on this machine."

app = typer.Typer(
    name="ddpjob",
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # its import takes as long as all the rest of `--help`
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("submit", cls=ProgramCommand)(submit_command)
app.command("run", cls=ProgramCommand)(run_command)
app.command("get")(get_command)
app.command("describe")(describe_command)
app.command("logs")(logs_command)
app.command("wait")(wait_command)
app.command("top")(top_command)
app.command("stacks")(stacks_command)
app.command("plot")(plot_command)
app.command("suspend")(suspend_command)
app.command("resume")(resume_command)
app.command("rerun", cls=ProgramCommand)(rerun_command)
app.command("delete")(delete_command)
app.command("validate")(validate_command)
app.command("convert")(convert_command)
app.command("doctor")(doctor_command)
app.command("crd")(crd_command)
app.command("completion")(completion_command)
app.command("version")(version_command)


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
