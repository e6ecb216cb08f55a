"""How a job is suspended. Pure."""

from ddpjob.api import Status
from ddpjob.plan.cleanup import delete, stale_pods
from ddpjob.plan.decision import Decision, Event
from ddpjob.plan.group import Group
from ddpjob.plan.reasons import NOT_RUNNING_SUSPENDED, SUSPENDED, SUSPENDING
from ddpjob.plan.restart import next_attempt
from ddpjob.plan.silent import silent_nodes
from ddpjob.plan.status import with_condition, with_history


def suspend(group: Group, status: Status) -> Decision:
    """Return the next decision of a suspension.

    First the attempt ends in the status, then its pods end with their full grace period, then the
    job is Suspended.
    """
    job, pods, now = group.job, group.pods, group.now
    started = status.state not in ("Pending", "Suspended")
    if started and not is_suspending(status):
        ranks = {"succeeded_ranks": status.succeeded_ranks}
        status = next_attempt(job, with_history(status, SUSPENDED.name, now))
        status = status.model_copy(update=ranks)  # while the rest ends
        message = "spec.suspend is true; ranks have their grace period to save"
        status = with_condition(status, SUSPENDING, message, now=now)
        return Decision(status, events=(Event(SUSPENDING.name, message),))
    # Also a pod that came after the job was suspended: its creation was under way. And those that
    # saved and ended by themselves, since others had their SIGTERM first.
    if left := stale_pods(status, [*pods.current, *pods.older]):
        silent = silent_nodes(status, now)
        return delete(Decision(status), left, None, now, silent)
    if started and not group.observed.confirmed:
        return Decision(job.status, confirm=True)
    budget = status.budget.model_copy(update={"next_restart_time": None})  # resumed at once
    update = {
        "state": "Suspended",
        "succeeded_ranks": "",
        "budget": budget,
        "avoided_nodes": [],  # they may be well again
        "silent_nodes": [],
    }
    status = status.model_copy(update=update)
    message = "spec.suspend is true" if job.spec.suspend else "spec.suspend was true"
    status = with_condition(status, SUSPENDED, message, now=now)
    status = with_condition(status, NOT_RUNNING_SUSPENDED, message, now=now)
    return Decision(status)


def is_suspending(status: Status) -> bool:
    """Whether the job is leaving its attempt. It goes on leaving even if it is resumed."""
    leaving = status.condition("Suspended")
    return leaving is not None and leaving.reason == SUSPENDING.name
