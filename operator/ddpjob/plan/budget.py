"""Judges a failure by `failurePolicy`, counts restarts, and where a job's time went. Pure."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ddpjob.api import (
    Attempt,
    BackoffSeconds,
    Budget,
    Failure,
    FailurePolicy,
    FailureRule,
    Goodput,
    State,
    Status,
)
from ddpjob.api.expressions import compile_all
from ddpjob.plan.reasons import CODE_INVALID, NOTHING_TO_LAUNCH, UNCOUNTED
from ddpjob.times import seconds_since, timestamp, unix_seconds

# The reason of a container that cannot start, by containerd and by Docker.
START_ERRORS = ("StartError", "ContainerCannotRun")
# The message of runc, and of crun, which puts the program's name in between.
NO_PROGRAM = re.compile(r"executable file (\S{1,99} )?not found in \$PATH")
# Counted failures in a row at one step. A further try would end there too.
SAME_STEP_FAILURES = 3


Action = Literal["FailJob", "Restart", "Ignore"]


@dataclass(frozen=True)
class Verdict:
    """How a policy judges one failure."""

    action: Action
    counts: bool
    """Towards `maxRestarts`, if the group restarts."""
    avoid_node: bool
    rule: int | None
    """Position of the rule that decided, if one did."""


def judge(policy: FailurePolicy, failure: Failure, *, has_trained: bool = False) -> Verdict:
    """Return the verdict of the first rule that fits, or the built-in one.

    A rule with a broken or too large expression fits nothing. Such a job is refused, but its pods
    may be older than the edit. `has_trained` says that a step of the job has been seen, in any
    attempt.
    """
    built_in = failure.reason not in UNCOUNTED
    expressions = iter(compile_all(policy.message_patterns()))
    for position, rule in enumerate(policy.rules):
        expression = next(expressions) if rule.on_message_pattern else None
        if _fits(rule, expression, failure):
            counts = built_in if rule.counts_towards_max is None else rule.counts_towards_max
            return Verdict(rule.action, counts, rule.avoid_node, position)
    action: Action = "FailJob" if is_hopeless(failure) and not has_trained else "Restart"
    return Verdict(action, built_in, False, None)


def is_hopeless(failure: Failure) -> bool:
    """Whether every further attempt would end in the same way.

    That is so without script, module, torch or Python in the image, with a wrong option, and with
    an archive of code that is refused. If an exception ended the launcher, or kept the code from
    being unpacked, it may have been the network's or the node's fault.
    """
    no_program = failure.reason in START_ERRORS and NO_PROGRAM.search(failure.message)
    useless = failure.reason in (NOTHING_TO_LAUNCH, CODE_INVALID) or bool(no_program)
    return failure.exception is None and useless


def _fits(rule: FailureRule, expression: Any, failure: Failure) -> bool:
    """Whether the rule fits the failure; `expression` is the rule's pattern, compiled."""
    wanted = (
        (rule.on_exit_codes, failure.exit_code),
        (rule.on_signals, failure.signal),
        (rule.on_reasons, failure.reason),
        (rule.on_ranks, failure.rank),
    )
    if isinstance(expression, str):
        return False
    return all(values is None or value in values for values, value in wanted) and (
        expression is None or expression.search(failure.message) is not None
    )


def reported_step(status: Status) -> int | None:
    """Return the step that the script itself last reported in this round, if it has.

    Steps that are counted from outside begin at 0 in every process, so they show no progress.
    """
    progress = status.current_progress
    return progress.step if progress is not None and progress.source != "counted" else None


def with_refill(budget: Budget, step: int | None) -> Budget:
    """Return `budget`, full again if `step` is higher than any earlier round's."""
    further = step is not None and (budget.highest_step is None or step > budget.highest_step)
    spent = budget.charged or budget.consecutive_restarts or budget.same_step_failures
    if not further or not spent:
        return budget
    return Budget(highest_step=budget.highest_step)


def with_highest_step(budget: Budget, step: int | None) -> Budget:
    """Return `budget` with `step` as its highest step, if it is the highest."""
    if step is None or budget.highest_step is not None and step <= budget.highest_step:
        return budget
    return budget.model_copy(update={"highest_step": step})


def spend(
    budget: Budget, step: int | None, *, counts: bool, ran_seconds: float, backoff: BackoffSeconds
) -> tuple[Budget, float]:
    """Return the budget after a failure at `step`, and the pause before the restart in seconds.

    `ran_seconds` is for how long all nodes had run.
    """
    consecutive_restarts = (0 if ran_seconds > backoff.cap else budget.consecutive_restarts) + 1
    update: dict[str, int | None] = {"consecutive_restarts": consecutive_restarts}
    if counts:
        same = step is not None and step == budget.failed_step
        update |= {
            "charged": budget.charged + 1,
            "failed_step": step,
            "same_step_failures": (budget.same_step_failures if same else 0) + (step is not None),
        }
    pause = (
        0.0
        if consecutive_restarts == 1
        else min(backoff.cap, backoff.first * 2.0 ** min(consecutive_restarts - 2, 32))
    )
    budget = with_highest_step(budget, step)
    return budget.model_copy(update=update | {"next_restart_time": None}), pause


_ACTIVE: Mapping[State, str] = {
    "Starting": "starting_seconds",
    "Restarting": "starting_seconds",
    "Running": "productive_seconds",
    "Idle": "idle_seconds",
}
_QUEUED: Mapping[State, str] = {"Pending": "queued_seconds", "Queued": "queued_seconds"}
_BOOKS = {**_QUEUED, **_ACTIVE}


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
        spent = spent.model_copy(update={**update, book: (getattr(spent, book) or 0) + kept})
    return new.model_copy(
        update={"goodput": _rated(spent.model_copy(update={"since": timestamp(now)}))}
    )


def _seconds_of_steps(old: Status, new: Status, since: str) -> int:
    """Return the seconds from `since` to the last step that was seen in the round of `old`."""
    progress = new.model_copy(update={"attempt": old.attempt, "round": old.round}).current_progress
    if progress is None:
        return 0
    last = unix_seconds(progress.updated_at)
    return sys.maxsize if last is None else max(0, int(seconds_since(since, last)))


def active_seconds(status: Status, now: float) -> float:
    """For how long the job has been starting or running, all attempts together."""
    spent = status.goodput
    done = spent.starting_seconds + spent.productive_seconds + spent.lost_seconds
    done += spent.idle_seconds or 0
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
