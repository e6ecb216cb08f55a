"""Events of a job: each tells of a change of the status, once."""

import math
from dataclasses import replace
from typing import Any

from ddpjob.api import DDPJob
from ddpjob.errors import Refused
from ddpjob.plan.model import Event, PodRecord, Report
from tests.builders import (
    NOW,
    decide,
    failed,
    job,
    pod,
    reported,
    reports,
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


def turn(ours: DDPJob, *pods: PodRecord, **fields: Any) -> tuple[DDPJob, list[str]]:
    """The job once the decision about it is stored, and the reasons of the Events of that."""
    step = decide(ours, see(*pods, **fields), NOW)
    return with_status(ours, step.status), [event.reason for event in step.events]


def test_a_job_that_trains_and_ends_has_few_events() -> None:
    ours, said = job(), list[str]()
    done = (succeeded(0, message=summary(reason="Completed", exit_code=0)), succeeded(1))
    for pods, fields in (
        ((), {}),
        ((), {}),
        ((pod(0), pod(1)), {}),
        ((running(0), pod(1)), {}),
        ((running(0), running(1)), {}),
        ((running(0), running(1)), {"report": reports(1)}),
        ((running(0), running(1)), {"report": reports(2)}),
        ((done[0], running(1)), {"report": reports(2)}),
        (done, {}),
        ((), {}),
    ):
        ours, reasons = turn(ours, *pods, **fields)
        said += reasons
    assert ours.status.state == "Succeeded"
    assert said == ["Started", "FirstStep", "Succeeded"]


def test_an_attempt_starts_once_and_its_rounds_are_told_by_their_restart() -> None:
    pods = (running(0), running(1))
    ours = whole()
    ours, said = turn(ours, *pods, round_status=told(reported(1)))
    assert said == ["Restarting"]
    ours, said = turn(ours, *pods, round_status=told(round=1))
    assert (ours.status.state, ours.status.round, said) == ("Running", 1, [])
    ours, said = turn(ours, running(0), failed(1))
    assert (ours.status.attempt, said) == (1, ["Restarting"])
    ours, said = turn(ours, running(0, attempt=1), running(1, attempt=1))
    assert said == ["Started"]


def test_the_first_step_of_each_attempt_is_told_whichever_round_makes_it() -> None:
    pods = (running(0), running(1))
    ours = write(whole(), *pods, round_status=told(reported(1)))
    ours = write(ours, *pods, round_status=told(round=1))
    early, said = turn(ours, *pods, round_status=told(round=1), report=reports(7, round=1))
    assert said == ["FirstStep"]
    ours = write(early, *pods, round_status=told(reported(1, round=1), round=1))
    ours, said = turn(ours, *pods, round_status=told(round=2), report=reports(5, round=2))
    assert (ours.status.round, said) == (2, [])
    ours = write(ours, running(0), failed(1))
    assert ours.status.attempt == 1
    later = (running(0, attempt=1), running(1, attempt=1))
    step = decide(write(ours, *later), see(*later, report=reports(5, attempt=1)), NOW)
    words = "attempt 1 makes steps; the first one that was seen is 5"
    assert step.events == (Event("FirstStep", words),)


def test_that_no_node_has_room_is_told_once_an_attempt() -> None:
    ours = started()
    said: list[Event] = []
    for count in (3, 4):
        stuck = pod(1, reason="Unschedulable", message=f"0/{count} nodes are available")
        step = decide(ours, see(pod(0), stuck), NOW)
        ours, said = with_status(ours, step.status), [*said, *step.events]
    (event,) = said
    assert (event.reason, event.warning, event.once) == ("Unschedulable", True, True)
    assert "0/3 nodes are available" in event.message


def test_a_job_is_resumed_after_each_suspension() -> None:
    ours = write(job(suspend=True))
    assert ours.status.state == "Suspended"
    for attempt in range(2):
        pods = (running(0, attempt=attempt), running(1, attempt=attempt))
        ours, said = turn(with_status(job(), ours.status))
        assert (ours.status.state, said) == ("Starting", ["Resumed"])
        assert turn(ours)[1] == []
        ours, said = turn(write(ours, *(replace(each, running=False) for each in pods)), *pods)
        assert said == ["Started"]
        ours, said = turn(with_status(job(suspend=True), ours.status), *pods)
        assert said == ["Suspending"]
        ours, said = turn(ours)
        assert (ours.status.state, said) == ("Suspended", [])


def test_a_loss_that_is_no_number_makes_one_event() -> None:
    ours = write(started(running(0), running(1)), running(0), running(1), report=loss(0.5))
    step = decide(ours, see(running(0), running(1), report=loss(math.nan)), NOW)
    assert [(note.reason, note.warning) for note in step.events] == [("LossNotFinite", True)]
    told = with_status(ours, step.status)
    assert told.status.progress and told.status.progress.loss == "nan"
    assert decide(told, see(running(0), running(1), report=loss(math.inf)), NOW).events == ()
    assert decide(told, see(running(0), running(1), report=loss(0.4)), NOW).events == ()


def loss(value: float) -> Report:
    return Report(attempt=0, step=5, source="file", loss=value)


def test_a_refused_creation_makes_one_event_whatever_its_message() -> None:
    ours = started(running(0))
    for count in (1, 2):
        refused = Refused(403, "Forbidden", f"exceeded quota: used {count}")
        step = decide(ours, see(running(0), create_error=refused), NOW)
        told = [(note.reason, note.warning) for note in step.events]
        assert told == ([("CreateRefused", True)] if count == 1 else [])
        ours = with_status(ours, step.status)
    ours = write(ours, running(0), running(1))
    assert decide(ours, see(running(0), running(1)), NOW).events == ()
