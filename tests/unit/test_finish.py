"""How a job ends, and what happens to it afterwards."""

import pytest

from ddpjob.plan.budget import active_seconds
from tests.builders import (
    NOW,
    condition,
    decide,
    deleted,
    edited,
    failed,
    long_running,
    pod,
    reported,
    running,
    see,
    started,
    succeeded,
    told,
    whole,
    write,
)


def test_success_of_all_ranks_completes_the_job() -> None:
    step = decide(started(), see(succeeded(0), succeeded(1)), NOW)
    assert step.status.state == "Succeeded"
    assert step.status.completion_time == "2027-01-15T08:00:00Z"
    assert condition(step.status, "Complete") == ("True", "AllRanksSucceeded")


def test_a_finished_rank_whose_pod_is_deleted_is_not_run_again() -> None:
    seen = write(started(), succeeded(0), running(1))
    assert seen.status.succeeded_ranks == "0"
    step = decide(seen, see(running(1)), NOW)
    assert step.create == () and step.status.attempt == 0
    assert decide(seen, see(succeeded(1)), NOW).status.state == "Succeeded"


def test_a_finished_job_never_gets_another_pod() -> None:
    done = write(started(), succeeded(0), succeeded(1))
    for pods in ((), (succeeded(0),), (pod(5),)):
        step = decide(done, see(*pods), NOW)
        assert not step.create and not step.prepare and step.status == done.status


def test_with_rank0_the_job_succeeds_with_its_first_node() -> None:
    ours = started(running(0), running(1), successPolicy="Rank0")
    assert decide(ours, see(running(0), succeeded(1)), NOW).status.state == "Running"
    done = write(ours, succeeded(0), running(1))
    assert done.status.state == "Succeeded"
    assert condition(done.status, "Complete") == ("True", "Rank0Succeeded")
    assert done.status.nodes.running == 0
    assert deleted(decide(done, see(succeeded(0), running(1)), NOW)) == {"digits-0-1"}


def test_a_finished_job_is_deleted_when_its_time_is_over() -> None:
    done = write(started(ttlSecondsAfterFinished=60), succeeded(0), succeeded(1))
    step = decide(done, see(succeeded(0), succeeded(1)), NOW + 20)
    assert not step.delete_job and step.requeue_after == pytest.approx(40)
    assert decide(done, see(), NOW + 60).delete_job
    assert not decide(write(started(), succeeded(0), succeeded(1)), see(), NOW + 1e9).delete_job


def test_a_decision_before_the_deadline_is_requeued_to_it() -> None:
    step = decide(long_running(activeDeadlineSeconds=310), see(running(0), running(1)), NOW)
    assert step.status.state == "Running" and step.requeue_after == pytest.approx(10)


def test_suspended_time_does_not_count() -> None:
    ours = long_running(activeDeadlineSeconds=400, suspend=True)
    suspended = write(write(ours, running(0), running(1)))
    assert suspended.status.state == "Suspended"
    assert active_seconds(suspended.status, NOW + 5000) == 300
    again = write(edited(suspended, suspend=False), now=NOW + 5000)
    assert again.status.state == "Starting" and active_seconds(again.status, NOW + 5050) == 350
    pods = (running(0, attempt=1), running(1, attempt=1))
    assert write(again, *pods, now=NOW + 5099).status.state == "Running"
    assert write(again, *pods, now=NOW + 5100).status.state == "Failed"


def test_a_failed_job_has_no_running_nodes() -> None:
    over = decide(whole(failurePolicy={"maxRestarts": 0}), see(running(0), failed(1)), NOW).status
    assert over.state == "Failed"
    assert (over.nodes.running, over.nodes.failed, over.summary.nodes) == (0, 1, "0/2")


def test_the_deadline_of_a_job_counts_on_while_it_restarts_in_place() -> None:
    pods = (running(0), running(1))
    ours = write(long_running(activeDeadlineSeconds=400), *pods, round_status=told(reported(1)))
    assert (ours.status.state, ours.status.round) == ("Restarting", 1)
    assert decide(ours, see(*pods), NOW + 99).requeue_after == 1
    late = decide(ours, see(*pods), NOW + 100).status
    assert condition(late, "Failed") == ("True", "DeadlineExceeded")
    assert (late.history[-1].attempt, late.history[-1].round) == (0, 1)


def test_a_job_that_ends_well_before_its_round_is_known_to_run_has_succeeded() -> None:
    ours = write(whole(), running(0), running(1), round_status=told(reported(1)))
    done = decide(ours, see(succeeded(0), succeeded(1)), NOW).status
    assert (done.state, done.round) == ("Succeeded", 1)
