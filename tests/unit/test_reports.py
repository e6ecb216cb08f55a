"""What rank 0's reports, and its termination message, make of the status."""

import pytest

from ddpjob.api import DDPJob
from tests.builders import (
    NOW,
    decide,
    failed,
    reported,
    reports,
    running,
    see,
    started,
    succeeded,
    summary,
    told,
    whole,
    write,
)


def test_a_late_report_does_not_undo_the_termination_message_of_rank_0() -> None:
    page = {"attempt": 0, "source": "file", "step": 100}
    ours = write(started(), running(0), running(1), report=reports(97))
    ours = write(ours, succeeded(0, message=summary(progress=page)), running(1), report=reports(97))
    assert ours.status.progress and ours.status.progress.step == 100
    ours = write(ours, running(1), report=reports(97))
    assert ours.status.progress and ours.status.progress.step == 100


@pytest.mark.parametrize("source", ["file", "callback"])
def test_rank_0s_last_step_is_known_when_it_has_ended_and_not_before(source: str) -> None:
    ours = write(started(), running(0), running(1), report=reports(97, source=source))
    ours = write(ours, running(0), failed(1, summary()), report=reports(97, source=source))
    assert ours.status.budget.highest_step == 97 and ours.status.history[-1].step == 97
    page = {"attempt": 0, "source": source, "step": 120}
    left = failed(0, summary(peer=True, progress=page))
    ours = write(ours, left, failed(1, summary()))
    assert ours.status.budget.highest_step == 120 and ours.status.history[-1].step == 120
    assert ours.status.progress and ours.status.progress.step == 120
    again = write(ours, running(0, attempt=1), running(1, attempt=1), report=reports(110, 1))
    assert again.status.budget.charged == 1, "120 had been reached"
    assert decide(ours, see(left, failed(1)), NOW).status == ours.status
    counted = failed(0, summary(progress={**page, "source": "counted", "step": 999}))
    assert decide(ours, see(counted, failed(1)), NOW).status == ours.status


def test_rank_0s_last_step_counts_for_its_own_round() -> None:
    ours = whole(failurePolicy={"restartStrategy": "InPlace"})
    ours = write(ours, running(0), running(1), report=reports(97), group=told(reported(1)))
    ours = write(ours, running(0), running(1), report=reports(95, round=1), group=told(round=1))
    ours = write(ours, running(0), failed(1, summary(round=1)), report=reports(95, round=1))
    assert [(e.attempt, e.round, e.step) for e in ours.status.history] == [(0, 0, 97), (0, 1, 95)]

    def left(round: int) -> DDPJob:
        page = {"attempt": 0, "round": round, "source": "file", "step": 120}
        return write(ours, failed(0, summary(peer=True, progress=page)), failed(1, summary()))

    assert left(1).status.history[-1].step == 120
    progress = left(1).status.progress
    assert progress and progress.step == 120
    assert left(0).status.history == ours.status.history
    assert left(0).status.progress == ours.status.progress
    assert left(0).status.budget.highest_step == 120, "some round had reached it"
