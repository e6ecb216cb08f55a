"""`ddpjob run --local`: the operator's controller on an embedded cluster, with local processes."""

from pathlib import Path
from typing import Annotated

import typer

from ddpjob.cli.exits import Exit
from ddpjob.cli.say import say


def run(
    file: Annotated[str, typer.Argument(help="Job file, YAML or JSON. - is standard input.")],
    local: Annotated[
        bool, typer.Option("--local", help="Run the pods as processes of this machine.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Run the job under this name.")] = None,
    logs: Annotated[
        bool, typer.Option("--logs/--quiet", help="Print the output of rank 0, or do not.")
    ] = True,
    directory: Annotated[
        Path, typer.Option(help="Folder for logs, and for the folders that stand in for volumes.")
    ] = Path(".ddpjob"),
    grace: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds in which the ranks may save and exit after Ctrl-C or SIGTERM."
        ),
    ] = 10.0,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the pods' own folders (HOME, caches) after the run."),
    ] = False,
    code: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the job's own code, which is used as it is. The ranks start in it, "
            "and find its modules.",
        ),
    ] = None,
) -> None:
    """Run a job on this machine, with the restarts and the progress that it has on a cluster.

    The exit code is 0 if the job succeeded, and 1 if it failed. It is 2 if the file is invalid, or
    asks for GPUs that this machine does not have. It is 130 after Ctrl-C, and 143 after SIGTERM. A
    second Ctrl-C kills all processes at once.
    """
    if not local:
        say(f"--local is missing; to run the job on a cluster: kubectl apply -f {file}", err=True)
        raise typer.Exit(Exit.USAGE)
    from ddpjob.cli.session import start  # the controller takes longer to import than `--help` may

    raise typer.Exit(
        start(file, name, logs=logs, directory=directory, grace=grace, keep=keep, code=code)
    )
