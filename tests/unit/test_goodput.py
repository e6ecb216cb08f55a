"""Where a job's time went."""

from dataclasses import replace

import pytest

from tests.builders import (
    NOW,
    STARTED,
    failed,
    in_attempt,
    job,
    reported,
    reports,
    running,
    told,
    whole,
    write,
)

PAST = {
    "attempt": 0,
    "startTime": "2027-01-15T07:00:00Z",
    "endTime": "2027-01-15T07:50:00Z",
    "reason": "Exception",
    "firstStep": 0,
    "step": 300,
}
"""An attempt that made 300 steps in 3000 s."""


def test_time_is_counted_when_a_state_ends() -> None:
    new = job()
    metadata = new.metadata.model_copy(update={"creation_timestamp": STARTED})
    ours = write(new.model_copy(update={"metadata": metadata}))
    assert ours.status.goodput.queued_seconds == 300
    pods = (running(0), running(1))
    ours = write(ours, *pods, now=NOW + 20)
    ours = write(ours, *pods, now=NOW + 500, report=reports(100))
    ours = write(ours, failed(0), running(1), now=NOW + 1020, report=reports(300))
    spent = ours.status.goodput
    assert (spent.starting_seconds, spent.productive_seconds) == (20, 1000)
    assert spent.ratio == "0.980"


@pytest.mark.parametrize(
    ("stepped_at", "productive"), [(None, 0), (NOW + 400, 400), (NOW - 50, 0), (NOW + 9999, 1000)]
)
@pytest.mark.parametrize("restarts", [0, 1])
def test_what_runs_after_the_last_step_before_a_failure_is_lost(
    stepped_at: float | None, productive: int, restarts: int
) -> None:
    """A job that never got past an import was 89 % useful, one that hung 97 %."""
    pods = (running(0), running(1))
    ours = whole(failurePolicy={"maxRestarts": restarts})
    report = replace(reports(300), updated_at=stepped_at) if stepped_at else None
    ours = write(ours, *pods, now=NOW + 500, report=report)
    ours = write(ours, failed(0), running(1), now=NOW + 1000, report=report)
    assert ours.status.state == ("Restarting" if restarts else "Failed")
    spent = ours.status.goodput
    assert (spent.productive_seconds, spent.lost_seconds) == (productive, 1000 - productive)


@pytest.mark.parametrize("source", ["file", "callback"])
def test_the_time_of_steps_that_are_trained_again_is_lost(source: str) -> None:
    spent = {"productiveSeconds": 3000, "since": STARTED}
    ours = in_attempt(1, history=[PAST], goodput=spent)
    pods = (running(0, attempt=1), running(1, attempt=1))
    ours = write(ours, *pods, report=reports(200, 1, source=source))
    assert ours.status.goodput.lost_seconds == 1000
    assert ours.status.goodput.productive_seconds == 2000
    ours = write(ours, *pods, now=NOW + 5, report=reports(250, 1, source=source))
    assert ours.status.goodput.lost_seconds == 1000, "once"
    counted = in_attempt(1, history=[PAST], goodput=spent)
    counted = write(counted, *pods, report=reports(200, 1, source="counted"))
    assert counted.status.goodput.lost_seconds == 0


def test_the_time_of_steps_that_are_trained_again_in_place_is_lost_too() -> None:
    pods = (running(0), running(1))
    spent = {"productiveSeconds": 3000, "since": STARTED}
    entries = [{**PAST, "round": round} for round in (0, 1)]
    for history, lost in ((entries[:1], 1000), (entries, 0), ([{**PAST, "attempt": 1}], 0)):
        ours = in_attempt(0, history=history, goodput=spent, round=1)
        ours = write(ours, *pods, report=reports(200, round=1))
        assert ours.status.goodput.lost_seconds == lost
    after = in_attempt(1, history=entries, goodput=spent)
    pods = (running(0, attempt=1), running(1, attempt=1))
    assert write(after, *pods, report=reports(200, 1)).status.goodput.lost_seconds == 1000


def test_a_restart_in_place_counts_as_starting() -> None:
    pods = (running(0), running(1))
    ours = whole()
    ours = write(ours, *pods, now=NOW + 50, report=reports(7))
    ours = write(ours, *pods, now=NOW + 100, round_status=told(reported(1)))
    ours = write(ours, *pods, now=NOW + 103, round_status=told(round=1))
    spent = ours.status.goodput
    assert (spent.productive_seconds, spent.starting_seconds) == (100, 3)
