"""How an attempt's pods come to be, and what keeps them from it."""

from dataclasses import replace

import pytest

from ddpjob.api import DDPJob
from ddpjob.errors import AlreadyExists, DDPJobError, InvalidJob, Refused
from ddpjob.plan.model import PodRecord
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    RECREATE,
    STARTED,
    condition,
    decide,
    deleted,
    failed,
    job,
    pod,
    record_of,
    reported,
    running,
    see,
    started,
    told,
    whole,
    with_status,
    write,
)


def test_a_new_job_first_gets_its_service_and_config_map() -> None:
    step = decide(job(), see(children_ready=False), NOW)
    assert step.prepare and not step.create
    assert step.status.state == "Pending"


def test_starting_is_written_before_the_first_pod_is_created() -> None:
    step = decide(job(), see(), NOW)
    assert step.status.state == "Starting" and not step.create
    assert step.status.start_time == "2027-01-15T08:00:00Z"
    assert decide(with_status(job(), step.status), see(), NOW).create == (0, 1)


def test_only_missing_pods_are_created() -> None:
    assert decide(write(job(nnodes=4)), see(pod(1), pod(3)), NOW).create == (0, 2)


def test_pods_made_from_an_edited_spec_are_not_mixed() -> None:
    step = decide(write(job()), see(pod(0, spec_hash="older")), NOW)
    assert step.status.attempt == 1 and step.status.budget.charged == 0 and not step.create


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (InvalidJob("spec.template.spec.hostNetwork", "is not allowed", True), "Invalid"),
        (AlreadyExists(409, "AlreadyExists", "Service digits is not this job's"), "NameTaken"),
    ],
)
def test_a_job_whose_objects_cannot_be_made_is_not_accepted(
    trouble: DDPJobError, reason: str
) -> None:
    status = decide(job(), see(children_ready=False, create_error=trouble), NOW).status
    assert condition(status, "Accepted") == ("False", reason) and status.state == "Pending"


def test_a_refused_creation_is_quoted_and_tried_again() -> None:
    trouble = Refused(403, "Forbidden", "exceeded quota: pods=1")
    step = decide(write(job()), see(pod(0), create_error=trouble), NOW)
    found = step.status.condition("Running")
    assert found and found.reason == "CreateRefused" and "exceeded quota" in found.message
    assert step.create == (1,)


def test_an_edit_error_stands_in_the_status_at_once() -> None:
    ours = write(started(), running(0), running(1))
    wrong = InvalidJob("spec.template.spec.hostNetwork", "true is not allowed")
    (note,) = decide(ours, see(running(0), running(1), edit_error=wrong), NOW).events
    assert (note.reason, note.warning) == ("Invalid", True) and "hostNetwork" in note.message
    ours = write(ours, running(0), running(1), edit_error=wrong)
    accepted = ours.status.condition("Accepted")
    assert accepted and (accepted.status, accepted.reason) == ("False", "Invalid")
    assert "hostNetwork" in accepted.message and "before this edit" in accepted.message
    assert ours.status.state == "Running"
    ours = write(ours, running(0), running(1))
    assert condition(ours.status, "Accepted") == ("True", "Accepted")


def test_a_restart_time_further_off_than_any_back_off_is_not_waited_for() -> None:
    ours = write(started(), failed(0), running(1))
    for seconds, waits in ((361, True), (3600, False)):
        time = timestamp(NOW + seconds)
        budget = ours.status.budget.model_copy(update={"next_restart_time": time})
        status = ours.status.model_copy(update={"budget": budget})
        step = decide(with_status(ours, status), see(), NOW)
        assert (step.requeue_after == seconds and not step.create) is waits, step


def waiting_job(*pods: PodRecord) -> DDPJob:
    ours = write(job(startupDeadlineSeconds=60, nnodes=2))
    return write(ours, *pods)


def test_a_group_that_is_scheduled_in_part_is_released_and_tried_again_later() -> None:
    words = "0/3 nodes are available: 3 Insufficient cpu."
    stuck = pod(1, reason="Unschedulable", message=words)
    ours = waiting_job(running(0), stuck)
    step = decide(ours, see(running(0), stuck), NOW + 59)
    assert step.status.attempt == 0 and step.requeue_after == pytest.approx(1)
    late = write(ours, running(0), stuck, now=NOW + 60)
    found = late.status.failure
    assert found and found.reason == "StartupDeadlineExceeded" and words in found.message
    assert (late.status.attempt, late.status.budget.charged) == (1, 0)
    step = decide(late, see(running(0), stuck), NOW + 60)
    assert deleted(step) == {"digits-0-0", "digits-0-1"} and not step.create
    assert decide(late, see(), NOW + 69).requeue_after == pytest.approx(1)
    assert decide(late, see(), NOW + 70).create == (0, 1)


