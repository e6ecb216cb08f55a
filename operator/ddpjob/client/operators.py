"""The operators of a cluster and what they serve, for whoever may list Deployments.

Anybody who may create Deployments in a namespace can give one the labels, the name and the
arguments of an operator's. Nobody but an administrator can give its ServiceAccount the right to
write the status of DDPJobs, without which it is none. So for decisions the API server is asked.
"""

from collections.abc import Container
from dataclasses import dataclass

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.connection import Connection
from ddpjob.client.installed import DEPLOYMENTS, LABELS, Operator
from ddpjob.cluster import Resource
from ddpjob.errors import Forbidden
from ddpjob.json_depth import Body

NAMESPACES = Resource("", "v1", "namespaces", "Namespace")


@dataclass(frozen=True)
class Deployed(Operator):
    """An operator's Deployment, with its options."""

    name: str
    release: str
    """Name of the release; empty for a Deployment that no chart has made."""
    account: str
    """Name of its ServiceAccount."""
    watches: tuple[str, ...]
    """Namespaces that it watches. Without any it watches all namespaces."""
    lease: str
    """Namespace and name of the Lease of two replicas; empty without one."""


def find(connection: Connection) -> list[Deployed] | None:
    """Return the operators of the cluster, or None for a user who may not list Deployments."""
    try:
        return list(connection.list(DEPLOYMENTS, labels=LABELS, keep=_operator).items)
    except Forbidden:
        return None


@dataclass(frozen=True)
class Acting:
    """An operator that may do an operator's work."""

    deployed: Deployed
    namespaces: frozenset[str] | None
    """Those in which it does; None is all."""

    @property
    def place(self) -> tuple[str, str]:
        """Return release and namespace."""
        return self.deployed.release, self.deployed.namespace

    def __str__(self) -> str:
        return f"{self.deployed.release} in {self.deployed.namespace}"

    def watches(self, namespace: str | None) -> bool:
        """Return whether the jobs of a namespace are its."""
        return self.namespaces is None or namespace in self.namespaces


def acting(connection: Connection) -> list[Acting]:
    """Return the operators that the chart has made and that may act. Raises ClusterError."""
    found = connection.list(DEPLOYMENTS, labels=LABELS, keep=_operator).items
    existing = {*connection.list(NAMESPACES, keep=lambda body: body["metadata"]["name"]).items}
    # The chart gives Deployment and ServiceAccount one name.
    made = [each for each in found if each.release and each.name == each.account]
    scopes = [(each, _scope(connection, each, existing)) for each in made]
    return [Acting(each, scope) for each, scope in scopes if scope is None or scope]


def _scope(
    connection: Connection, found: Deployed, existing: Container[str]
) -> frozenset[str] | None:
    """Return the namespaces that a Deployment watches and may watch; None is all.

    Its arguments may have thousands of others than the `existing` ones.
    """
    if _may_act(connection, found, ""):
        return frozenset(found.watches) if found.watches else None
    watched = {namespace for namespace in found.watches if namespace in existing}
    return frozenset(each for each in watched if _may_act(connection, found, each))


def _may_act(connection: Connection, found: Deployed, namespace: str) -> bool:
    """Return whether the ServiceAccount may write the status of jobs; in all namespaces if empty.

    For who may not ask it counts as an operator: then less is deleted.
    """
    accounts = "system:serviceaccounts"
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{found.namespace}:{found.account}",
            "groups": [accounts, f"{accounts}:{found.namespace}", "system:authenticated"],
            "resourceAttributes": {
                **{"group": names.GROUP, "resource": names.PLURAL, "subresource": "status"},
                **{"verb": "update", "namespace": namespace},
            },
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    try:
        answer = connection.request("POST", path, body)
    except Forbidden:
        return True
    return why.part(answer, "status", "allowed") is True


def _operator(body: Body) -> Deployed:
    containers = why.part(body, "spec", "template", "spec", "containers")
    first = containers[0] if isinstance(containers, list) and containers else {}
    words = [str(word).partition("=") for word in why.part(first, "args") or ()]
    watches = tuple(value for option, _, value in words if option == "--namespace")
    lease = next((value for option, _, value in words if option == "--lease"), "")
    return Deployed(
        version=why.text(body, "metadata", "labels", "app.kubernetes.io/version"),
        namespace=why.text(body, "metadata", "namespace"),
        ready=why.number(body, "status", "readyReplicas") or 0,
        replicas=why.number(body, "spec", "replicas") or 0,
        name=why.text(body, "metadata", "name"),
        release=why.text(body, "metadata", "labels", "app.kubernetes.io/instance"),
        account=why.text(body, "spec", "template", "spec", "serviceAccountName"),
        watches=watches,
        lease=lease,
    )
