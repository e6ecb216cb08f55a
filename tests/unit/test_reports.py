"""What rank 0's reports, and its termination message, make of the status."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.api import DDPJob, Result
from ddpjob.plan.termination import LeftResult
from tests.builders import (
    NOW,
    RECREATE,
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


@pytest.mark.parametrize(("said", "first"), [(10, 10), (None, 460), (999, 460)])
def test_the_first_step_is_the_agents_which_sees_more_of_them(said: int | None, first: int) -> None:
    """A short job's first report here was its step 460."""
    ours = write(whole(), running(0), running(1), report=replace(reports(460), first_step=said))
    assert ours.status.progress and ours.status.progress.first_step == first


@pytest.mark.parametrize("source", ["file", "callback"])
def test_rank_0s_last_step_is_known_when_it_has_ended_and_not_before(source: str) -> None:
    ours = write(started(**RECREATE), running(0), running(1), report=reports(97, source=source))
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
    ours = whole()
    ours = write(ours, running(0), running(1), report=reports(97), round_status=told(reported(1)))
    ours = write(
        ours, running(0), running(1), report=reports(95, round=1), round_status=told(round=1)
    )
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


def ended(**fields: Any) -> str:
    """A termination message of rank 0 that has ended well, with a result unless told otherwise."""
    return summary(**{"reason": "Completed", "exit_code": 0, "message": "", **fields})


RESULT = {"value": {"loss": 0.5, "tags": ["a", None]}, "size": 31}


def test_the_result_that_rank_0_leaves_is_kept_with_the_job() -> None:
    ours = started()
    ours = write(ours, succeeded(0, message=ended(result=RESULT)), running(1))
    kept = Result(value='{"loss":0.5,"tags":["a",null]}', size_bytes=31)
    assert ours.status.result == kept
    ours = write(ours, running(1))  # rank 0's pod is gone
    ours = write(ours, succeeded(1, message=ended(result={"value": 1, "size": 1})))
    assert (ours.status.state, ours.status.result) == ("Succeeded", kept)
    assert ours.status.to_json()["result"]["value"] == kept.value


def test_the_result_of_an_attempt_goes_with_it() -> None:
    ours = write(started(), succeeded(0, message=ended(result=RESULT)), running(1))
    ours = write(ours, succeeded(0, message=ended(result=RESULT)), failed(1, summary()))
    assert (ours.status.attempt, ours.status.result) == (1, None)


def test_who_has_failed_has_no_result() -> None:
    ours = started(failurePolicy={"maxRestarts": 0})
    ours = write(ours, failed(0, summary(result=RESULT)), running(1))
    assert (ours.status.state, ours.status.result) == ("Failed", None)


@pytest.mark.parametrize(
    ("left", "value"),
    [
        ({"value": None, "size": 4}, "null"),
        ({"value": float("nan"), "size": 3}, "NaN"),
        ({"value": "\x7f\x1b[31m\u202e", "size": 9}, '"\\u007f\\u001b[31m\\u202e"'),
        ({"value": "x" * 2046, "size": 2048}, f'"{"x" * 2046}"'),
        ({"value": "x" * 2047, "size": 2049}, None),
        ({"size": 10**12}, None),
    ],
)
def test_a_result_is_printable_and_bounded(left: dict[str, Any], value: str | None) -> None:
    ours = write(started(), succeeded(0, message=ended(result=left)), running(1))
    assert ours.status.result == Result(value=value, size_bytes=left["size"])


@pytest.mark.parametrize(
    "left", [1, "x", {"value": 1}, {"size": -1}, {"size": 2**53}, {"size": "1"}]
)
def test_what_is_no_result_is_the_kubelets_word(left: Any) -> None:
    ours = write(started(), succeeded(0, message=ended(result=left)), running(1))
    assert ours.status.result is None and ours.status.succeeded_ranks == "0"


def test_a_result_that_is_nested_too_deeply_is_left_out() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert LeftResult(value=deep, size=20_002).result() == Result(size_bytes=20_002)
