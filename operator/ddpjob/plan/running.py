"""The status of pods that start and run. Pure."""

from collections.abc import Sequence

from ddpjob.api import DDPJob, Status
from ddpjob.plan.group import Group
from ddpjob.plan.observed import PodRecord
from ddpjob.plan.reasons import ALL_NODES_RUNNING, NO_STEP, NOT_WATCHED, PROGRESS, STARTING, because
from ddpjob.plan.status import CREATING, count_nodes, with_condition
from ddpjob.plan.termination import termination_of
from ddpjob.plan.waiting import first_stuck, slowest


def with_counts(group: Group, status: Status) -> Status:
    """Return `status` with counts, and Running once every node runs or has ended well."""
    job, now = group.job, group.now
    nodes = count_nodes(job.spec.nnodes, group.current, group.succeeded)
    status = status.model_copy(update={"nodes": nodes})
    full = nodes.running + nodes.succeeded == nodes.desired
    if full and status.state != "Running" and _has_begun(group, status):
        own = [table for table in status.pods if table.attempt == status.attempt]
        status = status.model_copy(update={"state": "Running", "pods": own})
        message = f"{nodes.desired} of {nodes.desired} nodes run"
        status = with_condition(status, ALL_NODES_RUNNING, message, now=now)
    elif status.state in ("Starting", "Restarting") and status.round == 0:
        status = _waiting(status, group.current, now)
    return _watched(job, status, now)


def _has_begun(group: Group, status: Status) -> bool:
    """Whether the ranks of the round have been started, if all pods run.

    The first ranks of a pod start with it. Those of a later round start when the agents have
    agreed, which rank 0's agent reports. If a pod has ended well with this round, its agent may be
    gone, and they have started too.
    """
    seen, here = group.observed.group, (status.attempt, status.round)
    if status.round == 0 or seen and seen.running and (seen.attempt, seen.round) == here:
        return True
    ended = (termination_of(pod) for pod in group.current if pod.result == "succeeded")
    return any(termination and termination.round == status.round for termination in ended)


def _waiting(status: Status, current: Sequence[PodRecord], now: float) -> Status:
    """Return `status` with the reason that keeps a pod from running, as long as there is one."""
    if stuck := first_stuck(current):
        message = f"pod {stuck.name}: {stuck.message or stuck.reason}"
        return with_condition(status, because(STARTING, stuck.reason), message, now=now)
    if slow := slowest(current, now):
        message = f"{slow.message or slow.reason}, pod {slow.name}"
        return with_condition(status, because(STARTING, slow.reason), message, now=now)
    old, last = status.condition("Running"), status.history[-1:]
    ours = {STARTING.name, *(attempt.reason for attempt in last)}
    if not current or old is None or old.reason in ours:
        return status
    return with_condition(status, STARTING, CREATING, now=now)


def _watched(job: DDPJob, status: Status, now: float) -> Status:
    """Return `status` with the condition Stalled. The agents find the hangs."""
    limit = job.spec.hang_timeout_seconds
    if not limit and status.condition("Stalled"):
        message = "hangTimeoutSeconds is 0"
        return with_condition(status, NOT_WATCHED, message, now=now)
    if not limit or status.state != "Running":
        return status
    if status.current_progress is None:
        message = "no step has been seen in this attempt; hangs are judged from the first one on"
        return with_condition(status, NO_STEP, message, now=now)
    message = f"steps are made; without one for {limit} s the attempt ends"
    return with_condition(status, PROGRESS, message, now=now)
