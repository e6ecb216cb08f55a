"""Pods that are kept once all ranks have ended."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.api import DDPJob, Program
from ddpjob.errors import InvalidJob
from ddpjob.plan.model import NodeExit, Report, RoundStatus
from tests.builders import (
    NOW,
    condition,
    decide,
    edited,
    failed,
    reported,
    running,
    see,
    succeeded,
    summary,
    told,
    whole,
    with_status,
    write,
)

A, B = "a" * 16, "b" * 16
BOTH = (running(0), running(1))
RESULT = {"value": {"loss": 0.5}, "size": 12}
DONE = (
    NodeExit(0, 0, summary(reason="Completed", exit_code=0, result=RESULT)),
    NodeExit(1, 0, summary(reason="Completed", exit_code=0)),
)
ONCE = {"failurePolicy": {"maxRestarts": 0}}


def over(*exits: NodeExit, round: int = 0) -> RoundStatus:
    """What rank 0's agent says once all ranks have ended."""
    return replace(told(*exits, round=round), over=True)


def kept(**spec: Any) -> DDPJob:
    """A job whose pods are kept for half an hour, and whose ranks run A."""
    ours = whole(keepSeconds=1800, **spec)
    program = Program(revision=1, hash=A)
    return with_status(ours, ours.status.model_copy(update={"program": program}))


def rests(**spec: Any) -> DDPJob:
    """The same once its ranks have ended well."""
    ours = write(kept(**spec), *BOTH, program=A, round_status=over(*DONE))
    assert ours.status.state == "Idle"
    return ours


def test_ranks_that_have_ended_well_leave_their_pods_and_a_result() -> None:
    step = decide(kept(), see(*BOTH, program=A, round_status=over(*DONE)), NOW)
    status = step.status
    assert (status.state, status.round, status.restarts) == ("Idle", 1, 0)
    assert condition(status, "Running") == ("False", "Idle")
    assert status.result and status.result.value == '{"loss":0.5}'
    assert status.history[-1].reason == "Succeeded" and status.summary.reason is None
    assert not (step.delete or step.end_round)
    step = decide(with_status(kept(), status), see(*BOTH, program=A), NOW + 60)
    assert (step.order.round, step.order.held, step.requeue_after) == (1, True, 1740)
    assert step.status.state == "Idle" and not (step.delete or step.create)


def test_a_rank_that_still_runs_is_waited_for() -> None:
    seen = replace(over(*DONE), over=False)
    assert write(kept(), *BOTH, program=A, round_status=seen).status.state == "Running"
    ours = write(kept(successPolicy="Rank0"), *BOTH, program=A, round_status=seen)
    assert ours.status.state == "Idle"


def test_a_failure_that_would_end_the_job_leaves_its_pods() -> None:
    ours = write(kept(**ONCE), *BOTH, program=A, round_status=told(reported(1)))
    status = ours.status
    assert (status.state, status.round, status.budget.charged) == ("Idle", 1, 1)
    assert status.failure and status.failure.rank == 1
    assert status.summary.reason and status.summary.reason.startswith("Exception r1")
    assert condition(status, "Running") == ("False", "Exception")


def test_an_edit_that_cannot_be_unpacked_leaves_the_pods_for_other_code() -> None:
    report = Report(attempt=0, step=7, source="file")
    ours = write(kept(), *BOTH, program=A, report=report)
    exits = [reported(rank, reason="CodeInvalid") for rank in (0, 1)]
    step = decide(ours, see(*BOTH, program=A, round_status=told(*exits)), NOW)
    assert step.end_round, "what has trained may be unpacked in other pods"
    ours = write(ours, *BOTH, program=B)
    exits = [reported(rank, reason="CodeInvalid", round=1) for rank in (0, 1)]
    ours = write(ours, *BOTH, program=B, round_status=told(*exits, round=1))
    assert ours.status.state == "Idle" and ours.status.failure is not None
    assert ours.status.failure.reason == "CodeInvalid"


def test_one_that_does_not_begins_the_next_round_as_ever() -> None:
    ours = write(kept(), *BOTH, program=A, round_status=told(reported(1)))
    assert (ours.status.state, ours.status.round) == ("Restarting", 1)


