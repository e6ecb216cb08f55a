"""What follows from nodes that nobody hears. Pure.

Such a node has ended its ranks by the time the operator counts it as silent, or has lost its power.
So nothing is waited for: its pods are deleted by force. Kubernetes takes 40 s to see that a node is
lost. Until then its scheduler would use the node again, so the next attempt keeps off it by itself.
"""

from collections.abc import Set
from dataclasses import replace

from ddpjob.api import SilentNode, Status
from ddpjob.plan.decision import Decision, Event, requeue
from ddpjob.plan.group import Group
from ddpjob.plan.observed import UNSCHEDULABLE, PodRecord
from ddpjob.plan.reasons import AVOIDANCE_OVER, NODE_SILENT
from ddpjob.plan.restart import restart
from ddpjob.plan.status import with_history
from ddpjob.plan.termination import termination_of
from ddpjob.times import seconds_since, timestamp

# Kubernetes' node controller has had its 40 s, or 50 s, by then, and its taint keeps pods away.
AVOID_SECONDS = 60.0
# As many as the status may hold.
MAX_SILENT_NODES = 32


def silent_pods(group: Group) -> list[PodRecord]:
    """Return the attempt's pods that run on silent nodes, as far as anybody knows."""
    silent = group.observed.silent
    return [pod for pod in group.current if pod.rank in silent and pod.running and not pod.deleting]


def heard_nobody(pod: PodRecord) -> bool:
    """Whether a node has ended for that reason, as it says itself."""
    ending = termination_of(pod) if pod.result == "failed" else None
    return ending is not None and ending.reason == NODE_SILENT


def with_silent_nodes(group: Group, status: Status) -> Status:
    """Return `status` with the nodes that the next attempt must keep off."""
    nodes = [pod.node for pod in silent_pods(group)]
    found = status.failure
    if found and found.reason == NODE_SILENT and found.attempt == status.attempt and found.node:
        nodes.insert(0, found.node)
    new = dict.fromkeys(node for node in nodes if node)
    kept = [node for node in status.silent_nodes if _left(node, group.now) > 0]
    kept = [node for node in kept if node.name not in new]
    added = [SilentNode(name=name, time=timestamp(group.now)) for name in new]
    return status.model_copy(update={"silent_nodes": [*kept, *added][-MAX_SILENT_NODES:]})


def silent_nodes(status: Status, now: float) -> Set[str]:
    """Return the nodes whose pods of earlier attempts are deleted by force at once."""
    return {node.name for node in status.silent_nodes if _left(node, now) > 0}


def return_to_nodes(group: Group, status: Status) -> Decision | None:
    """Return a new attempt without nodes to keep off, if pods find no other nodes.

    Before that is due, return when it will be. Return None if there is nothing to wait for.
    """
    stuck = [pod for pod in group.current if not pod.node and pod.reason == UNSCHEDULABLE]
    if not stuck or not status.silent_nodes:
        return None
    left = max(_left(node, group.now) for node in status.silent_nodes)
    if left > 0:
        return requeue(Decision(status), left)
    names = ", ".join(node.name for node in status.silent_nodes[:4])
    message = f"no other node has room, so pods may run again where nobody was heard: {names}"
    status = with_history(with_silent_nodes(group, status), AVOIDANCE_OVER, group.now)
    begun = restart(group, status, AVOIDANCE_OVER, message)
    return replace(begun, events=(Event("Restarting", message),))


def _left(node: SilentNode, now: float) -> float:
    """Return the seconds for which a node is still to be kept off; a later time is a wrong one."""
    since = seconds_since(node.time, now)
    return AVOID_SECONDS - since if since > -AVOID_SECONDS else 0.0
