"""Parts of the status: counts, conditions, history, progress and the curve of the loss. Pure.

A point of the curve enters the status with a report that is written anyway. The points are few and
evenly spread over the steps, whatever was reported.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence, Set

from ddpjob import api
from ddpjob.api import MAX_POINTS, Point, Progress
from ddpjob.plan.model import PodRecord, Report
from ddpjob.plan.reasons import (
    ACCEPTED,
    AGENT_RUNS,
    LAUNCHER_NONE,
    OWN_CONDITIONS,
    SUSPENDING,
    Reason,
)
from ddpjob.times import timestamp

CREATING = "pods are being created"


def is_suspending(status: api.Status) -> bool:
    """Whether the job is leaving its attempt. It goes on leaving even if it is resumed."""
    leaving = status.condition("Suspended")
    return leaving is not None and leaving.reason == SUSPENDING.name


def with_condition(status: api.Status, reason: Reason, message: str, *, now: float) -> api.Status:
    """Return `status` with this reason of its condition.

    The transition time changes only if the condition's truth does. `now` is Unix time.
    """
    old = status.condition(reason.condition)
    truth: api.Truth = "Unknown" if reason.value is None else "True" if reason.value else "False"
    new = api.Condition(
        type=reason.condition,
        status=truth,
        reason=reason.name[: api.MAX_REASON],
        message=message,
        last_transition_time=(
            old.last_transition_time if old and old.status == truth else timestamp(now)
        ),
        observed_generation=status.observed_generation,
    )
    if old and old.model_copy(update={"observed_generation": new.observed_generation}) == new:
        return status  # a generation alone is no news
    others = [c for c in status.conditions if c.type != new.type]
    if len(others) == api.MAX_CONDITIONS:  # no room is left by conditions of somebody else's
        others.remove(next(c for c in others if c.type not in OWN_CONDITIONS))
    # In one order, so that the same end has the same status, however it came.
    return status.model_copy(update={"conditions": sorted([*others, new], key=_position)})


def _position(condition: api.Condition) -> int:
    own = condition.type in OWN_CONDITIONS
    return OWN_CONDITIONS.index(condition.type) if own else len(OWN_CONDITIONS)


def with_accepted(job: api.DDPJob, status: api.Status, now: float) -> api.Status:
    """Return `status` of a job of which pods can be made."""
    message = "the job can be rendered and its names are free"
    status = with_condition(status, ACCEPTED, message, now=now)
    if job.spec.has_agent:
        if status.condition("AgentAbsent"):
            message = "ddpjob's agent runs what the pods run"
            status = with_condition(status, AGENT_RUNS, message, now=now)
        return status
    message = (
        "launcher none without command runs the image's own entry point, without ddpjob's agent: "
        "no progress, no first cause of a failure"
    )
    return with_condition(status, LAUNCHER_NONE, message, now=now)


def count_nodes(desired: int, current: Sequence[PodRecord], succeeded: Set[int]) -> api.Nodes:
    """Return how many nodes of the attempt are pending, running, succeeded and failed.

    A node that has ended well counts even if its pod is gone.
    """
    found = Counter(
        pod.result or ("running" if pod.running else "pending")
        for pod in current
        if pod.rank not in succeeded
    )
    return api.Nodes(
        desired=desired,
        pending=found["pending"],
        running=found["running"],
        succeeded=len(succeeded),
        failed=found["failed"],
    )


_OF_FAILURE = {"rank", "pod", "node", "exit_code", "signal", "exception", "message"}


def with_history(
    status: api.Status,
    reason: str,
    now: float,
    *,
    found: api.Failure | None = None,
    charged: bool = False,
    **more: str,
) -> api.Status:
    """Return `status` with its round, which has ended, among the last ten."""
    running = status.condition("Running")
    progress = status.current_progress
    ended = api.Attempt(
        attempt=status.attempt,
        round=status.round,
        start_time=running.last_transition_time if running and running.status == "True" else None,
        end_time=timestamp(now),
        reason=reason,
        charged=charged,
        revision=revision_of(status),
        first_step=progress.first_step if progress else None,
        step=progress.step if progress else None,
        **(found.model_dump(include=_OF_FAILURE, exclude_defaults=True) if found else more),
    )
    return status.model_copy(update={"history": [*status.history, ended][-10:]})


def revision_of(status: api.Status) -> int | None:
    """Return the revision of what the ranks run, if it is not the first."""
    return status.program.revision if status.program and status.program.revision > 1 else None


def with_progress(status: api.Status, report: Report | None) -> api.Status:
    """Return `status` with rank 0's last report, also in the curve; unchanged if it is no news."""
    if report is None or (report.attempt, report.round) != (status.attempt, status.round):
        return status
    old = status.current_progress
    # A step of another source is another count.
    first = old.first_step if old is not None and old.source == report.source else None
    found = (report.first_step, first, report.step)
    first = min(report.step, next(step for step in found if step is not None))
    progress = _progress(report).model_copy(update={"first_step": first})
    if progress == old:
        return status
    curve = with_point(status.curve, progress)
    return status.model_copy(update={"progress": progress, "curve": curve})


def _progress(report: Report) -> api.Progress:
    total = report.total_steps
    eta = report.eta_seconds
    return api.Progress(
        attempt=report.attempt,
        round=report.round,
        step=report.step,
        total_steps=total,
        epoch=_number(report.epoch),
        percent=min(100, 100 * report.step // total) if total else None,
        eta_seconds=math.ceil(eta) if eta is not None and math.isfinite(eta) else None,
        loss=_number(report.loss),
        samples_per_second=_number(report.samples_per_second),
        source=report.source,
        updated_at=timestamp(report.updated_at) if report.updated_at else None,
        metrics=[api.Metric(name=n, value=_number(v) or "") for n, v in report.metrics],
    )


def _number(value: float | None) -> str | None:
    """Return four significant digits, or `nan` or `inf`."""
    return None if value is None else f"{value:.4g}"


# Of the curve as JSON. 64 points have less, unless their numbers have many digits.
MAX_BYTES = 1536


def with_point(points: Sequence[Point], progress: Progress) -> list[Point]:
    """Return `points` with that of `progress`, if it reports a loss that is a finite number.

    Steps grow: a restart repeats the steps after its checkpoint, so their points are left out.
    """
    loss = _finite(progress.loss)
    if loss is None:
        return list(points)
    rate = _finite(progress.samples_per_second)
    point: Point = [progress.step, loss] if rate is None else [progress.step, loss, rate]
    return _thinned([*(each for each in points if each[0] < progress.step), point])


def _finite(text: str | None) -> int | float | None:
    """Return a number of a report as short as JSON has it; None for what is not finite."""
    value = math.nan if text is None else float(text)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _thinned(points: list[Point]) -> list[Point]:
    """Return `points` without those that are missed least, until they fit; both ends stay.

    Between the neighbours of such a point the gap is smallest. So the distances stay within a
    factor of each other that does not grow with the number of reports.
    """
    while len(points) > MAX_POINTS or len(points) > 2 and _size(points) > MAX_BYTES:
        inner = range(1, len(points) - 1)
        del points[min(inner, key=lambda i: points[i + 1][0] - points[i - 1][0])]
    return points


def _size(points: Sequence[Point]) -> int:
    return len(json.dumps(points, separators=(",", ":")))
