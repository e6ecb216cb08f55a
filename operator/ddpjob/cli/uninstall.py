"""`ddpjob uninstall`: removes the operator from a cluster.

Jobs stay by default, and their pods run on without an operator.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ddpjob import names
from ddpjob.cli.say import say
from ddpjob.client.why import FINISHED

CRD_NAME = f"{names.PLURAL}.{names.GROUP}"

# Every kind that the chart creates, dependants first. A test compares it with
# charts/ddpjob/templates.
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
    release: Annotated[str, typer.Option(help="Name of the Helm release.")] = "ddpjob",
    namespace: Annotated[
        str, typer.Option(help="Namespace of the Helm release.")
    ] = "ddpjob-system",
    context: Annotated[
        str | None,
        typer.Option(help="Context of the kubeconfig. By default it is the current context."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds to wait until the pods of deleted jobs are gone."),
    ] = 300.0,
) -> None:
    """Remove the operator of one namespace from the cluster.

    Jobs stay. Their pods run on without an operator, and a later installation continues the jobs.
    Operators in other namespaces stay, and so do the objects that they share with this one. No
    object of ddpjob has finalizers, so no deletion can get stuck.
    """
    with TemporaryDirectory() as folder:  # the cache of discovery must not outlive the cluster
        cluster = _Cluster(_connect(context, f"{folder}/discovery.json"), release, namespace)
        here, others = cluster.operators()
        helm = cluster.is_helms()
        if others and not helm and not cluster.ours():
            there = ", ".join(f"{other.release} in {other.namespace}" for other in others)
            say(
                f"no release {release} in namespace {namespace} (--release, --namespace); "
                f"releases in this cluster: {there}",
                err=True,
            )
            raise typer.Exit(1)
        if delete_crd and others:
            names = ", ".join(sorted({other.namespace for other in others}))
            say(f"--delete-crd: the operator in {names} still needs the CRD", err=True)
            raise typer.Exit(1)
        jobs = cluster.jobs(here.watches if here else ())
        unfinished = [job for job in jobs if (job.status or {}).get("state") not in FINISHED]
        if jobs and delete_jobs:
            _delete_jobs(cluster, jobs, timeout)
        elif unfinished and here:
            say(f"{len(unfinished)} DDPJobs stay; their pods run on without an operator")
        if helm:
            _helm_uninstall(release, namespace, context)
        for version, kind, found in cluster.ours(shared=not others):
            cluster.delete(version, kind, found)
        if not (here or helm or cluster.deleted):
            say(f"nothing is left of release {release} in namespace {namespace}")
        if delete_crd and cluster.jobs_are_known:
            cluster.delete_by_name("apiextensions.k8s.io/v1", "CustomResourceDefinition", CRD_NAME)
        elif cluster.jobs_are_known:
            say(f"the CRD {CRD_NAME} stays (--delete-crd deletes it and every DDPJob)")


def _connect(context: str | None, cache_file: str) -> Any:
    from kubernetes import config, dynamic  # slow to import; only cluster commands pay for it
    from kubernetes.client import ApiException

    try:
        api_client: Any = config
        client: Any = dynamic
        return client.DynamicClient(
            api_client.new_client_from_config(context=context), cache_file=cache_file
        )
    except (config.ConfigException, ApiException, OSError) as error:
        say(f"cannot connect to the cluster: {error}", err=True)
        raise typer.Exit(1) from None


@dataclass(frozen=True)
class _Operator:
    """An operator's Deployment."""

    release: str
    namespace: str
    watches: tuple[str, ...]
    """Namespaces that it watches. Without any it watches all namespaces."""


