"""What is said of pods that come up and run. Pure."""

from collections.abc import Sequence

from ddpjob.api import DDPJob, Status
from ddpjob.plan.group import Group
from ddpjob.plan.observed import PodRecord
from ddpjob.plan.status import CREATING, count_nodes, waiting_reason, with_condition, with_summary


def with_counts(group: Group, status: Status) -> Status:
    """`status` with counts, and Running once every node runs or has ended well."""
    job, now = group.job, group.now
    nodes = count_nodes(job.spec.nnodes, group.current, group.succeeded)
    status = status.model_copy(update={"nodes": nodes})
    if nodes.running + nodes.succeeded == nodes.desired and status.state != "Running":
        own = [table for table in status.pods if table.attempt == status.attempt]
        status = status.model_copy(update={"state": "Running", "pods": own})
        message = f"{nodes.desired} of {nodes.desired} nodes run"
        status = with_condition(status, "Running", True, "AllNodesRunning", message, now=now)
    elif status.state in ("Starting", "Restarting"):
        status = _waiting(status, group.current, now)
    return with_summary(_watched(job, status, now))


def _waiting(status: Status, current: Sequence[PodRecord], now: float) -> Status:
    """`status` with what keeps the pods from running: said while it does, and no longer."""
    if why := waiting_reason(current):
        return with_condition(status, "Running", False, *why, now=now)
    said, last = status.condition("Running"), status.history[-1:]
    ours = {"Starting", *(attempt.reason for attempt in last)}
    if not current or said is None or said.reason in ours:
        return status
    return with_condition(status, "Running", False, "Starting", CREATING, now=now)


def _watched(job: DDPJob, status: Status, now: float) -> Status:
    """`status` with what is known of hangs; the agents judge them."""
    limit = job.spec.hang_timeout_seconds
    if not limit and status.condition("Stalled"):
        message = "hangTimeoutSeconds is 0"
        return with_condition(status, "Stalled", False, "NotWatched", message, now=now)
    if not limit or status.state != "Running":
        return status
    if status.progress is None or status.progress.first_step is None:
        message = "no step has been seen in this attempt; hangs are judged from the first one on"
        return with_condition(status, "Stalled", None, "NoStep", message, now=now)
    message = f"steps are made; without one for {limit} s the attempt ends"
    return with_condition(status, "Stalled", False, "Progress", message, now=now)
