"""The operators of a cluster, as their Deployments show them to whoever may list these."""

from dataclasses import dataclass

from ddpjob.client import why
from ddpjob.client.connection import Connection
from ddpjob.cluster import Resource
from ddpjob.errors import Forbidden
from ddpjob.json_depth import Body

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
LABELS = "app.kubernetes.io/name=ddpjob,app.kubernetes.io/component=operator"


@dataclass(frozen=True)
class Operator:
    """An operator's Deployment."""

    name: str
    namespace: str
    version: str
    replicas: int
    ready: int
    watches: tuple[str, ...]
    """Namespaces that it watches. Without any it watches all namespaces."""
    lease: str
    """Namespace and name of the Lease of two replicas; empty without one."""


def find(connection: Connection) -> list[Operator] | None:
    """Return the operators of the cluster, or None for a user who may not list Deployments."""
    try:
        return list(connection.list(DEPLOYMENTS, labels=LABELS, keep=_operator).items)
    except Forbidden:
        return None


def _operator(body: Body) -> Operator:
    containers = why.part(body, "spec", "template", "spec", "containers")
    first = containers[0] if isinstance(containers, list) and containers else {}
    words = [str(word).partition("=") for word in why.part(first, "args") or ()]
    watches = tuple(value for option, _, value in words if option == "--namespace")
    lease = next((value for option, _, value in words if option == "--lease"), "")
    return Operator(
        name=why.text(body, "metadata", "name"),
        namespace=why.text(body, "metadata", "namespace"),
        version=why.text(body, "metadata", "labels", "app.kubernetes.io/version"),
        replicas=why.number(body, "spec", "replicas") or 0,
        ready=why.number(body, "status", "readyReplicas") or 0,
        watches=watches,
        lease=lease,
    )