def test_the_time_to_start_begins_when_the_old_pods_are_gone() -> None:
    ours = started(running(0), running(1), startupDeadlineSeconds=60, **RECREATE)
    leaving = (running(0), running(1, deleting=True, disruption="Evicted"))
    ours = write(ours, *leaving)
    assert ours.status.attempt == 1
    assert decide(ours, see(*leaving), NOW + 200).status.attempt == 1
    step = decide(ours, see(), NOW + 201)
    assert step.create == (0, 1) and step.status.attempt == 1
    first, last = timestamp(NOW + 201), timestamp(NOW + 202)
    stuck = (
        pod(0, attempt=1, created_at=last),
        pod(1, attempt=1, reason="Unschedulable", created_at=first),
    )
    assert decide(ours, see(*stuck), NOW + 261).status.attempt == 1
    assert decide(ours, see(*stuck), NOW + 262).status.attempt == 2


def test_the_time_to_start_is_not_spent_while_no_operator_is_there() -> None:
    ours = write(started(running(0), running(1), startupDeadlineSeconds=60), failed(0), running(1))
    back = decide(ours, see(), NOW + 7200)
    assert back.create == (0, 1) and back.status.attempt == 1 and back.status.failure
    assert back.status.failure.reason == "Error", "the first cause is kept"
    refused = Refused(403, "Forbidden", "exceeded quota")
    early = decide(ours, see(create_error=refused, refused_seconds=59), NOW + 7200)
    assert early.status.attempt == 1
    late = decide(ours, see(create_error=refused, refused_seconds=60), NOW + 7200).status
    assert late.attempt == 2 and late.failure and "exceeded quota" in late.failure.message


def test_a_pod_without_its_volumes_or_network_has_not_begun_its_pull() -> None:
    ours = started(running(0), pod(1), startupDeadlineSeconds=60)
    waiting = pod(1, node="node-2", reason="ContainerCreating")
    assert decide(ours, see(running(0), waiting), NOW + 600).status.attempt == 0, "a pull goes on"
    late = decide(ours, see(running(0), replace(waiting, without_sandbox=True)), NOW + 600).status
    assert late.failure and late.failure.reason == "StartupDeadlineExceeded"
    assert late.failure.pod == "digits-0-1" and "volumes or its network" in late.failure.message
    for value, bare in (("False", True), ("True", False)):
        said = {"type": "PodReadyToStartContainers", "status": value}
        assert record_of({"phase": "Pending", "conditions": [said]}).without_sandbox is bare
    assert not record_of({"phase": "Pending"}).without_sandbox


def test_a_quota_that_lets_only_some_pods_in_releases_them() -> None:
    ours = waiting_job(running(0))
    assert decide(ours, see(running(0)), NOW + 60).status.attempt == 1


def test_a_pod_that_no_scheduler_has_seen_is_named_at_the_deadline() -> None:
    unseen = pod(1, reason="Unscheduled", message="scheduler mine has not said a word about it")
    late = write(waiting_job(running(0), unseen), running(0), unseen, now=NOW + 60)
    failure = late.status.failure
    assert failure and failure.reason == "StartupDeadlineExceeded"
    assert failure.pod == "digits-0-1"
    assert "scheduler mine has not said a word about it" in failure.message


def test_a_restart_in_place_waits_for_no_pods() -> None:
    old = (running(0, created_at=STARTED), running(1, created_at=STARTED))
    ours = write(whole(startupDeadlineSeconds=60), *old, round_status=told(reported(1)))
    assert (ours.status.state, ours.status.round) == ("Restarting", 1)
    for pods in (old, (old[0], replace(old[1], without_sandbox=True))):
        for later in (1, 3600):
            step = decide(ours, see(*pods), NOW + later)
            assert (step.status.attempt, step.requeue_after) == (0, None)
            assert not (step.create or step.delete or step.prepare)
