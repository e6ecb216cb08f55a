"""How a job is suspended and resumed."""

from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    condition,
    decide,
    deleted,
    edited,
    failed,
    job,
    pod,
    running,
    see,
    started,
    succeeded,
    summary,
    whole,
    with_status,
    write,
)

AT_ONCE = {"minNodes": 2, "replaceSeconds": 0}


def test_a_job_suspended_at_birth_gets_no_pods() -> None:
    step = decide(job(suspend=True), see(children_ready=False), NOW)
    assert step.status.state == "Suspended" and not (step.prepare or step.create)


def test_suspending_leaves_the_attempt_first_then_gives_the_full_grace() -> None:
    pods = (running(0), running(1))
    whole = write(started(), *pods)
    asked = with_status(job(suspend=True), whole.status)
    step = decide(asked, see(*pods), NOW)
    assert step.status.attempt == 1 and step.status.restarts == 0 and not step.delete
    leaving = with_status(asked, step.status)
    step = decide(leaving, see(*pods), NOW)
    assert {d.grace_seconds for d in step.delete} == {None} and len(step.delete) == 2
    assert step.status.state != "Suspended"
    assert decide(leaving, see(), NOW).status.state == "Suspended"


def test_a_training_that_ends_well_while_it_is_suspended_has_succeeded() -> None:
    pods = (running(0), running(1))
    whole = write(started(*pods), *pods)
    ours = write(with_status(job(suspend=True), whole.status), *pods)
    ours = write(ours, succeeded(0, deleting=True), running(1, deleting=True))
    assert (ours.status.state, ours.status.succeeded_ranks) == ("Running", "0")
    assert write(ours, succeeded(1, deleting=True)).status.state == "Succeeded"
    saved = write(ours, failed(1, deleting=True, exit_code=75))
    suspended = write(saved)
    assert (suspended.status.state, suspended.status.succeeded_ranks) == ("Suspended", "")
    without_agent = with_status(job(launcher="none", suspend=True), whole.status)
    leaving = write(without_agent, *pods)
    early = write(leaving, succeeded(0, deleting=True), succeeded(1, deleting=True))
    assert early.status.state == "Running", "an exit code of 0 after SIGTERM is no proof"
    assert write(early).status.state == "Suspended"


def test_so_has_a_smaller_group() -> None:
    pods = tuple(map(running, range(3)))
    ours = write(started(*pods, nnodes=3, elastic=AT_ONCE), *pods)
    lost = see(running(0, deleting=True), *pods[1:])
    ours = write(with_status(ours, decide(ours, lost, NOW).status), *pods[1:])
    asked = job(suspend=True, nnodes=3, elastic=AT_ONCE)
    ours = write(with_status(asked, ours.status), *pods[1:])
    assert (ours.status.attempt, ours.status.own_pods.size) == (1, None)
    ours = write(ours, *(succeeded(rank, deleting=True) for rank in (1, 2)))
    assert ours.status.state == "Succeeded"


def test_a_suspension_that_has_begun_is_brought_to_its_end() -> None:
    whole = write(started(running(0), running(1)), running(0), running(1))
    ours = write(with_status(job(suspend=True), whole.status), running(0), running(1))
    assert ours.status.attempt == 1 and ours.status.state == "Running"
    early = with_status(job(), ours.status)  # spec.suspend is false again
    step = decide(early, see(running(0), running(1)), NOW)
    assert deleted(step) == {"digits-0-0", "digits-0-1"} and not step.create
    suspended = write(early)
    assert suspended.status.state == "Suspended"
    resumed = write(suspended)
    assert (resumed.status.state, resumed.status.attempt) == ("Starting", 1)
    assert condition(resumed.status, "Suspended") == ("False", "Resumed")
    again = with_status(job(suspend=True), resumed.status)
    assert write(again, pod(0, attempt=1)).status.attempt == 2, "the counter first"


def test_ranks_that_exit_while_suspending_are_no_failure() -> None:
    whole = write(started(), running(0), running(1))
    leaving = write(with_status(job(suspend=True), whole.status), running(0), running(1))
    status = decide(leaving, see(failed(0, summary(reason="Preempted"))), NOW).status
    assert status.failure is None and status.budget.charged == 0


def test_pods_that_saved_before_they_were_deleted_are_deleted_as_well() -> None:
    whole = started(running(0), running(1))
    leaving = write(with_status(job(suspend=True), whole.status), running(0), running(1))
    step = decide(leaving, see(running(0, deleting=True), failed(1, exit_code=75)), NOW)
    assert deleted(step) == {"digits-0-1"} and step.status.state != "Suspended"
    assert decide(leaving, see(), NOW).status.state == "Suspended"


def test_a_suspended_job_ends_sidecars_and_late_pods() -> None:
    asked = with_status(job(suspend=True), whole().status)
    leaving = write(asked, running(0), running(1))
    step = decide(leaving, see(succeeded(0, ended=False)), NOW)
    assert [d.pod.name for d in step.delete] == ["digits-0-0"]
    suspended = write(leaving)
    assert suspended.status.state == "Suspended"
    assert [d.pod.name for d in decide(suspended, see(running(1)), NOW).delete] == ["digits-0-1"]


def test_a_resumed_job_does_not_wait_for_an_earlier_back_off() -> None:
    policy = {"backoffSeconds": {"first": 300, "cap": 3600}, "maxRestarts": 9}
    ours = started(failurePolicy=policy)
    for attempt in range(2):
        ours = write(ours, failed(0, attempt=attempt), running(1, attempt=attempt))
    assert ours.status.budget.next_restart_time == timestamp(NOW + 300)
    ours = edited(ours, suspend=True)
    for _ in range(3):
        ours = write(ours)
    assert ours.status.state == "Suspended"
    resumed = write(edited(ours, suspend=False))
    assert resumed.status.state == "Starting"
    assert decide(resumed, see(), NOW).create == (0, 1)


def test_a_resumed_job_avoids_no_node() -> None:
    rules = [{"onExitCodes": [1], "action": "Restart", "avoidNode": True}]
    ours = write(started(failurePolicy={"rules": rules}), failed(0, node="node-1"), running(1))
    assert ours.status.avoided_nodes == ["node-1"]
    ours = edited(ours, suspend=True)
    for _ in range(3):
        ours = write(ours)
    assert ours.status.state == "Suspended" and ours.status.avoided_nodes == []
