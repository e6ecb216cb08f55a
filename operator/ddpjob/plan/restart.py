"""How a new attempt begins, or a new round of it. Pure."""

import math

from ddpjob import api, names
from ddpjob.api import DDPJob, Status
from ddpjob.plan.budget import reported_step, with_highest_step
from ddpjob.plan.decision import Decision
from ddpjob.plan.group import Group
from ddpjob.plan.observed import Observed
from ddpjob.plan.own import with_root
from ddpjob.plan.proof import proofs
from ddpjob.plan.reasons import STARTING, because
from ddpjob.plan.status import with_condition
from ddpjob.times import timestamp


def restart(
    group: Group, status: Status, reason: str, message: str, *, pause: float = 0.0
) -> Decision:
    """Return the beginning of a new attempt, whose pods are created after `pause` seconds."""
    job, now = group.job, group.now
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


def restart_in_place(group: Group, status: Status, reason: str, message: str) -> Decision:
    """Return the beginning of the attempt's next round: new processes in the same pods."""
    status = _left(status)
    update = {
        "state": "Restarting",
        "round": status.round + 1,
        "restarts": status.restarts + 1,
    }
    status = status.model_copy(update=update)
    status = with_condition(status, because(STARTING, reason), message, now=group.now)
    return Decision(status)


def next_attempt(job: DDPJob, status: Status) -> Status:
    """Return `status` with the next attempt's number, without the last attempt's counts."""
    status = _left(status)
    return status.model_copy(
        update={
            # After MAX_ATTEMPT comes 0. Pods of MAX_ATTEMPT are then of an attempt that has not
            # begun: they are deleted and waited for before new ones are created.
            "attempt": (status.attempt + 1) % (names.MAX_ATTEMPT + 1),
            "round": 0,
            "nodes": api.Nodes(desired=job.spec.nnodes),
            "succeeded_ranks": "",
            "result": None,
        }
    )


def _left(status: Status) -> Status:
    """Return `status` with what the round that ends has reached."""
    progress, budget = status.progress, status.budget
    budget = with_highest_step(budget, reported_step(status))
    if progress is not None:  # users still see how far it got, but not when it would have ended
        attempt = progress.attempt if status.current_progress is None else status.attempt
        progress = progress.model_copy(update={"attempt": attempt, "eta_seconds": None})
    return status.model_copy(update={"progress": progress, "budget": budget})


def with_own_root(job: DDPJob, status: Status, observed: Observed) -> Status:
    """Return `status` with the root that proves the pods this operator makes in the attempt."""
    own = proofs(observed.key, job.uid, status.attempt, job.spec.nnodes)
    return with_root(status, own.root)
