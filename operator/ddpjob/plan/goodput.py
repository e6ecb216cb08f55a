"""Counts where a job's time went: waiting, starting, training, training lost steps again. Pure.

A state's time is added when the job leaves the state, so no status is written for it alone.
"""

import sys
from collections.abc import Mapping

from ddpjob.api import Attempt, Goodput, State, Status
from ddpjob.times import seconds_since, timestamp, unix_seconds

_ACTIVE: Mapping[State, str] = {
    "Starting": "starting_seconds",
    "Restarting": "starting_seconds",
    "Running": "productive_seconds",
}
_BOOKS: Mapping[State, str] = {"Pending": "queued_seconds", **_ACTIVE}


def with_time_booked(old: Status, new: Status, now: float, *, created: str | None) -> Status:
    """Return `new` with the time that the job spent in the state of `old`, if it has left it.

    The first state began when the job was `created`. What ran after the last step that was seen,
    before a failure, is lost.
    """
    state = old.state or "Pending"
    if new.state is None or new.state == state and old.goodput.since:
        return new
    since, spent = old.goodput.since or created or timestamp(now), new.goodput
    if new.state == state:
        return new.model_copy(update={"goodput": spent.model_copy(update={"since": since})})
    if book := _BOOKS.get(state):
        seconds = max(0, int(seconds_since(since, now)))
        failed = state == "Running" and new.state in ("Restarting", "Failed")
        kept = min(seconds, _seconds_of_steps(old, new, since)) if failed else seconds
        update = {"lost_seconds": spent.lost_seconds + seconds - kept}
        spent = spent.model_copy(update={**update, book: getattr(spent, book) + kept})
    return new.model_copy(
        update={"goodput": _rated(spent.model_copy(update={"since": timestamp(now)}))}
    )


def _seconds_of_steps(old: Status, new: Status, since: str) -> int:
    """Return the seconds from `since` to the last step that was seen in the round of `old`."""
    place = {"attempt": old.attempt, "round": old.round}
    progress = new.model_copy(update=place).current_progress
    if progress is None:
        return 0
    last = unix_seconds(progress.updated_at)
    return sys.maxsize if last is None else max(0, int(seconds_since(since, last)))


def active_seconds(status: Status, now: float) -> float:
    """For how long the job has been starting or running, all attempts together."""
    spent = status.goodput
    done = spent.starting_seconds + spent.productive_seconds + spent.lost_seconds
    current = seconds_since(spent.since, now) if status.state in _ACTIVE else 0.0
    return done + max(0.0, current)


def with_lost_time(status: Status) -> Status:
    """`status`, with what the last round did beyond the step that this one began at as lost.

    By the steps that the script reports, of which one in some seconds is seen; without them nothing
    is known to be lost.
    """
    last, progress = status.history[-1] if status.history else None, status.current_progress
    if not (last and progress and progress.source != "counted" and _is_before(last, status)):
        return status
    first, done, resumed = last.first_step, last.step, progress.first_step
    if first is None or done is None or resumed is None or not first <= resumed < done:
        return status
    if last.start_time is None:
        return status  # it never ran as a whole
    ran = max(0.0, seconds_since(last.start_time, 0) - seconds_since(last.end_time, 0))
    spent = status.goodput
    lost = min(spent.productive_seconds, round(ran * (done - resumed) / (done - first)))
    update = {
        "productive_seconds": spent.productive_seconds - lost,
        "lost_seconds": spent.lost_seconds + lost,
    }
    return status.model_copy(update={"goodput": _rated(spent.model_copy(update=update))})


def _is_before(last: Attempt, status: Status) -> bool:
    """Whether the round of `status` is the next one after `last`."""
    if status.round == 0:
        return last.attempt == status.attempt - 1
    return (last.attempt, last.round) == (status.attempt, status.round - 1)


def _rated(spent: Goodput) -> Goodput:
    whole = spent.starting_seconds + spent.productive_seconds + spent.lost_seconds
    ratio = f"{spent.productive_seconds / whole:.3f}" if whole else None
    return spent.model_copy(update={"ratio": ratio})
