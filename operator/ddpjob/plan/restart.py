"""How a new attempt begins. Pure."""

import math

from ddpjob import api, names
from ddpjob.api import DDPJob, Status
from ddpjob.plan.budget import reached, reported_step
from ddpjob.plan.decision import Plan
from ddpjob.plan.group import Group
from ddpjob.plan.observed import Observed
from ddpjob.plan.own import with_root
from ddpjob.plan.proof import proofs
from ddpjob.plan.status import with_condition, with_summary
from ddpjob.times import stamp


def restart(group: Group, status: Status, reason: str, message: str, *, pause: float = 0.0) -> Plan:
    """A new attempt, whose pods are created after `pause` seconds at the earliest."""
    job, now = group.job, group.now
    status = next_attempt(job, status)
    limited = job.spec.startup_deadline_seconds is not None  # it counts from there
    start = math.ceil(now + pause) if pause else now if limited else None
    later = {"next_restart_time": None if start is None else stamp(start)}
    status = status.model_copy(
        update={
            "state": "Restarting",
            "restarts": status.restarts + 1,
            "budget": status.budget.model_copy(update=later),
        }
    )
    status = with_condition(status, "Running", False, reason, message, now=now)
    return Plan(with_summary(status))


def next_attempt(job: DDPJob, status: Status) -> Status:
    """`status` with the next attempt's number, and nothing of the one that it had."""
    progress, budget = status.progress, status.budget
    budget = reached(budget, reported_step(status))
    if progress is not None:  # how far it got stays to be seen; when it would have ended does not
        progress = progress.model_copy(update={"eta_seconds": None, "first_step": None})
    return status.model_copy(
        update={
            "progress": progress,
            "budget": budget,
            # Pods of the last number there is are unheard of, then: they go before any is made.
            "attempt": (status.attempt + 1) % (names.MAX_ATTEMPT + 1),
            "nodes": api.Nodes(desired=job.spec.nnodes),
            "succeeded_ranks": "",
        }
    )


def with_own_root(job: DDPJob, status: Status, observed: Observed) -> Status:
    """`status`, with what proves the pods that this operator makes of its attempt."""
    own = proofs(observed.key, job.uid, status.attempt, job.spec.nnodes)
    return with_root(status, own.root)
