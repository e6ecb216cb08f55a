"""`ddpjob wait`: ends when jobs do, with their result."""

from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Names, Namespace, Place, Record
from ddpjob.cli.values import seconds


def wait(
    names: Names = None,
    until: Annotated[
        str, typer.Option("--for", help="finished, running, or step=N: that step at least.")
    ] = "finished",
    timeout: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Give up after a time such as 8h."),
    ] = None,
    refused_after: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="Give up on a job whose pods are refused for so long. By default it is 30s.",
        ),
    ] = None,
    any_: Annotated[bool, typer.Option("--any", help="Until one of the jobs is, not all.")] = False,
    output: Annotated[
        Record, typer.Option("--output", "-o", help="text, or json: an object a job.")
    ] = (Record.TEXT),
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait for jobs, by default until they have finished.

    A line is printed for each job. The exit code is 0 if all have succeeded, or are as far as
    --for says. It is 1 if one has failed, 3 if one was deleted, 5 if the pods of one are refused,
    and 124 after --timeout. Ctrl-C ends the command (130), and the jobs run on.
    """
    from ddpjob.cli.waiting import Wait

    place = Place(namespace, context, kubeconfig)
    waiting = Wait(
        place, until, output, until_any=any_, timeout=timeout, refused_after=refused_after
    )
    raise typer.Exit(waiting.run(names or []))
