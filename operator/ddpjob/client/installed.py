"""What of ddpjob a cluster has: its API, and operators. A user need not be an admin to ask.

Whoever may create Deployments can make one that looks like an operator's, so nothing but words
depends on them.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ddpjob import names, why
from ddpjob.cluster import PODS, Resource
from ddpjob.cluster.connection import Connection
from ddpjob.errors import Forbidden, NotFound
from ddpjob.json_depth import Body

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
LABELS = "app.kubernetes.io/name=ddpjob,app.kubernetes.io/component=operator"
NODES = Resource("", "v1", "nodes", "Node")
# Pods that hold nothing any more.
ENDED = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True)
class Operator:
    """An operator's Deployment."""

    version: str
    namespace: str
    ready: int
    replicas: int
    name: str
    watches: tuple[str, ...]
    """Namespaces that it watches. Without any it watches all namespaces."""
    lease: str
    """Namespace and name of the Lease of two replicas; empty without one."""

    def __str__(self) -> str:
        state = "ready" if self.ready else "not ready"
        return f"{self.version} {state} ({self.ready} of {self.replicas}) in {self.namespace}"

    def record(self) -> dict[str, Any]:
        """Return the operator as JSON has it."""
        fields = ("version", "namespace", "ready", "replicas")
        return {field: getattr(self, field) for field in fields}


@dataclass(frozen=True)
class Installed:
    """What of ddpjob a cluster has."""

    server: str
    """The version of Kubernetes."""
    versions: tuple[str, ...]
    """The versions of the DDPJob API that are served; none if there is no definition."""
    missing: tuple[str, ...] = ()
    """Fields of this client that the definition does not have: it is older."""
    unknown: tuple[str, ...] = ()
    """Fields of the definition that this client does not know: it is newer."""
    operators: tuple[Operator, ...] = ()
    operators_hidden: str = ""
    """Why the operators cannot be seen, or an empty text."""


def look(connection: Connection) -> Installed:
    """Return what there is. Raises ClusterError or LoginFailed."""
    server, versions = connection.request("GET", "/version")["gitVersion"], ()
    with suppress(NotFound):
        group = connection.request("GET", f"/apis/{names.GROUP}")
        versions = tuple(each["version"] for each in group["versions"])
    missing, unknown = _differences(connection) if names.VERSION in versions else ((), ())
    operators, hidden = list[Operator](), ""
    try:
        operators = connection.list(DEPLOYMENTS, labels=LABELS, keep=_operator).items
    except Forbidden as error:
        hidden = f"you may not {error.verb} {error.resource} in the whole cluster"
    return Installed(server, versions, missing, unknown, tuple(operators), hidden)


def _differences(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of spec and status that only this client has, and only the definition."""
    from ddpjob import api
    from ddpjob.api.base import fields_of

    found = connection.request("GET", f"/openapi/v3/apis/{names.API_VERSION}")
    name = ".".join([*reversed(names.GROUP.split(".")), names.VERSION, names.KIND])
    kind = why.part(found, "components", "schemas", name, "properties")
    ours, theirs = set[str](), set[str]()
    for part, model in (("spec", api.Spec), ("status", api.Status)):
        if fields := why.part(kind, part, "properties"):  # none until the server has made its page
            ours |= {f"{part}.{field}" for field in fields_of(model)}
            theirs |= {f"{part}.{field}" for field in fields}
    return tuple(sorted(ours - theirs)), tuple(sorted(theirs - ours))


def _operator(body: Body) -> Operator:
    metadata, spec = body["metadata"], body["spec"]
    args = spec["template"]["spec"]["containers"][0].get("args", ())
    words = [word.partition("=") for word in args]
    return Operator(
        version=metadata["labels"].get("app.kubernetes.io/version", "unknown"),
        namespace=metadata["namespace"],
        ready=body.get("status", {}).get("readyReplicas", 0),
        replicas=spec["replicas"],
        name=metadata["name"],
        watches=tuple(value for option, _, value in words if option == "--namespace"),
        lease=next((value for option, _, value in words if option == "--lease"), ""),
    )


def free_gpus(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return how many GPUs of each kind are free, and how many there are, on nodes in service.

    Raises Forbidden without the right to list nodes, and pods in all namespaces.
    """
    nodes = dict(connection.list(NODES, keep=_node).items)
    total = Counter[str]()
    for gpus in nodes.values():
        total.update(gpus)  # a sum would drop a kind of which none can be had, as of an ill plugin
    if not total:
        return {}

    def keep(body: Body) -> Counter[str] | None:
        return _requested(body["spec"]) if body["spec"].get("nodeName") in nodes else None

    used = sum(connection.list(PODS, fields=ENDED, keep=keep).items, Counter[str]())
    return {kind: (max(0, count - used[kind]), count) for kind, count in total.items()}


def _node(body: Body) -> tuple[str, Counter[str]] | None:
    """Return a node's name and its GPUs; None for one that takes no pods."""
    conditions = body["status"].get("conditions", ())
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    if not ready or body["spec"].get("unschedulable"):
        return None
    return body["metadata"]["name"], _gpus(body["status"].get("allocatable", {}))


def _requested(spec: Body) -> Counter[str]:
    """Return the GPUs of a pod: those of its containers, or more of one that runs before them."""
    requests = (_gpus(each["resources"].get("requests", {})) for each in spec["containers"])
    found = sum(requests, Counter[str]())
    for container in spec.get("initContainers", ()):
        found |= _gpus(container["resources"].get("requests", {}))
    return found


def _gpus(amounts: Mapping[str, str]) -> Counter[str]:
    from ddpjob.api.base import quantity_value  # the models are slow to import

    found = {name: text for name, text in amounts.items() if names.is_gpu(name)}
    return Counter({name: int(quantity_value(text)) for name, text in found.items()})
