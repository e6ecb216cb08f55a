"""`ddpjob describe`: one job, its attempts, what failed first, and what to do."""

from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Name, Namespace, Place, Record


def describe(
    name: Name = None,
    output: Annotated[Record, typer.Option("--output", "-o", help="text or json.")] = Record.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Describe a job: how it is and why, its attempts, what failed first, and what to do next."""
    from ddpjob.cli.describing import print_description

    print_description(Place(namespace, context, kubeconfig), name, output)
