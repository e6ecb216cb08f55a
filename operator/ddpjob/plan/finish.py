"""How a job ends: its last status, or its suspension. Pure."""

import math
from typing import Any

from ddpjob import api
from ddpjob.api import Status
from ddpjob.plan.budget import active_seconds
from ddpjob.plan.cleanup import delete, stale_pods
from ddpjob.plan.model import Decision, Event
from ddpjob.plan.own import Inputs
from ddpjob.plan.reasons import (
    ALL_RANKS_SUCCEEDED,
    DEADLINE_EXCEEDED,
    FINISHED,
    NOT_RUNNING_SUSPENDED,
    RANK0_SUCCEEDED,
    SUSPENDED,
    SUSPENDING,
    Reason,
)
from ddpjob.plan.restart import next_attempt, silent_nodes
from ddpjob.plan.status import count_nodes, is_suspending, with_condition, with_history
from ddpjob.times import timestamp

_GRACE = "; ranks have their grace period to save"


def complete(inputs: Inputs, status: Status) -> Decision:
    """Return the end of a job whose ranks have ended well, or as many as it asks for."""
    job, now = inputs.job, inputs.now
    reason, message = ALL_RANKS_SUCCEEDED, "all ranks have ended with exit code 0"
    if job.spec.success_policy == "Rank0" and len(inputs.succeeded) < inputs.size:
        reason, message = RANK0_SUCCEEDED, "rank 0 has ended with exit code 0"
    elif any(rule.action == "Ignore" for rule in job.spec.failure_policy.rules):
        message += ", or are ignored"
    if status.state != "Idle":  # it was over before
        status = with_history(status, "Succeeded", now)
    status = _finished(inputs, status, "Succeeded", message)
    status = with_condition(status, reason, message, now=now)
    event = Event("Succeeded", message)
    return Decision(status, events=(event,))


def fail(inputs: Inputs, status: Status, reason: Reason, what: str, why: str) -> Decision:
    """Return the end of a job that has failed: `what` failed, and `why` nothing is tried again."""
    status = _finished(inputs, status, "Failed", what)
    status = with_condition(status, reason, why, now=inputs.now)
    return Decision(status, events=(Event("Failed", why, warning=True),))


def time_is_up(inputs: Inputs, status: Status) -> Decision:
    """Return the end of a job that has been active for as long as it may be."""
    limit = inputs.job.spec.active_deadline_seconds
    message = f"active for longer than activeDeadlineSeconds, {limit}"
    status = with_history(status, DEADLINE_EXCEEDED.name, inputs.now)
    return fail(inputs, status, DEADLINE_EXCEEDED, message, message)


def seconds_left(inputs: Inputs, status: Status) -> float:
    """Return the seconds until `activeDeadlineSeconds`; infinity without one."""
    limit = inputs.job.spec.active_deadline_seconds
    return math.inf if limit is None else limit - active_seconds(status, inputs.now)


def _finished(inputs: Inputs, status: Status, state: api.State, message: str) -> Status:
    """Return `status` with all that both ends have in common."""
    nodes = count_nodes(status.nodes.desired, inputs.current, inputs.succeeded)
    status = status.model_copy(
        update={
            "state": state,
            "completion_time": timestamp(inputs.now),
            # Nobody watches a pod that still runs or waits.
            "nodes": nodes.model_copy(update={"pending": 0, "running": 0}),
            "pods": [],
        }
    )
    return with_condition(status, FINISHED, message, now=inputs.now)


def suspend(inputs: Inputs, status: Status, evicted: str = "") -> Decision:
    """Return the next decision of a suspension, by the user or because Kueue has `evicted` the job.

    First the attempt ends in the status, then its pods end with their full grace period, then the
    job is Suspended.
    """
    job, pods, now = inputs.job, inputs.pods, inputs.now
    started = status.state not in ("Pending", "Queued", "Suspended")
    if started and not is_suspending(status):
        kept = {"succeeded_ranks": status.succeeded_ranks, "admission": None}
        status = next_attempt(job, with_history(status, SUSPENDED.name, now))
        status = status.model_copy(update=kept)  # the ranks while the rest ends
        message = f"{evicted or 'spec.suspend is true'}{_GRACE}"
        status = with_condition(status, SUSPENDING, message, now=now)
        return Decision(status, events=(Event(SUSPENDING.name, message),))
    # Also a pod that came after the job was suspended: its creation was under way. And those that
    # saved and ended by themselves, since others had their SIGTERM first.
    if left := stale_pods(status, [*pods.current, *pods.older]):
        silent = silent_nodes(status, now)
        return delete(Decision(status), left, None, now, silent)
    if started and not inputs.observed.confirmed:
        return Decision(job.status, confirm=True)
    budget = status.budget.model_copy(update={"next_restart_time": None})  # resumed at once
    update: dict[str, Any] = {
        "state": "Suspended",
        "admission": None,
        "succeeded_ranks": "",
        "budget": budget,
        "avoided_nodes": [],  # they may be well again
        "silent_nodes": [],
    }
    status = status.model_copy(update=update)
    message = "spec.suspend is true" if job.spec.suspend else _why_suspended(status)
    status = with_condition(status, SUSPENDED, message, now=now)
    status = with_condition(status, NOT_RUNNING_SUSPENDED, message, now=now)
    return Decision(status)


def _why_suspended(status: Status) -> str:
    """Return why the job has been suspended, which it is not to be any more."""
    leaving = status.condition("Suspended")
    words = leaving.message.removesuffix(_GRACE) if leaving else ""
    return words if words.startswith(("Kueue", "Workload")) else "spec.suspend was true"
