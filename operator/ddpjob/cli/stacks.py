"""`ddpjob stacks`: where each rank is, and which one the others wait for."""

from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Name, Namespace, Place, Record
from ddpjob.ranks import MAX_WORLD_SIZE


def stacks(
    name: Name = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_WORLD_SIZE - 1, help="Print the whole stacks of this global rank."
        ),
    ] = None,
    namespace: Namespace = None,
    output: Annotated[
        Record, typer.Option("--output", "-o", help="Text, or one object of JSON.")
    ] = Record.TEXT,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show where the ranks of a job are: those with the same Python stack in one line.

    The rank that the others wait for is most often one that differs. The agents in the pods are
    asked through port-forward; asking disturbs no rank.
    """
    from ddpjob.cli.stackview import show, show_rank

    place = Place(namespace, context, kubeconfig)
    if rank is None:
        show(place, name, output)
    else:
        show_rank(place, name, rank, output)
