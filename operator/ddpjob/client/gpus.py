"""Counts the GPUs of a cluster that no pod has: for whoever may list nodes and pods."""

from collections import Counter
from typing import Any

from ddpjob.client import why
from ddpjob.client.connection import Connection
from ddpjob.cluster import PODS, Resource
from ddpjob.json_depth import Body
from ddpjob.names import is_gpu

NODES = Resource("", "v1", "nodes", "Node")
# Pods that hold nothing any more.
ENDED = "status.phase!=Succeeded,status.phase!=Failed"


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
