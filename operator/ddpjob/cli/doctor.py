"""`ddpjob doctor`: what a user needs of a cluster, and what is missing."""

from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Namespace, Place, Record


def doctor(
    admin: Annotated[bool, typer.Option("--admin", help="Check the installation too.")] = False,
    namespace: Namespace = None,
    output: Annotated[
        Record, typer.Option("--output", "-o", help="Text, or one object of JSON.")
    ] = Record.TEXT,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check login, API, operator, rights and free GPUs, and say what to do about each gap.

    ok is in order, warn works in part, FAIL has to be mended, and ? cannot be seen by this user.
    The exit code is 0 if nothing fails, 3 without the DDPJob API or an operator, 4 without a login
    or a right, and 5 if --admin finds a fault of the installation; the first check that fails
    decides. Nothing is created: the API server is asked to check a job, and stores none.
    """
    from ddpjob.cli.diagnosis import diagnose

    raise typer.Exit(diagnose(Place(namespace, context, kubeconfig), output, admin=admin))
