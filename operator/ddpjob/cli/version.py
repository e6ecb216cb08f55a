"""`ddpjob version`: of this program, the operator and the definition in the cluster."""

from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Namespace, Place, Record


def version(
    client: Annotated[bool, typer.Option("--client", help="Of this program alone.")] = False,
    output: Annotated[Record, typer.Option("--output", "-o", help="text or json.")] = Record.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the versions of this program and, if the cluster answers, of the operator there.

    It also says whether the definition of DDPJob in the cluster is older or newer than this
    program. The exit code is 0 even if the cluster does not answer.
    """
    from ddpjob.cli.versions import print_versions

    print_versions(None if client else Place(namespace, context, kubeconfig), output)
