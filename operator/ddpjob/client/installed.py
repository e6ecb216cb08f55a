"""What of ddpjob a cluster has: its API, and operators. A user need not be an admin to ask.

Whoever may create Deployments can make one that looks like an operator's, so nothing but words
depends on them.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.connection import Connection
from ddpjob.cluster import PODS, Resource
from ddpjob.errors import Forbidden, NotFound
from ddpjob.json_depth import Body
from ddpjob.names import is_gpu

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
LABELS = "app.kubernetes.io/name=ddpjob,app.kubernetes.io/component=operator"
# Fields that are named if the definition has others than this client.
MAX_FIELDS = 12
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
    server = why.text(connection.request("GET", "/version"), "gitVersion") or "unknown"
    versions = _versions(connection)
    missing, unknown = _differences(connection) if names.VERSION in versions else ((), ())
    try:
        found = connection.list(DEPLOYMENTS, labels=LABELS, keep=_operator).items
    except Forbidden as error:
        hidden = f"you may not {error.verb} {error.resource} in the whole cluster"
        return Installed(server, versions, missing, unknown, (), hidden)
    return Installed(server, versions, missing, unknown, tuple(found))


def _versions(connection: Connection) -> tuple[str, ...]:
    try:
        group = connection.request("GET", f"/apis/{names.GROUP}")
    except NotFound:
        return ()
    found = why.part(group, "versions")
    texts = (why.text(each, "version") for each in (found if isinstance(found, list) else ()))
    return tuple(filter(None, texts))


def _differences(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of spec and status that only this client has, and only the definition."""
    from ddpjob import api
    from ddpjob.api.base import fields_of

    schemas = why.part(
        connection.request("GET", f"/openapi/v3/apis/{names.API_VERSION}"), "components", "schemas"
    )
    name = ".".join([*reversed(names.GROUP.split(".")), names.VERSION, names.KIND])
    kind = why.part(schemas, name, "properties")
    missing, unknown = list[str](), list[str]()
    for part, model in (("spec", api.Spec), ("status", api.Status)):
        ours = set(fields_of(model))
        theirs = why.part(kind, part, "properties")
        if isinstance(theirs, dict):
            missing += [f"{part}.{field}" for field in sorted(ours - set(theirs))]
            unknown += [f"{part}.{field}" for field in sorted(set(theirs) - ours)]
    return tuple(missing[:MAX_FIELDS]), tuple(unknown[:MAX_FIELDS])


def _operator(body: Any) -> Operator:
    containers = why.part(body, "spec", "template", "spec", "containers")
    first = containers[0] if isinstance(containers, list) and containers else {}
    words = [str(word).partition("=") for word in why.part(first, "args") or ()]
    labels = why.part(body, "metadata", "labels")
    return Operator(
        version=why.text(labels, "app.kubernetes.io/version") or "unknown",
        namespace=why.text(body, "metadata", "namespace"),
        ready=why.number(body, "status", "readyReplicas") or 0,
        replicas=why.number(body, "spec", "replicas") or 0,
        name=why.text(body, "metadata", "name"),
        watches=tuple(value for option, _, value in words if option == "--namespace"),
        lease=next((value for option, _, value in words if option == "--lease"), ""),
    )


def free_gpus(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return how many GPUs of each kind are free, and how many there are, on nodes in service.

    Raises Forbidden without the right to list nodes, and pods in all namespaces.
    """
    nodes = connection.list(NODES, keep=_node).items
    total: Counter[str] = Counter()
    for _, gpus in nodes:
        total.update(gpus)
    if not total:
        return {}
    serving = {name for name, _ in nodes}

    def keep(body: Body) -> Counter[str] | None:
        return (
            _requested(body) if why.text(body, "spec", "nodeName", limit=253) in serving else None
        )

    used: Counter[str] = Counter()
    for gpus in connection.list(PODS, fields=ENDED, keep=keep).items:
        used.update(gpus)
    return {kind: (max(0, count - used[kind]), count) for kind, count in total.items()}


def _node(body: Body) -> tuple[str, Counter[str]] | None:
    """Return a node's name and its GPUs; None for one that takes no pods."""
    conditions = why.part(body, "status", "conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    if not ready or why.part(body, "spec", "unschedulable") is True:
        return None
    return body["metadata"]["name"], _gpus(why.part(body, "status", "allocatable"))


def _requested(pod: Body) -> Counter[str]:
    """Return the GPUs of a pod: those of its containers, or more of one that runs before them."""
    spec = pod.get("spec") or {}
    found: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        found.update(_gpus(why.part(container, "resources", "requests")))
    for container in spec.get("initContainers") or ():
        found |= _gpus(why.part(container, "resources", "requests"))
    return found


def _gpus(amounts: Any) -> Counter[str]:
    from ddpjob.api.base import quantity_value  # the models are slow to import

    found = {name: text for name, text in (amounts or {}).items() if is_gpu(name)}
    return Counter({name: int(quantity_value(text)) for name, text in found.items()})
