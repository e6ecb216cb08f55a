"""What follows from a failure: whether, when and where the group starts again. Pure."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from ddpjob.api import (
    BackoffSeconds,
    Budget,
    Failure,
    FailurePolicy,
    FailureRule,
    Status,
)
from ddpjob.api.expressions import compile_all
from ddpjob.plan.observed import DISRUPTIONS

LAUNCH_FAILED = "LaunchFailed"  # as the agent calls it
START_ERRORS = ("StartError", "ContainerCannotRun")  # as containerd and Docker call it, and
# What runc says then, and crun, which puts the name in between.
NO_PROGRAM = re.compile(r"executable file (\S{1,99} )?not found in \$PATH")
SAME_STEP_FAILURES = 3  # in a row at one step, then a further try would end there too


Action = Literal["FailJob", "Restart", "Ignore"]


@dataclass(frozen=True)
class Verdict:
    """What a policy says of one failure."""

    action: Action
    counts: bool
    """Towards `maxRestarts`, if the group restarts."""
    avoid_node: bool
    rule: int | None
    """Position of the rule that decided, if one did."""


def judge(policy: FailurePolicy, failure: Failure, *, has_trained: bool = False) -> Verdict:
    """The verdict of the first rule that fits, or the built-in one.

    A rule whose expression is none, or too large, fits nothing: the job is refused for it, but its
    pods may be older than that. `has_trained`: a step of the job has been seen, in whatever
    attempt.
    """
    built_in = failure.reason not in DISRUPTIONS
    expressions = iter(compile_all(policy.message_patterns()))
    for position, rule in enumerate(policy.rules):
        expression = next(expressions) if rule.on_message_pattern else None
        if _fits(rule, expression, failure):
            counts = built_in if rule.counts_towards_max is None else rule.counts_towards_max
            return Verdict(rule.action, counts, rule.avoid_node, position)
    action: Action = "FailJob" if is_hopeless(failure) and not has_trained else "Restart"
    return Verdict(action, built_in, False, None)


def is_hopeless(failure: Failure) -> bool:
    """Whether every further attempt would end so: no script, module or torch, a wrong option.

    Or no Python in the image. Where an exception ended the launcher it may have been the network,
    or the node.
    """
    no_program = failure.reason in START_ERRORS and NO_PROGRAM.search(failure.message)
    return failure.exception is None and (failure.reason == LAUNCH_FAILED or bool(no_program))


def _fits(rule: FailureRule, expression: Any, failure: Failure) -> bool:
    """Whether the failure is as the rule has it in every field; `expression`: by `compile_all`."""
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
    """The step that the script itself last reported in this attempt.

    Steps counted from outside begin at 0 in every process, so they tell nothing of progress.
    """
    progress = status.progress
    if progress is None or progress.source != "file" or progress.first_step is None:
        return None
    return progress.step


def regained(budget: Budget, step: int | None) -> Budget:
    """`budget`, as new if `step` is further than any earlier attempt got."""
    further = step is not None and (budget.highest_step is None or step > budget.highest_step)
    spent = budget.charged or budget.in_row or budget.same_step_failures
    if not further or not spent:
        return budget
    return Budget(highest_step=budget.highest_step)


def reached(budget: Budget, step: int | None) -> Budget:
    """`budget`, with `step` among those that have been reached."""
    if step is None or budget.highest_step is not None and step <= budget.highest_step:
        return budget
    return budget.model_copy(update={"highest_step": step})


def spend(
    budget: Budget, step: int | None, *, counts: bool, ran_seconds: float, backoff: BackoffSeconds
) -> tuple[Budget, float]:
    """The budget after a failure at `step`, and for how many seconds to pause.

    `ran_seconds`: for how long all nodes had run.
    """
    in_row = (0 if ran_seconds > backoff.cap else budget.in_row) + 1
    update: dict[str, int | None] = {"in_row": in_row}
    if counts:
        same = step is not None and step == budget.failed_step
        update |= {
            "charged": budget.charged + 1,
            "failed_step": step,
            "same_step_failures": (budget.same_step_failures if same else 0) + (step is not None),
        }
    pause = 0.0 if in_row == 1 else min(backoff.cap, backoff.first * 2.0 ** min(in_row - 2, 32))
    budget = reached(budget, step)
    return budget.model_copy(update=update | {"next_restart_time": None}), pause
