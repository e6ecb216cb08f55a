"""`ddpjob uninstall`: removes the operator from a cluster.

Jobs stay by default, and their pods run on without an operator.
"""

from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Place


def uninstall(
    delete_jobs: Annotated[
        bool,
        typer.Option(
            "--delete-jobs",
            help="First delete every DDPJob that the operator watches, and wait until its pods are "
            "deleted.",
        ),
    ] = False,
    delete_crd: Annotated[
        bool,
        typer.Option(
            "--delete-crd", help="Also delete the CRD. This deletes every DDPJob in the cluster."
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Do not ask before jobs are deleted. Without a terminal it is needed.",
        ),
    ] = False,
    release: Annotated[str, typer.Option(help="Name of the Helm release.")] = "ddpjob",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the Helm release.")
    ] = "ddpjob-system",
    timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds to wait until the pods of deleted jobs are gone."),
    ] = 300.0,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Remove the operator of one namespace from the cluster.

    Jobs stay. Their pods run on without an operator, and a later installation continues the jobs.
    Operators in other namespaces stay, and so do the objects that they share with this one. No
    object of ddpjob has finalizers, so no deletion can get stuck.

    Before jobs are deleted, they are listed and you are asked. No job is deleted that another
    operator watches too, or if the operator's Deployment is gone, so that nobody knows which jobs
    are its. The exit code is 3 if it is, or if there is no such release but another one; 5 if
    another operator needs the CRD or Helm fails; 124 if pods are left after --timeout, and nothing
    but the jobs is removed then; 130 if the question is answered with anything but yes.
    """
    from ddpjob.cli.uninstalling import Release  # only cluster commands pay for the client

    found = Release(Place(context=context, kubeconfig=kubeconfig), release, namespace)
    found.remove(delete_jobs=delete_jobs, delete_crd=delete_crd, timeout=timeout, yes=yes)
