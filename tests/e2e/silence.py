"""Nodes of kind that fall silent, and what may look like it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.kind import KindCluster
from tests.e2e.install import Job
from tests.e2e.recovery import Fault, Undo, node_of, ready_again

TIMEOUT = 15  # s; nodeTimeoutSeconds by default
# The operator stays where no job's pod runs. It meets the fate of its own node in other tests.
ON_CONTROL_PLANE = (
    '--set-json=nodeSelector={"node-role.kubernetes.io/control-plane":""}',
    '--set-json=tolerations=[{"key":"node-role.kubernetes.io/control-plane","operator":"Exists"}]',
)
# What drops all that arrives at a node, and all that leaves it.
_ARRIVING = ("-t", "raw", "PREROUTING", "-i", "eth0", "-j", "DROP")
_LEAVING = ("-t", "mangle", "POSTROUTING", "-o", "eth0", "-j", "DROP")
_Cut = tuple[str, ...]


def _iptables(cluster: KindCluster, node: str, what: str, cut: _Cut) -> None:
    """`-I` or `-D` a rule on a node; kubelets use IPv6 as well."""
    table, chain, rest = cut[:2], cut[2], cut[3:]
    for program in ("iptables", "ip6tables") if "-s" not in rest else ("iptables",):
        cluster.on_node(node, program, *table, what, chain, *rest)


@contextmanager
def cut_off(cluster: KindCluster, node: str, *cuts: _Cut) -> Iterator[None]:
    """A block in which a node's network drops packets."""
    for cut in cuts:
        _iptables(cluster, node, "-I", cut)
    try:
        yield
    finally:
        for cut in cuts:
            _iptables(cluster, node, "-D", cut)


def cutting(*cuts: _Cut) -> Callable[[Job, str, Undo], float]:
    """Cut the node of a pod off."""

    def happens(job: Job, pod: str, undo: Undo) -> float:
        node = node_of(job, pod)
        ready_again(job, node, undo)
        began = time.time()
        undo.enter_context(cut_off(job.cluster, node, *cuts))
        return began

    return happens


both_ways = (_ARRIVING, _LEAVING)


def stop_everything(job: Job, pod: str, undo: Undo) -> None:
    """SIGSTOP for all processes of the node of a pod, its kubelet's too."""
    node = node_of(job, pod)
    ready_again(job, node, undo)
    undo.callback(job.cluster.on_node, node, "sh", "-c", "kill -CONT -1")
    job.cluster.on_node(node, "sh", "-c", "kill -STOP -1")


def pause_container(job: Job, pod: str, undo: Undo) -> None:
    """Freeze the trainer's container; its kubelet lives."""
    found = job.pods()[pod]
    node, (status, *_) = found["spec"]["nodeName"], found["status"]["containerStatuses"]
    container = status["containerID"].rpartition("/")[2]
    tasks = ("ctr", "-n", "k8s.io", "tasks")
    # By then it may be gone.
    undo.callback(job.cluster.on_node, node, *tasks, "resume", container, check=False)
    job.cluster.on_node(node, *tasks, "pause", container)


def settled() -> None:
    """Wait until the nodes have heard each other: nobody is missed who never was there."""
    time.sleep(TIMEOUT / 3)


def _silent(name: str, happens: Callable[[Job, str, Undo], float | None], **fields: Any) -> Fault:
    return Fault(name, happens, "NodeSilent", charged=False, replaced=True, **fields)


FAULTS = (
    _silent("a node is cut off", cutting(*both_ways)),
    _silent("rank 0's node is cut off", cutting(*both_ways), rank=0),
    _silent("a node stops", stop_everything, freezes=True),
    _silent("rank 0's node stops", stop_everything, rank=0, freezes=True),
    _silent("nothing arrives at a node", cutting(_ARRIVING)),
    _silent("nothing arrives at rank 0's node", cutting(_ARRIVING), rank=0),
    _silent("nothing leaves rank 0's node", cutting(_LEAVING), rank=0),
    _silent("nothing leaves a node", cutting(_LEAVING)),
    _silent("rank 0's container is paused", pause_container, rank=0, freezes=True),
    _silent("a container is paused", pause_container, freezes=True),
)
