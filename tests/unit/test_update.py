"""What follows from an edit of what the ranks run."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.api import Budget, DDPJob, Program
from ddpjob.api.status import Result
from ddpjob.plan.model import PodRecord
from tests.builders import (
    NOW,
    RECREATE,
    condition,
    decide,
    edited,
    job,
    pod,
    reported,
    running,
    see,
    started,
    succeeded,
    summary,
    told,
    whole,
    with_status,
    write,
)

A, B, C = ("a" * 16, "b" * 16, "c" * 16)
BOTH = (running(0), running(1))


def known(ours: DDPJob) -> DDPJob:
    """The job once it is known that its ranks run A."""
    program = Program(revision=1, hash=A)
    return with_status(ours, ours.status.model_copy(update={"program": program}))


def training(**spec: Any) -> DDPJob:
    """A job whose ranks run A."""
    return known(whole(**spec))


def test_what_the_ranks_run_is_noted_before_the_first_pod_is_made() -> None:
    ours = write(job(), program=A)
    assert ours.status.program == Program(revision=1, hash=A)
    step = decide(ours, see(program=A), NOW)
    assert step.create == (0, 1) and step.order.program == ""


def test_an_edit_begins_a_round_in_the_same_pods() -> None:
    code = {"configMaps": ["x"], "sha256": "5" * 64}
    env = [{"name": "LR", "value": "hidden"}]
    before = training(args=["train.py", "a b"], code=code, env=env)
    budget = Budget(charged=2, consecutive_restarts=2, highest_step=9)
    before = with_status(before, before.status.model_copy(update={"budget": budget}))
    step = decide(before, see(*BOTH, program=B, round_status=told()), NOW)
    after = step.status
    assert (after.state, after.attempt, after.round, after.restarts) == ("Restarting", 0, 1, 1)
    assert after.program == Program(revision=2, hash=B, round=1)
    assert condition(after, "Running") == ("False", "Updated")
    assert (after.pods, after.budget) == (before.status.pods, Budget())
    entry = after.history[-1]
    assert (entry.reason, entry.charged, entry.revision) == ("Updated", False, None)
    assert (
        entry.message == "revision 2 follows: code 555555555555, with LR set, args train.py 'a b'"
    )
    assert not (step.delete or step.create or step.prepare or step.end_round)
    (event,) = step.events
    assert (event.reason, event.warning) == ("Updated", False) and "round 1" in event.message
    ours = with_status(before, after)
    step = decide(ours, see(*BOTH, program=B, round_status=told()), NOW)
    assert (step.order.round, step.order.program) == (1, B)
    ours = write(ours, *BOTH, program=B, round_status=told(round=1))
    assert ours.status.state == "Running"
    step = decide(ours, see(*BOTH, program=C, round_status=told(round=1)), NOW)
    assert step.status.program == Program(revision=3, hash=C, round=2)
    assert step.status.history[-1].revision == 2


@pytest.mark.parametrize(
    ("pods", "spec"),
    [
        ((running(0), running(1, spec_hash="before the edit")), {}),
        (BOTH, RECREATE),
    ],
)
def test_where_pods_cannot_stay_all_are_made_anew(
    pods: tuple[PodRecord, ...], spec: dict[str, Any]
) -> None:
    ours = write(training(**spec), *pods, program=B)
    status = ours.status
    assert (status.attempt, status.round, status.state) == (1, 0, "Restarting")
    assert status.program == Program(revision=2, hash=B) and status.ordered_program == ""
    assert status.history[-1].reason == "Updated" and status.budget.charged == 0


def test_an_edit_of_ranks_that_have_failed_does_not_end_their_pods() -> None:
    ours = training(failurePolicy={"maxRestarts": 0})
    step = decide(ours, see(*BOTH, program=B, round_status=told(reported(1))), NOW)
    assert (step.status.round, step.end_round) == (1, False)
    assert step.status.budget.charged == 0


def test_a_pod_that_is_lost_is_answered_first_and_the_new_one_gets_what_is_new() -> None:
    ours = write(training(), running(0), running(1, deleting=True), program=B)
    assert ours.status.program == Program(revision=1, hash=A) and ours.status.round == 1
    step = decide(ours, see(running(0), program=B), NOW)
    assert not step.create, "it would run something else than the other one"
    assert step.status.program == Program(revision=2, hash=B, round=1)
    assert (step.status.round, step.status.history) == (1, ours.status.history)
    ours = with_status(ours, step.status)
    step = decide(ours, see(running(0), program=B), NOW + 1)
    assert step.create == (1,) and step.order.program == B


@pytest.mark.parametrize("number", [0, 1])
def test_what_ended_well_before_an_edit_is_no_end_of_the_job(number: int) -> None:
    """A kubelet tells of an end a second or two after it."""
    ours = write(training(), *BOTH, program=B)
    message = summary(reason="Completed", exit_code=0, round=number)
    ends = (succeeded(0, message=message), succeeded(1, message=message))
    status = write(ours, *ends, program=B).status
    if number:
        assert status.state == "Succeeded"
    else:
        assert (status.state, status.attempt, status.budget.charged) == ("Restarting", 1, 0)
        assert status.program == Program(revision=2, hash=B)


def test_an_edit_forgets_the_result_of_before() -> None:
    result = Result.model_validate({"value": "1.0", "sizeBytes": 3})
    before = training()
    before = with_status(before, before.status.model_copy(update={"result": result}))
    assert write(before, *BOTH, program=B).status.result is None


def test_pods_that_are_not_seen_yet_may_run_what_was_there_before() -> None:
    ours = known(started())
    assert decide(ours, replace(see(program=B), confirmed=False), NOW).confirm
    assert not decide(ours, see(program=B), NOW).confirm


def test_an_edit_waits_for_pods_that_start() -> None:
    ours, pods = known(started()), (running(0), pod(1))
    assert write(ours, *pods, program=B).status == write(ours, *pods, program=A).status


def test_pods_of_two_kinds_never_begin_an_attempt() -> None:
    ours = known(started())
    step = decide(ours, see(pod(0), program=B), NOW)
    assert not step.create and step.status.attempt == 1


def test_what_has_changed_meanwhile_is_noted_as_a_job_goes_on() -> None:
    ours = write(edited(training(), suspend=True), *BOTH, program=A)
    for pods in (BOTH, (), ()):
        ours = write(ours, *pods, program=B)
    assert ours.status.state == "Suspended"
    assert ours.status.program == Program(revision=1, hash=A)
    ours = write(edited(ours, suspend=False), program=B)
    assert ours.status.program == Program(revision=2, hash=B)


def test_a_job_of_an_earlier_version_goes_on_as_it_is() -> None:
    ours = whole()
    assert write(ours, *BOTH, program=B).status.round == 0
