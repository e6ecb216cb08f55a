"""How a job ends: its last status. Pure."""

import math

from ddpjob import api
from ddpjob.api import Status
from ddpjob.plan.decision import Note, Plan
from ddpjob.plan.goodput import active_seconds
from ddpjob.plan.group import Group
from ddpjob.plan.observed import DEADLINE
from ddpjob.plan.status import count_nodes, with_condition, with_history, with_summary
from ddpjob.times import stamp


def complete(group: Group, status: Status) -> Plan:
    """All ranks have ended well, or as many as the job asks for."""
    job, now = group.job, group.now
    reason, message = "AllRanksSucceeded", "all ranks have ended with exit code 0"
    if len(group.succeeded) < job.spec.nnodes:
        reason, message = "Rank0Succeeded", "rank 0 has ended with exit code 0"
    elif any(rule.action == "Ignore" for rule in job.spec.failure_policy.rules):
        message += ", or are ignored"
    status = with_history(status, "Succeeded", now)
    status = _finished(group, status, "Succeeded", message)
    status = with_condition(status, "Complete", True, reason, message, now=now)
    note = Note("Succeeded", message)
    return Plan(with_summary(status), drop_agent=True, notes=(note,))


def fail(group: Group, status: Status, reason: str, what: str, why: str) -> Plan:
    """The job has failed, for good."""
    status = _finished(group, status, "Failed", what)
    status = with_condition(status, "Failed", True, reason, why, now=group.now)
    return Plan(with_summary(status), drop_agent=True, notes=(Note("Failed", why, warning=True),))


def time_is_up(group: Group, status: Status) -> Plan:
    """The job has been active for as long as it may be."""
    limit = group.job.spec.active_deadline_seconds
    message = f"active for longer than activeDeadlineSeconds, {limit}"
    status = with_history(status, DEADLINE, group.now)
    return fail(group, status, DEADLINE, message, message)


def seconds_left(group: Group, status: Status) -> float:
    """Until `activeDeadlineSeconds`; infinite without one."""
    limit = group.job.spec.active_deadline_seconds
    return math.inf if limit is None else limit - active_seconds(status, group.now)


def _finished(group: Group, status: Status, state: api.State, message: str) -> Status:
    """What both ends have in common."""
    status = status.model_copy(
        update={
            "state": state,
            "completion_time": stamp(group.now),
            "nodes": _last_counts(group, status.nodes.desired),
            "pods": [],
        }
    )
    return with_condition(status, "Running", False, "Finished", message, now=group.now)


def _last_counts(group: Group, desired: int) -> api.Nodes:
    """Counts for ever: what still runs or waits ends unwatched."""
    nodes = count_nodes(desired, group.current, group.succeeded)
    return nodes.model_copy(update={"pending": 0, "running": 0})
