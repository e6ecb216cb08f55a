"""`ddpjob top`: how far a job is, and each of its nodes."""

from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Name, Namespace, Place, Record


def top(
    name: Name = None,
    interval: Annotated[
        float, typer.Option(min=0.5, max=86400, help="Seconds between two looks at the nodes.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table. Without a terminal it is the default.")
    ] = False,
    namespace: Namespace = None,
    output: Annotated[
        Record, typer.Option("--output", "-o", help="Text, or one object of JSON.")
    ] = Record.TEXT,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the progress of a job and of each node, in a table that changes until the job ends.

    STEPS/S is what a node has done since the last look; --once and -o json look twice, a second
    apart. IDLE is the time since its last step. The agents in the pods are asked through
    port-forward; who may not do that sees the job's status alone. Ctrl-C ends the command, and the
    job runs on.
    """
    from ddpjob.cli.topview import View

    view = View(Place(namespace, context, kubeconfig), name)
    if output is Record.JSON:
        view.print_record()
    else:
        view.show(interval, once=once)
