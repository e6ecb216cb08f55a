"""How a new attempt or round begins, and what follows from nodes that nobody hears. Pure.

A silent node has ended its ranks by the time the operator counts it as silent, or has lost its
power. So nothing is waited for: its pods are deleted by force. Kubernetes takes 40 s to see that a
node is lost. Until then its scheduler would use the node again, so the next attempt keeps off it by
itself.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ddpjob import api, names
from ddpjob.api import DDPJob, SilentNode, Status
from ddpjob.plan.budget import reported_step, with_highest_step
from ddpjob.plan.model import UNSCHEDULABLE, Decision, Event, Observed, PodRecord, requeue
from ddpjob.plan.own import Inputs, made_of, order_of, proofs, with_new_pods, with_root
from ddpjob.plan.reasons import AVOIDANCE_OVER, NODE_LOST, NODE_SILENT, STARTING, because
from ddpjob.plan.status import with_condition, with_history
from ddpjob.plan.termination import termination_of
from ddpjob.ranks import format_ranks
from ddpjob.times import seconds_since, timestamp


@dataclass(frozen=True)
class Survivors:
    """The pods that go on when others are lost."""

    kept: Sequence[PodRecord]
    taking: Mapping[int, PodRecord]
    """Spares, and pods of ranks that are no more, by the ranks that they get."""
    created: Sequence[int]
    """Node ranks whose pods are to be created."""
    size: int
    """The number of nodes."""

    @property
    def words(self) -> str:
        """What becomes of the lost pods."""
        words = [f"{_called(pod)} gets node rank {rank}" for rank, pod in self.taking.items()]
        if self.created:
            words.append(f"the pod of node rank {format_ranks(self.created)} is replaced")
        return ", ".join(words)


def _called(pod: PodRecord) -> str:
    return f"spare {pod.name}" if pod.rank < 0 else f"pod {pod.name}"


def restart(
    inputs: Inputs, status: Status, reason: str, message: str, *, pause: float = 0.0
) -> Decision:
    """Return the beginning of a new attempt, whose pods are created after `pause` seconds."""
    job, now = inputs.job, inputs.now
    status = next_attempt(job, status)
    later: dict[str, str | None] = {"next_restart_time": None}
    # The start-up deadline counts from this time, so it is set even without a pause.
    if pause or job.spec.startup_deadline_seconds is not None:
        later["next_restart_time"] = timestamp(math.ceil(now + pause) if pause else now)
    status = status.model_copy(
        update={
            "state": "Restarting",
            "restarts": status.restarts + 1,
            "budget": status.budget.model_copy(update=later),
        }
    )
    status = with_condition(status, because(STARTING, reason), message, now=now)
    return Decision(status)


def restart_in_place(
    inputs: Inputs,
    status: Status,
    reason: str,
    message: str,
    group: Survivors | None = None,
    *,
    pause: float = 0.0,
) -> Decision:
    """Return the beginning of the attempt's next round: new processes in the same pods.

    With a `group` these are other pods, and those that it lacks are created after `pause` seconds.
    """
    status = with_reached(status)
    update = {
        "state": "Restarting",
        "round": status.round + 1,
        "restarts": status.restarts + 1,
    }
    status = status.model_copy(update=update)
    if group is not None:
        running = len(group.kept) + len(group.taking)
        nodes = api.Nodes(desired=group.size, running=running, pending=0)
        time = timestamp(math.ceil(inputs.now + pause)) if pause else None
        budget = status.budget.model_copy(update={"next_restart_time": time})
        world_size = group.size * inputs.job.spec.processes_per_node
        update = {"nodes": nodes, "budget": budget, "world_size": world_size}
        status = status.model_copy(update=update)
        status = with_new_pods(inputs.job, status, group.kept, group.taking, group.size)
    status = with_condition(status, because(STARTING, reason), message, now=inputs.now)
    return Decision(status)


def staying(inputs: Inputs) -> list[PodRecord]:
    """Return the pods that run, will go on running, and are as they would be made now.

    So are those that have yet to start in the place of others. If nobody knows how a pod would be
    made now, it counts as unchanged.
    """
    if inputs.job.spec.failure_policy.restart_strategy != "InPlace":
        return []
    return [
        pod
        for pod in inputs.current
        if (pod.running or pod.since and pod.live)
        and pod.rank not in inputs.observed.silent
        and is_fit(inputs.observed, pod)
    ]


def is_fit(observed: Observed, pod: PodRecord) -> bool:
    """Whether a pod goes on as far as is known, and is as it would be made now."""
    as_now = observed.edit_error is None and observed.spec_hash in ("", pod.spec_hash)
    return as_now and not (pod.deleting or pod.disruption or pod.unreachable_since)


def next_attempt(job: DDPJob, status: Status) -> Status:
    """Return `status` with the next attempt's number, without the last attempt's counts."""
    status = with_reached(status)
    return status.model_copy(
        update={
            # After MAX_ATTEMPT comes 0. Pods of MAX_ATTEMPT are then of an attempt that has not
            # begun: they are deleted and waited for before new ones are created.
            "attempt": (status.attempt + 1) % (names.MAX_ATTEMPT + 1),
            "round": 0,
            "program": status.program and status.program.model_copy(update={"round": 0}),
            "nodes": api.Nodes(desired=job.spec.nnodes),
            "world_size": job.spec.world_size,
            "succeeded_ranks": "",
            "result": None,
        }
    )


def with_reached(status: Status) -> Status:
    """Return `status` with what the round that ends has reached."""
    progress, budget = status.progress, status.budget
    budget = with_highest_step(budget, reported_step(status))
    if progress is not None:  # users still see how far it got, but not when it would have ended
        attempt = progress.attempt if status.current_progress is None else status.attempt
        progress = progress.model_copy(update={"attempt": attempt, "eta_seconds": None})
    return status.model_copy(update={"progress": progress, "budget": budget})


def with_own_root(job: DDPJob, status: Status, observed: Observed) -> Status:
    """Return `status` with the root that proves the pods this operator makes in the attempt."""
    own = proofs(observed.key, job.uid, *made_of(status), job.spec.nnodes)
    return with_root(status, own.root)


# Kubernetes' node controller has had its 40 s, or 50 s, by then, and its taint keeps pods away.
AVOID_SECONDS = 60.0
# As many as the status may hold.
MAX_SILENT_NODES = 32


def silent_pods(inputs: Inputs) -> list[PodRecord]:
    """Return the attempt's pods that run on silent nodes, as far as anybody knows."""
    silent = inputs.observed.silent
    return [
        pod for pod in inputs.current if pod.rank in silent and pod.running and not pod.deleting
    ]


