"""`ddpjob run`: a job on this machine, with the restarts and the progress of a cluster."""

from typing import Annotated

import typer

from ddpjob.cli.job_options import Asked, Here

# An option of `submit` that has no effect here: one command line may be tried on both.
Unused = Annotated[str | None, typer.Option(hidden=True)]


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
