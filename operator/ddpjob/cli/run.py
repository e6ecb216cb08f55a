"""`ddpjob run`: a job on this machine, with the restarts and the progress of a cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ddpjob.cli.job_options import Asked
from ddpjob.cli.options import Recorded

# An option of `submit` that has no effect here: one command line may be tried on both.
Unused = Annotated[str | None, typer.Option(hidden=True)]


@dataclass(frozen=True)
class Here:
    """How a job is run on this machine."""

    logs: Annotated[
        bool, typer.Option("--logs/--quiet", help="Print the output of rank 0, or do not.")
    ] = True
    directory: Annotated[
        Path, typer.Option(help="Folder for logs, and for the folders that stand in for volumes.")
    ] = Path(".ddpjob")
    grace: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds in which the ranks may save and exit after Ctrl-C or SIGTERM."
        ),
    ] = 10.0
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the pods' own folders (HOME, caches) after the run."),
    ] = False
    output: Recorded = "text"


def run(
    ctx: typer.Context,
    asked: Asked,
    here: Here,
    local: Annotated[bool, typer.Option("--local", help="The default: on this machine.")] = True,
    code_include: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    watch: Annotated[bool | None, typer.Option("--watch/--detach", hidden=True)] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", hidden=True)] = None,
    context: Unused = None,
    kubeconfig: Unused = None,
) -> None:
    """Run a job on this machine, with the restarts and the progress that it has on a cluster.

    The options are those of `ddpjob submit`. Those of a cluster have no effect, and the first line
    names them. The exit code is 0 if the job succeeded, and 1 if it failed. It is 2 if the file is
    invalid, or asks for GPUs that this machine does not have. It is 130 after Ctrl-C, and 143 after
    SIGTERM. A second Ctrl-C kills all processes at once.
    """
    from ddpjob.cli.local import run_here  # the controller is slow to import

    run_here(asked.within(ctx), here)