def heard_nobody(pod: PodRecord) -> bool:
    """Whether a node has ended for that reason, as it says itself."""
    ending = termination_of(pod) if pod.result == "failed" else None
    return ending is not None and ending.reason == NODE_SILENT


def with_silent_nodes(inputs: Inputs, status: Status) -> Status:
    """Return `status` with the nodes that the next attempt must keep off."""
    nodes = [pod.node for pod in silent_pods(inputs)]
    found = status.failure
    if found and found.reason == NODE_SILENT and found.attempt == status.attempt and found.node:
        nodes.insert(0, found.node)
    new = dict.fromkeys(node for node in nodes if node)
    kept = without_old_silences(status, inputs.now).silent_nodes
    kept = [node for node in kept if node.name not in new]
    added = [SilentNode(name=name, time=timestamp(inputs.now)) for name in new]
    return status.model_copy(update={"silent_nodes": [*kept, *added][-MAX_SILENT_NODES:]})


def without_old_silences(status: Status, now: float) -> Status:
    """Return `status` without the nodes that pods need not keep off any more."""
    kept = [node for node in status.silent_nodes if _seconds_left(node, now) > 0]
    return status.model_copy(update={"silent_nodes": kept})


def silent_nodes(status: Status, now: float) -> Set[str]:
    """Return the nodes whose pods of earlier attempts are deleted by force at once."""
    return {node.name for node in status.silent_nodes if _seconds_left(node, now) > 0}


def return_to_nodes(inputs: Inputs, status: Status) -> Decision | None:
    """Return a new attempt without nodes to keep off, if pods find no other nodes.

    Before that is due, return when it will be. Return None if there is nothing to wait for.
    """
    stuck = [pod for pod in inputs.current if not pod.node and pod.reason == UNSCHEDULABLE]
    if not stuck or not status.silent_nodes:
        return None
    if (left := seconds_avoided(status, inputs.now)) > 0:
        return requeue(Decision(status), left)
    names = ", ".join(node.name for node in status.silent_nodes[:4])
    message = f"no other node has room, so pods may run again where nobody was heard: {names}"
    status = with_history(with_silent_nodes(inputs, status), AVOIDANCE_OVER, inputs.now)
    begun = restart(inputs, status, AVOIDANCE_OVER, message)
    return replace(begun, events=(Event("Restarting", message),))


def restart_beside_lost(inputs: Inputs, status: Status) -> Decision | None:
    """Return a new attempt if the round waits for a pod that no kubelet is there to end, else None.

    Its ranks may run on once it has been deleted by force: no round of their attempt may begin.
    """
    seen = inputs.observed.round_status
    if status.state != "Restarting" or seen is None or seen.attempt != status.attempt:
        return None  # what has been ordered is not known
    silent = {node.name for node in status.silent_nodes}
    lost = [
        pod
        for pod in inputs.pods.older
        if pod.live and pod.attempt == status.attempt and pod.uid_print not in seen.dead
        if pod.unreachable_since and seconds_since(pod.unreachable_since, inputs.now) >= 0
        if pod.node not in silent
    ]
    if not lost or not order_of(inputs.job, inputs.pods, inputs.observed, ends=False).held:
        return None
    message = f"pod {lost[0].name} has been left out, and its node is lost: its ranks may run on"
    status = with_history(status, NODE_LOST, inputs.now)
    begun = restart(inputs, status, NODE_LOST, message)
    return replace(begun, events=(Event("Restarting", message),))


def seconds_avoided(status: Status, now: float) -> float:
    """Return the seconds until pods are kept off no silent node any more."""
    return max((_seconds_left(node, now) for node in status.silent_nodes), default=0.0)


def _seconds_left(node: SilentNode, now: float) -> float:
    """Return the seconds for which a node is still to be kept off; a later time is a wrong one."""
    since = seconds_since(node.time, now)
    return AVOID_SECONDS - since if since > -AVOID_SECONDS else 0.0
