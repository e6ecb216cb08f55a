"""The command line: `ddpjob …`, also as `kubectl ddpjob …`.

A verb is in the module of its name, which is imported when the verb is asked for.
"""

import errno
import logging
import signal
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ddpjob.cli.exits import report, report_unforeseen
from ddpjob.cli.job_options import ProgramCommand
from ddpjob.cli.options import spread
from ddpjob.cli.output import close, escape_the_unknown, note, say
from ddpjob.errors import DDPJobError
from ddpjob.text import Lines, configure
from ddpjob.version import __version__

# For each verb the first sentence of its help. Its function has its name, and so has its module.
VERBS = {
    "submit": "Train with a script on the cluster: send its folder, and create the job.",
    "dev": "Train with a script, and again with each save of a file: new processes in the "
    "same pods.",
    "run": "Run a job on this machine, with the restarts and the progress that it "
    "has on a cluster.",
    "get": "Show jobs: state, progress, and why one is not running.",
    "describe": "Describe a job: how it is and why, its attempts, what failed first, and "
    "what to do next.",
    "logs": "Print what the ranks have printed: rank 0, or the one that failed first.",
    "wait": "Wait for jobs, by default until they have finished, or are Idle.",
    "top": "Show the progress of a job and of each node, in a table that changes until "
    "the job ends.",
    "stacks": "Show where the ranks of a job are: those with the same Python stack in one line.",
    "plot": "Plot a training's loss by step, with its restarts.",
    "suspend": "End the pods of a job, and keep the job: its ranks have their grace period "
    "to save.",
    "resume": "Start a suspended job again, with a new attempt.",
    "update": "Go on with other code, arguments or variables: new processes in the same pods.",
    "rerun": "Create a new job with the spec and the code of this one, which stays as it is.",
    "delete": "Delete jobs, with their pods and logs.",
    "validate": "Check job files by the rules of the API server and of the operator, without "
    "a cluster.",
    "convert": "Turn PyTorchJobs and TrainJobs into DDPJobs, and print these.",
    "doctor": "Check login, API, operator, rights and free GPUs, and say what to do about "
    "each gap.",
    "crd": "Print the CustomResourceDefinition of DDPJob.",
    "version": "Print the versions of this program and, if the cluster answers, of the "
    "operator there.",
}
# Those with words after `--`.
WITH_PROGRAM = ("submit", "dev", "run", "update", "rerun")
# Options that may stand before the command.
PLACES = ("-n", "--namespace", "--context", "--kubeconfig")
# By these a command ends on purpose. The base of all errors of usage is typer's own in one version,
# and click's in another.
_TYPERS: tuple[type[BaseException], ...] = (
    typer.Exit,
    typer.Abort,
    EOFError,
    *(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)


class Verbs(TyperGroup):
    """The group of the verbs. What lists them, or completes one, imports none."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=text) for name, text in VERBS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that the arguments name, with its options."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and load(listed.name), rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the options of the place before the command too, as kubectl does."""
        rest, place = list(args), list[str]()
        while rest and rest[0].startswith(PLACES):
            count = 1 if "=" in rest[0] or rest[0].startswith("-n") and rest[0] != "-n" else 2
            place, rest = place + rest[:count], rest[count:]
        return super().parse_args(ctx, [*rest[:1], *place, *rest[1:]])

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except _TYPERS:
            raise
        except KeyboardInterrupt as stopped:
            note(*getattr(stopped, "__notes__", ()))  # what it has left behind
            raise
        except DDPJobError as error:
            raise typer.Exit(report(error)) from None
        except Exception as error:
            if getattr(error, "errno", None) != errno.EPIPE:
                raise typer.Exit(report_unforeseen(error)) from None
            close()  # nobody reads any more (`| head`)
            raise typer.Exit(128 + signal.SIGPIPE) from None


def load(verb: str | None) -> Any:
    """Import the module of a verb, and return its command."""
    function = getattr(import_module(f"ddpjob.cli.{verb}"), str(verb))
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(verb, cls=ProgramCommand if verb in WITH_PROGRAM else None)(spread(function))
    return typer.main.get_command(alone)


app = typer.Typer(
    name="ddpjob",
    cls=Verbs,
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
    configure(logging.WARNING, Lines("%(message)s"))
    escape_the_unknown()
    app(prog_name="ddpjob")
