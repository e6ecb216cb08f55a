"""Events that tell of a change of the status. Pure.

Each follows from two statuses, the stored one and the one that is to follow. So it is recorded once
the latter is written, and never for a pod of its own.
"""

import math

from ddpjob.api import Status
from ddpjob.plan.decision import Event
from ddpjob.plan.reasons import CREATE_REFUSED, INVALID, NAME_TAKEN, RESUMED, UNSCHEDULABLE
from ddpjob.plan.termination import MAX_MESSAGE

_REFUSALS = (INVALID.name, NAME_TAKEN.name, CREATE_REFUSED.name)


def news(before: Status, after: Status) -> tuple[Event, ...]:
    """Return the Events of the change from one status to the next."""
    found = (
        _resumed(before, after),
        _refused(before, after),
        _unschedulable(before, after),
        _started(before, after),
        _first_step(before, after),
        _loss(before, after),
    )
    return tuple(event for event in found if event)


def _resumed(before: Status, after: Status) -> Event | None:
    if before.state != "Suspended" or after.state != "Starting":
        return None
    return Event(RESUMED.name, "spec.suspend is false")


def _refused(before: Status, after: Status) -> Event | None:
    """Return an Event once nothing can be created. Another message of that reason is no news."""
    for kind in ("Accepted", "Running"):
        old, new = before.condition(kind), after.condition(kind)
        if new and new.reason in _REFUSALS and (old is None or old.reason != new.reason):
            return Event(new.reason, new.message[:MAX_MESSAGE], warning=True)
    return None


def _unschedulable(before: Status, after: Status) -> Event | None:
    """Return an Event once no node has room, which is told once an attempt."""
    old, new = before.condition("Running"), after.condition("Running")
    name = UNSCHEDULABLE.name
    if new is None or new.reason != name or old is not None and old.reason == name:
        return None
    return Event(name, new.message[:MAX_MESSAGE], warning=True, once=True)


def _started(before: Status, after: Status) -> Event | None:
    """Return an Event once all nodes of an attempt run. A round in place has none."""
    if before.state == "Running" or (after.state, after.round) != ("Running", 0):
        return None
    return Event("Started", f"{after.nodes.desired} of {after.nodes.desired} nodes run")


def _first_step(before: Status, after: Status) -> Event | None:
    """Return an Event with the first step of an attempt that was seen."""
    old, new = before.progress, after.progress
    if new is None or new.attempt is None or new.first_step is None:
        return None
    if old is not None and old.attempt in (None, new.attempt):
        return None
    words = f"attempt {new.attempt} makes steps; the first one that was seen is {new.first_step}"
    return Event("FirstStep", words)


def _loss(before: Status, after: Status) -> Event | None:
    """Return an Event once the loss has become `nan` or `inf`.

    The training goes on, because with a scaled loss it may be so for one step.
    """
    losses = (status.progress.loss if status.progress else None for status in (before, after))
    was, loss = (None if text is None else float(text) for text in losses)
    if loss is None or math.isfinite(loss) or was is not None and not math.isfinite(was):
        return None
    return Event("LossNotFinite", f"rank 0 reports a loss of {loss}", warning=True)
