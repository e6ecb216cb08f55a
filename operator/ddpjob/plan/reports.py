"""Puts rank 0's reports into the status. Pure."""

from typing import Any

from ddpjob.api import Attempt, Progress, Status
from ddpjob.plan.budget import reported_step, with_highest_step, with_refill
from ddpjob.plan.goodput import with_lost_time
from ddpjob.plan.observed import Report
from ddpjob.plan.status import with_progress


def with_report(status: Status, report: Report | None) -> Status:
    """Return `status` with rank 0's report; a new highest step gives the budget back."""
    is_first, before = status.current_progress is None, reported_step(status)
    status = with_progress(status, report)
    if is_first:
        status = with_lost_time(status)
    budget, step = status.budget, reported_step(status)
    if before is not None and step is not None and step < before:  # the script went back
        budget = with_highest_step(budget, before)
    return status.model_copy(update={"budget": with_refill(budget, step)})


def with_last_report(status: Status, report: Report | None) -> Status:
    """Return `status` with the step at which rank 0 left the attempt before this one.

    Rank 0 reports it when it ends. By then the next attempt has begun with an older step.
    """
    if report is None or report.source == "counted" or report.attempt != status.attempt - 1:
        return status
    update: dict[str, Any] = {"budget": with_highest_step(status.budget, report.step)}
    ended = status.history[-1:]
    if ended and _is_of(report, ended[0]) and (ended[0].step or -1) < report.step:
        last = ended[0].model_copy(update={"step": report.step})
        update["history"] = [*status.history[:-1], last]
    progress = None if status.current_progress else status.progress
    if progress and progress.source != "counted" and _is_of(report, progress):
        update["progress"] = progress.model_copy(update={"step": max(progress.step, report.step)})
    return status.model_copy(update=update)


def _is_of(report: Report, part: Attempt | Progress) -> bool:
    """Whether this part of the status is about the round that the report is of."""
    return part.attempt in (None, report.attempt) and part.round == report.round
