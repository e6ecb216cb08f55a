"""What rank 0 says of the training, and what follows for the status. Pure."""

from typing import Any

from ddpjob.api import Status
from ddpjob.plan.budget import reached, regained, reported_step
from ddpjob.plan.goodput import with_lost_time
from ddpjob.plan.observed import Report
from ddpjob.plan.status import with_progress


def with_report(status: Status, report: Report | None) -> Status:
    """`status` with what rank 0 says, and what follows from how far it got."""
    first = status.progress.first_step if status.progress else None
    before = reported_step(status)
    status = with_progress(status, report)
    if first is None:
        status = with_lost_time(status)
    budget, step = status.budget, reported_step(status)
    if before is not None and step is not None and step < before:  # the script went back
        budget = reached(budget, before)
    return status.model_copy(update={"budget": regained(budget, step)})


def with_last_word(status: Status, report: Report | None) -> Status:
    """`status` with the step at which rank 0 left the attempt before this one.

    It tells when it ends, which is after the attempt was given up: what was known then is older.
    """
    if report is None or report.source != "file" or report.attempt != status.attempt - 1:
        return status
    update: dict[str, Any] = {"budget": reached(status.budget, report.step)}
    said = status.history[-1:]
    if said and said[0].attempt == report.attempt and (said[0].step or -1) < report.step:
        last = said[0].model_copy(update={"step": report.step})
        update["history"] = [*status.history[:-1], last]
    progress = status.progress
    if progress and progress.first_step is None and progress.source == "file":  # that attempt's
        update["progress"] = progress.model_copy(update={"step": max(progress.step, report.step)})
    return status.model_copy(update=update)