class _Cluster:
    """The verbs that this command needs, for all kinds. It prints the objects that it deletes."""

    def __init__(self, client: Any, release: str, namespace: str) -> None:
        self._client, self._release, self._namespace = client, release, namespace
        self.deleted = 0

    def _kind(self, version: str, kind: str) -> Any:
        return self._client.resources.get(api_version=version, kind=kind)

    def operators(self) -> tuple[_Operator | None, list[_Operator]]:
        """Return the operator to remove, if it is there, and all other operators."""
        found = []
        for body in self.list("apps/v1", "Deployment", "app.kubernetes.io/name=ddpjob"):
            metadata, container = body.metadata, body.spec.template.spec.containers[0]
            options = [text.partition("=") for text in container.args or ()]
            watches = tuple(value for name, _, value in options if name == "--namespace")
            release = metadata.labels["app.kubernetes.io/instance"]
            found.append(_Operator(release, metadata.namespace, watches))
        ours = (self._release, self._namespace)
        here = [each for each in found if (each.release, each.namespace) == ours]
        return (here[0] if here else None), [each for each in found if each not in here]

    def is_helms(self) -> bool:
        """Return whether Helm manages this release: it keeps a Secret for each revision."""
        labels = f"owner=helm,name={self._release}"
        return bool(self.list("v1", "Secret", labels, namespace=self._namespace))

    def ours(self, *, shared: bool = False) -> list[tuple[str, str, Any]]:
        """Return (version, kind, object) of the release's objects, dependants first.

        With `shared` these include the cluster-wide objects of a release of that name.
        """
        labels = f"app.kubernetes.io/name=ddpjob,app.kubernetes.io/instance={self._release}"
        bindings = self.list("rbac.authorization.k8s.io/v1", "RoleBinding", labels)
        # In every namespace that it watches.
        bound = {
            (binding.roleRef.name, binding.metadata.namespace)
            for binding in bindings
            if any(subject.namespace == self._namespace for subject in binding.subjects or ())
        }
        found = []
        for version, kind in [*NAMESPACED, *(CLUSTER_WIDE if shared else ())]:
            for each in self.list(version, kind, labels):
                name, where = each.metadata.name, each.metadata.namespace
                if kind == "Namespace":
                    mine = name == self._namespace
                elif kind in ("Role", "RoleBinding"):
                    role = name if kind == "Role" else each.roleRef.name
                    mine = where == self._namespace or (role, where) in bound
                else:
                    mine = where in (None, self._namespace)
                if mine:
                    found.append((version, kind, each))
        return found

    @property
    def jobs_are_known(self) -> bool:
        from kubernetes.dynamic.exceptions import ResourceNotFoundError

        try:
            self._kind(names.API_VERSION, names.KIND)
        except ResourceNotFoundError:
            return False
        return True

    def jobs(self, namespaces: tuple[str, ...]) -> list[Any]:
        """Return the DDPJobs of these namespaces; without any, of all namespaces."""
        if not self.jobs_are_known:
            return []
        return [
            job
            for job in self.list(names.API_VERSION, names.KIND)
            if not namespaces or job.metadata.namespace in namespaces
        ]

    def list(
        self, version: str, kind: str, labels: str = "", *, namespace: str | None = None
    ) -> list[Any]:
        """Return the objects of this kind in all namespaces, or in one."""
        return list(self._kind(version, kind).get(label_selector=labels, namespace=namespace).items)

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
        self.deleted += 1
        where = f" in {namespace}" if namespace else ""
        say(f"deleted {kind} {name}{where}")


def _delete_jobs(cluster: _Cluster, jobs: list[Any], timeout: float) -> None:
    for job in jobs:
        cluster.delete(names.API_VERSION, names.KIND, job)
    labels = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
    kinds = [("v1", "Pod"), ("v1", "Service"), ("v1", "ConfigMap")]
    places = {job.metadata.namespace for job in jobs}
    left = _wait(
        lambda: [
            found
            for kind in kinds
            for found in cluster.list(*kind, labels)
            if found.metadata.namespace in places
        ],
        timeout,
    )
    if left:
        listed = ", ".join(f"{x.kind} {x.metadata.namespace}/{x.metadata.name}" for x in left[:5])
        say(
            f"not deleted within --timeout, {timeout:.0f} s: {listed}; nothing else was removed",
            err=True,
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


def _helm_uninstall(release: str, namespace: str, context: str | None) -> None:
    where = ["--namespace", namespace] + (["--kube-context", context] if context else [])
    command = ["helm", "uninstall", release, *where, "--wait"]
    if not shutil.which("helm"):
        say(
            f"Helm manages this release, but helm is not on PATH: run {' '.join(command)}", err=True
        )
        raise typer.Exit(1)
    if subprocess.run(command, check=False).returncode:
        raise typer.Exit(1)
