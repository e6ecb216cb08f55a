"""How a job is suspended. Pure."""

from ddpjob.api import Status
from ddpjob.plan.cleanup import delete, remains
from ddpjob.plan.decision import Note, Plan
from ddpjob.plan.group import Group
from ddpjob.plan.restart import next_attempt
from ddpjob.plan.status import with_condition, with_history, with_summary


def suspend(group: Group, status: Status) -> Plan:
    """Leave the attempt, then end its pods with their full grace, then say Suspended."""
    job, pods, now = group.job, group.pods, group.now
    started = status.state not in ("Pending", "Suspended")
    if started and not is_suspending(status):
        ranks = {"succeeded_ranks": status.succeeded_ranks}
        status = next_attempt(job, with_history(status, "Suspended", now))
        status = status.model_copy(update=ranks)  # while the rest ends
        message = "spec.suspend is true; ranks have their grace period to save"
        status = with_condition(status, "Suspended", False, "Suspending", message, now=now)
        return Plan(with_summary(status), notes=(Note("Suspending", message),))
    # Also a pod that came after the job was suspended: its creation was under way. And those that
    # saved and ended by themselves, since others had their SIGTERM first.
    if left := remains(status, [*pods.current, *pods.older]):
        return delete(Plan(with_summary(status)), left, None, now)
    if started and not group.observed.looked:
        return Plan(job.status, look=True)
    budget = status.budget.model_copy(update={"next_restart_time": None})  # resumed at once
    update = {
        "state": "Suspended",
        "succeeded_ranks": "",
        "budget": budget,
        "avoided_nodes": [],  # they may be well again
    }
    status = status.model_copy(update=update)
    message = "spec.suspend is true" if job.spec.suspend else "spec.suspend was true"
    status = with_condition(status, "Suspended", True, "Suspended", message, now=now)
    status = with_condition(status, "Running", False, "Suspended", message, now=now)
    return Plan(with_summary(status))


def is_suspending(status: Status) -> bool:
    """Whether the job is leaving its attempt, which is brought to its end in any case."""
    leaving = status.condition("Suspended")
    return leaving is not None and leaving.reason == "Suspending"
