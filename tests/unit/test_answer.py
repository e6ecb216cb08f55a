"""What a failure costs that has been answered before."""

from typing import Any

import pytest

from ddpjob.api import DDPJob
from tests.builders import (
    NOW,
    condition,
    decide,
    failed,
    reported,
    running,
    see,
    summary,
    told,
    whole,
    write,
)


def in_round_1(**policy: Any) -> DDPJob:
    """A job that has been told to start again in place, after one charged failure."""
    ours = write(
        whole(failurePolicy=policy),
        running(0),
        running(1),
        round_status=told(reported(1, exit_code=3)),
    )
    assert (ours.status.round, ours.status.budget.charged) == (1, 1)
    return ours


def test_pods_that_end_with_what_was_answered_are_not_charged_again() -> None:
    ended = failed(1, summary(rank=1))
    status = decide(in_round_1(), see(running(0), ended), NOW).status
    assert (status.attempt, status.round, status.restarts) == (1, 0, 2)
    assert status.budget.charged == 1
    assert status.failure and (status.failure.attempt, status.failure.round) == (0, 0)
    assert [(e.attempt, e.round, e.charged) for e in status.history] == [
        (0, 0, True),
        (0, 1, False),
    ]


@pytest.mark.parametrize("message", [summary(rank=1, round=1), summary(rank=1, round=9), "Killed"])
def test_what_ends_in_this_round_or_without_an_agents_word_is_charged(message: str) -> None:
    status = decide(in_round_1(), see(running(0), failed(1, message)), NOW).status
    assert (status.attempt, status.budget.charged) == (1, 2)
    assert status.failure and status.failure.round == 1


@pytest.mark.parametrize("message", ["closed by peer", "timed out"])
@pytest.mark.parametrize("ended", [0, 1])
def test_a_secondary_failure_of_an_earlier_round_is_not_charged(message: str, ended: int) -> None:
    pods = (running(0), failed(1, summary(peer=True, message=message, round=ended)))
    status = decide(in_round_1(), see(*pods, secondary_seconds=60), NOW).status
    assert (status.attempt, status.budget.charged) == (1, 1 + ended)
    assert status.failure and status.failure.round == ended


@pytest.mark.parametrize(
    "rule",
    [
        {"onExitCodes": [3], "action": "FailJob"},
        {"onExitCodes": [3], "action": "Ignore"},
        {"onExitCodes": [3], "action": "Restart", "countsTowardsMax": True},
    ],
)
def test_no_rule_is_asked_about_an_answered_failure_again(rule: dict[str, Any]) -> None:
    """The policy may have been edited since."""
    ours = in_round_1(maxRestarts=1)
    edited = whole(failurePolicy={"maxRestarts": 1, "rules": [rule]})
    ours = edited.model_copy(update={"status": ours.status})
    again = failed(1, summary(rank=1, exit_code=3))
    status = decide(ours, see(running(0), again), NOW).status
    assert (status.state, status.attempt, status.budget.charged) == ("Restarting", 1, 1)
    new = failed(1, summary(rank=1, exit_code=3, round=1))
    other = decide(ours, see(running(0), new), NOW).status
    assert other.state == "Failed" or other.succeeded_ranks == "1"


def test_a_script_that_is_gone_in_an_earlier_round_does_not_end_the_job() -> None:
    gone = failed(1, summary(reason="LaunchFailed"))
    assert decide(in_round_1(), see(running(0), gone), NOW).status.attempt == 1
    now = failed(1, summary(reason="LaunchFailed", round=1))
    status = decide(in_round_1(), see(running(0), now), NOW).status
    assert condition(status, "Failed") == ("True", "LaunchFailed")
