"""`ddpjob uninstall`: the operator leaves the cluster.

Jobs stay and run on unwatched, unless told otherwise.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from ddpjob import keys

CRD_NAME = f"{keys.PLURAL}.{keys.GROUP}"

# Every kind that the chart makes, dependants first; one list with charts/ddpjob/templates, held by
# a test.
NAMESPACED = [
    ("apps/v1", "Deployment"),
    ("policy/v1", "PodDisruptionBudget"),
    ("coordination.k8s.io/v1", "Lease"),
    ("v1", "Service"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
]
CLUSTER_WIDE = [
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("v1", "Namespace"),
]


def uninstall(
    delete_jobs: Annotated[
        bool,
        typer.Option(
            "--delete-jobs", help="First delete every DDPJob, and wait until its pods are gone."
        ),
    ] = False,
    delete_crd: Annotated[
        bool,
        typer.Option("--delete-crd", help="Also delete the CRD, and with it every DDPJob left."),
    ] = False,
    release: Annotated[str, typer.Option(help="Name of the Helm release.")] = "ddpjob",
    namespace: Annotated[
        str, typer.Option(help="Namespace that the operator was installed in.")
    ] = "ddpjob-system",
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig; the current one if not given.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds to wait for pods to end.")
    ] = 300.0,
) -> None:
    """Remove the operator from the cluster.

    Jobs stay: their pods run on, unwatched, and a later install takes them up again. Nothing of
    ddpjob's holds finalizers, so nothing can get stuck.
    """
    from kubernetes import config, dynamic  # slow to import; only cluster commands pay for it
    from kubernetes.client import ApiException

    try:
        api_client: Any = config
        client: Any = dynamic
        client = client.DynamicClient(api_client.new_client_from_config(context=context))
    except (config.ConfigException, ApiException, OSError) as error:
        typer.echo(f"no cluster: {error}", err=True)
        raise typer.Exit(1) from None
    cluster = _Cluster(client)
    jobs = cluster.jobs()
    if jobs and delete_jobs:
        _delete_jobs(cluster, jobs, timeout)
    elif jobs:
        typer.echo(f"{len(jobs)} DDPJobs stay; their pods run on unwatched")
    if _helm_release(client, release, namespace):
        _helm_uninstall(release, namespace, context)
    labels = f"app.kubernetes.io/name=ddpjob,app.kubernetes.io/instance={release}"
    for group in (NAMESPACED, CLUSTER_WIDE):
        for version, kind in group:
            for found in cluster.list(version, kind, labels):
                cluster.delete(version, kind, found)
    if delete_crd and cluster.jobs_are_known:
        cluster.delete_by_name("apiextensions.k8s.io/v1", "CustomResourceDefinition", CRD_NAME)
    elif cluster.jobs_are_known:
        typer.echo(f"the CRD {CRD_NAME} stays (--delete-crd removes it and every DDPJob left)")


class _Cluster:
    """The few verbs that this command needs, on any kind; prints what it deletes."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def _kind(self, version: str, kind: str) -> Any:
        return self._client.resources.get(api_version=version, kind=kind)

    @property
    def jobs_are_known(self) -> bool:
        from kubernetes.dynamic.exceptions import ResourceNotFoundError

        try:
            self._kind(keys.API_VERSION, keys.KIND)
        except ResourceNotFoundError:
            return False
        return True

    def jobs(self) -> list[Any]:
        return self.list(keys.API_VERSION, keys.KIND) if self.jobs_are_known else []

    def list(self, version: str, kind: str, labels: str = "") -> list[Any]:
        return list(self._kind(version, kind).get(label_selector=labels).items)

    def delete(self, version: str, kind: str, found: Any) -> None:
        self.delete_by_name(version, kind, found.metadata.name, found.metadata.namespace)

    def delete_by_name(
        self, version: str, kind: str, name: str, namespace: str | None = None
    ) -> None:
        from kubernetes.dynamic.exceptions import NotFoundError

        try:
            self._kind(version, kind).delete(
                name=name, namespace=namespace, body={"propagationPolicy": "Background"}
            )
        except NotFoundError:
            return
        where = f" in {namespace}" if namespace else ""
        typer.echo(f"deleted {kind} {name}{where}")


def _delete_jobs(cluster: _Cluster, jobs: list[Any], timeout: float) -> None:
    for job in jobs:
        cluster.delete(keys.API_VERSION, keys.KIND, job)
    labels = f"{keys.MANAGED_BY_LABEL}={keys.MANAGED_BY}"
    kinds = [("v1", "Pod"), ("v1", "Service"), ("v1", "ConfigMap")]
    left = _wait(lambda: [x for k in kinds for x in cluster.list(*k, labels)], timeout)
    if left:
        names = ", ".join(f"{x.kind} {x.metadata.namespace}/{x.metadata.name}" for x in left[:5])
        typer.echo(
            f"still there after {timeout:.0f} s: {names}; nothing else was removed", err=True
        )
        raise typer.Exit(1)


def _wait(remaining: Callable[[], list[Any]], timeout: float) -> list[Any]:
    deadline = time.monotonic() + timeout
    for left in _polled(remaining):
        if not left or time.monotonic() > deadline:
            return left
    raise AssertionError


def _polled(remaining: Callable[[], list[Any]]) -> Iterator[list[Any]]:
    while True:
        yield remaining()
        time.sleep(1.0)


def _helm_release(client: Any, release: str, namespace: str) -> bool:
    """Whether Helm knows this release: it keeps a Secret for each revision."""
    secrets = client.resources.get(api_version="v1", kind="Secret")
    found = secrets.get(namespace=namespace, label_selector=f"owner=helm,name={release}")
    return bool(found.items)


def _helm_uninstall(release: str, namespace: str, context: str | None) -> None:
    where = ["--namespace", namespace] + (["--kube-context", context] if context else [])
    command = ["helm", "uninstall", release, *where, "--wait"]
    if not shutil.which("helm"):
        typer.echo(f"installed by Helm, and helm is not on PATH: run {' '.join(command)}", err=True)
        raise typer.Exit(1)
    if subprocess.run(command, check=False).returncode:
        raise typer.Exit(1)