@pytest.mark.parametrize("spec", [{}, ONCE])
def test_an_edit_runs_in_the_pods_that_were_kept(spec: dict[str, Any]) -> None:
    exits = told(reported(1)) if spec else over(*DONE)
    ours = write(kept(**spec), *BOTH, program=A, round_status=exits)
    ours = write(ours, *BOTH, program=B)
    status = ours.status
    assert (status.state, status.attempt, status.round) == ("Restarting", 0, 2)
    assert status.program == Program(revision=2, hash=B, round=2)
    step = decide(ours, see(*BOTH, program=B), NOW)
    assert (step.order.held, step.order.program) == (False, B)
    ours = write(ours, *BOTH, program=B, round_status=told(round=2))
    assert ours.status.state == "Running"


def test_after_their_time_agents_end_their_pods_and_the_job_has_succeeded() -> None:
    ours = rests()
    step = decide(ours, see(*BOTH, program=A), NOW + 1800)
    assert step.end_round and step.order.ends and step.status.state == "Idle"
    one = (succeeded(0), running(1))
    step = decide(ours, see(*one, program=A), NOW + 1801)
    assert step.end_round and step.status.state == "Idle"
    ours = write(ours, succeeded(0), succeeded(1), program=A, now=NOW + 1802)
    assert ours.status.state == "Succeeded" and len(ours.status.history) == 1
    assert ours.status.goodput.idle_seconds == 1802


def test_after_their_time_a_job_that_had_failed_has_failed() -> None:
    ours = write(kept(**ONCE), *BOTH, program=A, round_status=told(reported(1)))
    pods = (failed(0, summary(reason="Signal", peer=True)), failed(1, summary(rank=1)))
    ours = write(ours, *pods, program=A, now=NOW + 1802)
    assert condition(ours.status, "Failed") == ("True", "MaxRestartsExceeded")
    assert (ours.status.state, ours.status.budget.charged) == ("Failed", 1)


def test_agents_that_do_not_end_their_pods_are_not_waited_for_without_end() -> None:
    assert write(rests(), *BOTH, program=A, now=NOW + 1831).status.state == "Succeeded"


@pytest.mark.parametrize(
    "pods",
    [
        (running(0), running(1, deleting=True)),
        (running(0),),
        (running(0), failed(1)),
    ],
)
def test_a_kept_pod_that_is_lost_ends_the_job_and_runs_nothing_again(pods: Any) -> None:
    step = decide(rests(), see(*pods, program=A), NOW)
    assert step.status.state == "Succeeded"
    assert "KeptPodLost" in [event.reason for event in step.events]


def test_a_suspended_job_gives_its_pods_back() -> None:
    ours = write(edited(rests(), suspend=True), *BOTH, program=A)
    assert (ours.status.attempt, condition(ours.status, "Suspended")) == (
        1,
        ("False", "Suspending"),
    )


def test_code_that_is_not_there_is_looked_for_again_without_news() -> None:
    missing = {"edit_error": InvalidJob("spec.code", "there is none"), "look_seconds": 5.0}
    for ours in (rests(), kept()):
        step = decide(ours, see(*BOTH, program=A, **missing), NOW)
        assert step.requeue_after == 5 and step.status.round == ours.status.round


def test_an_edit_that_is_taken_back_was_no_fault() -> None:
    missing = InvalidJob("spec.code", "there is none")
    ours = write(rests(), *BOTH, program=A, edit_error=missing)
    assert condition(ours.status, "Accepted") == ("False", "Invalid")
    ours = write(ours, *BOTH, program=A)
    assert condition(ours.status, "Accepted") == ("True", "Accepted")


def test_its_deadline_goes_on() -> None:
    ours = rests(activeDeadlineSeconds=600)
    step = decide(ours, see(*BOTH, program=A), NOW)
    assert step.requeue_after is not None and step.requeue_after <= 600, "its pods say no more"
    assert write(ours, *BOTH, program=A, now=NOW + 601).status.state == "Failed"
