"""The operators of a cluster and what they serve, for whoever may list Deployments.

Whoever may create Deployments can make one that looks like an operator's, so nothing is decided
by them.
"""

from dataclasses import dataclass

from ddpjob.client import why
from ddpjob.client.connection import Connection
from ddpjob.client.installed import DEPLOYMENTS, LABELS, Operator
from ddpjob.errors import Forbidden
from ddpjob.json_depth import Body


@dataclass(frozen=True)
class Deployed(Operator):
    """An operator's Deployment, with its options."""

    name: str
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
        watches=watches,
        lease=lease,
    )
