import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob.api import DDPJob, Status, Summary
from ddpjob.errors import AlreadyExists, InvalidJob, Refused
from ddpjob.plan.cleanup import SURVIVOR_GRACE
from ddpjob.plan.decision import Decision
from ddpjob.plan.failure import PRIMARY_WAIT_SECONDS
from ddpjob.plan.observed import Observed, PodRecord
from ddpjob.plan.strays import SPARED_SECONDS, UNBEGUN_SECONDS
from tests.builders import (
    NOW,
    STRANGERS,
    decide,
    failed,
    job,
    pod,
    running,
    succeeded,
    summary,
    with_status,
)


def see(*pods: PodRecord, **fields: object) -> Observed:
    """All there is: what is not among these pods is gone."""
    values = {"children_ready": True, "spec_hash": "hash", "confirmed": True, **fields}
    return Observed(pods=pods, **values)  # type: ignore[arg-type]


def write(job: DDPJob, *pods: PodRecord, now: float = NOW, **fields: object) -> DDPJob:
    """The job once the status of its plan is stored."""
    return with_status(job, decide(job, see(*pods, **fields), now).status)


def started(*pods: PodRecord, **spec: Any) -> DDPJob:
    """A job whose pods have all been created."""
    return write(write(job(**spec)), *(pods or (pod(0), pod(1))))


def ranks(step: Decision) -> set[str]:
    return {doomed.pod.name for doomed in step.delete}


def condition(status: Status, kind: str) -> tuple[str, str] | None:
    found = status.condition(kind)
    return (found.status, found.reason) if found else None


# The way from nothing to success


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


def test_all_nodes_running_makes_the_job_running() -> None:
    status = decide(started(), see(running(0), running(1)), NOW).status
    assert status.state == "Running" and condition(status, "Running") == ("True", "AllNodesRunning")
    assert status.summary.nodes == "2/2"


def test_rank_zeros_own_pod_of_the_attempt_is_the_one_whose_agent_is_asked() -> None:
    ours, others = started(), (running(1), running(0, attempt=1), running(0, attempt=7))
    assert decide(ours, see(*others, running(0)), NOW).head == "uid-digits-0-0"
    assert decide(ours, see(*others, running(0, uid="theirs", root=STRANGERS)), NOW).head == ""
    assert decide(ours, see(*others), NOW).head == ""


def test_a_finished_rank_counts_as_running_for_the_group() -> None:
    assert decide(started(), see(succeeded(0), running(1)), NOW).status.state == "Running"


def test_success_of_all_ranks_completes_the_job() -> None:
    step = decide(started(), see(succeeded(0), succeeded(1)), NOW)
    assert step.status.state == "Succeeded" and step.drop_agent
    assert step.status.completion_time == "2027-01-15T08:00:00Z"
    assert condition(step.status, "Complete") == ("True", "AllRanksSucceeded")


def test_a_finished_rank_whose_pod_is_deleted_is_not_run_again() -> None:
    seen = write(started(), succeeded(0), running(1))
    assert seen.status.succeeded_ranks == "0"
    step = decide(seen, see(running(1)), NOW)
    assert step.create == () and step.status.attempt == 0
    assert decide(seen, see(succeeded(1)), NOW).status.state == "Succeeded"


def test_the_trainers_result_counts_while_a_sidecar_still_runs() -> None:
    done = write(started(), succeeded(0, ended=False), succeeded(1, ended=False))
    assert done.status.state == "Succeeded"
    step = decide(done, see(succeeded(0, ended=False), succeeded(1, ended=False)), NOW)
    assert ranks(step) == {"digits-0-0", "digits-0-1"}


def test_launcher_none_without_command_says_what_is_lost() -> None:
    status = decide(job(launcher="none"), see(), NOW).status
    assert condition(status, "AgentAbsent") == ("True", "LauncherNone")


def test_waiting_for_an_image_is_said_in_the_kubelets_words() -> None:
    stuck = pod(0, reason="ErrImagePull", message="not found")
    status = decide(started(), see(stuck, pod(1)), NOW).status
    assert condition(status, "Running") == ("False", "ErrImagePull")


# Failures


def test_a_failed_rank_raises_the_attempt_before_anything_is_deleted() -> None:
    step = decide(started(), see(running(0), failed(1, summary(rank=1))), NOW)
    assert step.status.attempt == 1 and step.status.state == "Restarting"
    assert step.status.restarts == 1 and step.status.budget.charged == 1
    assert not step.delete and not step.create


def test_a_restart_deletes_the_live_and_keeps_the_dead() -> None:
    pods = (running(0), failed(1, summary(rank=1)))
    step = decide(write(started(), *pods), see(*pods), NOW)
    assert [(d.pod.name, d.grace_seconds) for d in step.delete] == [("digits-0-0", SURVIVOR_GRACE)]
    assert not step.create


def test_pods_of_the_next_attempt_wait_until_the_old_ones_have_ended() -> None:
    pods = (running(0), failed(1, summary(rank=1)))
    restarting = write(started(), *pods)
    dying = running(0, deleting=True)
    assert decide(restarting, see(dying, pods[1]), NOW).create == ()
    assert decide(restarting, see(pods[1]), NOW).create == (0, 1)


def test_the_next_failure_deletes_the_dead_of_the_one_before() -> None:
    first = write(started(), running(0), failed(1, summary(rank=1)))
    second = write(first, pod(0, attempt=1), pod(1, attempt=1), failed(1))
    third = write(second, failed(0, attempt=1), running(1, attempt=1), failed(1))
    step = decide(third, see(failed(0, attempt=1), failed(1)), NOW)
    assert ranks(step) == {"digits-0-1"}


def test_many_failed_ranks_are_one_failure() -> None:
    pods = [failed(rank, summary(rank=rank)) for rank in range(8)]
    first = started(*(pod(rank) for rank in range(8)), nnodes=8)
    once = write(first, *pods)
    assert (once.status.restarts, once.status.budget.charged) == (1, 1)
    again = write(once, *pods)
    assert (again.status.restarts, again.status.budget.charged) == (1, 1)


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_the_job_fails_at_exactly_max_restarts(allowed: int) -> None:
    current = job(failurePolicy={"maxRestarts": allowed})
    for failures in itertools.count(1):
        attempt = current.status.attempt
        current = write(write(current), pod(0, attempt=attempt), pod(1, attempt=attempt))
        current = write(current, failed(0, attempt=attempt), running(1, attempt=attempt))
        if current.status.state == "Failed":
            break
        assert current.status.restarts == failures
    assert failures == allowed + 1
    assert current.status.restarts == allowed
    assert condition(current.status, "Failed") == ("True", "MaxRestartsExceeded")


def test_a_failed_job_ends_its_survivors_and_keeps_the_dead() -> None:
    over = write(started(failurePolicy={"maxRestarts": 0}), running(0), failed(1))
    step = decide(over, see(running(0), failed(1)), NOW)
    assert ranks(step) == {"digits-0-0"} and not step.create


def test_the_first_cause_beats_a_peers_noise_that_came_first() -> None:
    noise = failed(0, summary(rank=0, peer=True, time=NOW - 2, message="closed by peer"))
    cause = failed(1, summary(rank=1, time=NOW - 1, exception="ValueError"))
    failure = decide(started(), see(noise, cause), NOW).status.failure
    assert failure and (failure.rank, failure.exception) == (1, "ValueError")


def test_noise_alone_waits_for_its_cause_but_not_for_ever() -> None:
    noise = failed(0, summary(rank=0, peer=True))
    job = started()
    step = decide(job, see(noise, running(1)), NOW)
    assert (
        step.only_secondary
        and step.status.attempt == 0
        and step.requeue_after == PRIMARY_WAIT_SECONDS
    )
    late = decide(job, see(noise, running(1), secondary_seconds=PRIMARY_WAIT_SECONDS), NOW)
    assert late.status.attempt == 1


def test_noise_alone_names_those_it_may_be_about() -> None:
    """A rank that left its loop early, or is late, does not fail itself."""
    noise = failed(0, summary(rank=0, peer=True, message="closed by peer"))
    pods = see(
        noise, succeeded(1), succeeded(2), running(3), secondary_seconds=PRIMARY_WAIT_SECONDS
    )
    failure = decide(started(nnodes=4), pods, NOW).status.failure
    assert failure and failure.rank == 0
    told = "closed by peer; node rank 1-2 has ended well; node rank 3 has not failed"
    assert failure.message == told


def test_noise_from_every_rank_waits_for_nobody() -> None:
    pods = [failed(rank, summary(rank=rank, peer=True)) for rank in (0, 1)]
    assert decide(started(), see(*pods), NOW).status.attempt == 1


# Lost pods


def test_a_pod_that_is_gone_restarts_the_group_uncharged() -> None:
    status = decide(started(), see(running(0)), NOW).status
    assert status.attempt == 1 and status.restarts == 1 and status.budget.charged == 0
    assert status.failure and status.failure.reason == "ResultUnknown"


def test_what_may_not_have_been_seen_yet_is_looked_up_before_it_counts_as_gone() -> None:
    whole = write(started(), running(0), running(1))
    step = decide(whole, see(running(0), confirmed=False), NOW)
    assert step.confirm and step.status == whole.status
    leaving = with_status(job(suspend=True), write(whole).status)
    leaving = write(leaving, running(0), running(1))
    step = decide(leaving, see(confirmed=False), NOW)
    assert step.confirm and step.status == leaving.status
    suspended = write(leaving)
    assert suspended.status.state == "Suspended"
    assert not decide(suspended, see(confirmed=False), NOW).confirm, "at rest nothing is asked"


def test_a_pod_that_somebody_deletes_restarts_the_group_uncharged() -> None:
    noise = failed(0, summary(rank=0, peer=True))
    status = decide(started(), see(noise, running(1, deleting=True)), NOW).status
    assert status.failure and status.failure.reason == "PodDeleted"
    assert status.budget.charged == 0


def test_a_missing_pod_is_created_while_the_group_has_never_been_whole() -> None:
    step = decide(write(job()), see(pod(0)), NOW)
    assert step.create == (1,) and step.status.attempt == 0


# Suspend


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


def test_a_suspension_that_has_begun_is_brought_to_its_end() -> None:
    whole = write(started(running(0), running(1)), running(0), running(1))
    ours = write(with_status(job(suspend=True), whole.status), running(0), running(1))
    assert ours.status.attempt == 1 and ours.status.state == "Running"
    early = with_status(job(), ours.status)  # spec.suspend is false again
    step = decide(early, see(running(0), running(1)), NOW)
    assert ranks(step) == {"digits-0-0", "digits-0-1"} and not step.create
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


def test_ranks_that_saved_before_their_pods_were_deleted_go_as_well() -> None:
    whole = started(running(0), running(1))
    leaving = write(with_status(job(suspend=True), whole.status), running(0), running(1))
    step = decide(leaving, see(running(0, deleting=True), failed(1, exit_code=75)), NOW)
    assert ranks(step) == {"digits-0-1"} and step.status.state != "Suspended"
    assert decide(leaving, see(), NOW).status.state == "Suspended"


def test_resuming_starts_the_next_attempt() -> None:
    whole = write(started(), running(0), running(1))
    leaving = write(with_status(job(suspend=True), whole.status), running(0), running(1))
    suspended = write(leaving)
    resumed = write(with_status(job(), suspended.status))
    assert resumed.status.state == "Starting" and resumed.status.attempt == 1
    assert condition(resumed.status, "Suspended") == ("False", "Resumed")
    assert decide(resumed, see(), NOW).create == (0, 1)


# What must never happen


def test_a_finished_job_never_gets_another_pod() -> None:
    done = write(started(), succeeded(0), succeeded(1))
    for pods in ((), (succeeded(0),), (pod(5),)):
        step = decide(done, see(*pods), NOW)
        assert not step.create and not step.prepare and step.status == done.status


def test_the_words_about_a_large_group_fit_into_a_status() -> None:
    ours = write(write(job(nnodes=3000)))
    noise = summary(peer=True, message="Connection closed by peer " * 40)
    pods = [failed(r, noise) if r % 2 else running(r) for r in range(3000)]
    ours = write(ours, *[running(rank) for rank in range(3000)])
    late = decide(ours, see(*pods, secondary_seconds=PRIMARY_WAIT_SECONDS), NOW).status
    assert late.failure and len(late.failure.message) <= 1024
    assert Status.model_validate(late.to_json()) == late


def test_what_kept_pods_waiting_is_said_no_longer_than_that() -> None:
    def said(job: DDPJob) -> tuple[str, str, str]:
        found = job.status.condition("Running")
        assert found is not None
        return (found.status, found.reason, found.message)

    ours = write(write(job()), pod(0), pod(1))
    stuck = pod(1, reason="Unschedulable", message="0/4 nodes are available")
    waiting = write(ours, pod(0), stuck)
    assert said(waiting) == ("False", "Unschedulable", f"pod {stuck.name}: {stuck.message}")
    assert said(write(waiting, pod(0), pod(1))) == ("False", "Starting", "pods are being created")
    again = write(started(running(0), running(1)), failed(0), running(1))
    why = said(again)
    assert said(write(again, pod(0, attempt=1), pod(1, attempt=1))) == why
    refused = write(write(job()), pod(0), create_error=Refused(403, "Forbidden", "exceeded quota"))
    assert said(refused)[1] == "CreateRefused"
    assert said(write(refused, pod(0), pod(1)))[1] == "Starting"


def test_what_somebody_writes_into_a_finished_jobs_columns_is_mended() -> None:
    done = write(started(), succeeded(0), succeeded(1))
    garbled = done.status.model_copy(update={"summary": Summary(nodes="9/9")})
    assert decide(with_status(done, garbled), see(), NOW).status == done.status


def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    going = job()
    metadata = going.metadata.model_copy(update={"deletion_timestamp": "2027-01-15T08:00:00Z"})
    step = decide(going.model_copy(update={"metadata": metadata}), see(), NOW)
    assert step == Decision(going.status)


def test_pods_of_another_job_are_not_seen() -> None:
    foreign = running(0, owner_uid="somebody-else")
    step = decide(write(job()), see(foreign), NOW)
    assert step.create == (0, 1) and not step.delete


def test_a_view_of_the_job_older_than_its_pods_decides_nothing() -> None:
    old = started()
    ahead = pod(0, attempt=1, created_at="2027-01-15T07:59:50Z")
    assert decide(old, see(ahead, confirmed=False), NOW) == Decision(old.status, confirm=True)


def test_a_pod_of_an_attempt_that_was_never_begun_stops_nothing_but_a_start() -> None:
    ours = write(started(), running(0), running(1))
    theirs = running(0, attempt=1, uid="x", created_at="2027-01-15T07:59:50Z")
    seen = see(succeeded(0), succeeded(1), theirs, confirmed=False, strays=frozenset({"x"}))
    assert decide(ours, seen, NOW).status.state == "Succeeded"
    suspended = job(suspend=True, status=ours.status.to_json())
    assert decide(suspended, see(running(0), running(1), theirs), NOW).status.attempt == 1
    waiting = write(job())
    step = decide(waiting, see(theirs), NOW)
    assert not step.create and step.requeue_after == UNBEGUN_SECONDS - 10
    told = step.status.condition("Accepted")
    assert told and (told.status, told.reason) == ("False", "NameTaken")
    assert told.message == (
        "pod digits-1-0 is of an attempt that this job has not begun, and is deleted "
        "once it is 60 s old"
    )
    told_so = with_status(waiting, step.status)
    accepted = write(told_so, pod(0), pod(1)).status.condition("Accepted")
    assert accepted and accepted.status == "True"
    held = running(0, attempt=1, uid="x", deleting=True, forced=True)
    assert decide(waiting, see(held), NOW).create == (0, 1)


def test_pods_of_an_attempt_that_was_never_begun_go_in_the_end() -> None:
    put_back = started(running(0), running(1))
    ahead = running(0, attempt=1, created_at="2027-01-15T07:00:00Z")
    step = decide(put_back, see(running(0), running(1), ahead), NOW)
    assert [d.pod.name for d in step.delete] == ["digits-1-0"] and step.status == put_back.status
    going = running(0, attempt=1, deleting=True, deletion_deadline="2027-01-15T08:00:05Z")
    step = decide(put_back, see(running(0), running(1), going), NOW)
    assert step.status.state == "Running" and not step.delete


def test_a_pod_that_goes_before_all_are_there_is_gone_and_not_made_again_in_its_attempt() -> None:
    """Its uid is known: another pod of that name would be taken for somebody else's."""
    part = write(write(job()), pod(0, reason="Unschedulable"))
    assert part.status.nodes.pending == 1
    assert decide(part, see(confirmed=False), NOW).confirm
    step = decide(part, see(), NOW)
    assert (step.status.attempt, step.status.budget.charged) == (1, 0) and not step.create
    assert step.status.failure and step.status.failure.reason == "ResultUnknown"
    never = write(write(job()))
    assert decide(never, see(), NOW).create == (0, 1)


def test_a_stray_that_cannot_be_deleted_stops_nothing() -> None:
    ours = write(started(), running(0), running(1))
    stray = running(7, uid="theirs")
    step = decide(ours, see(succeeded(0), succeeded(1), stray), NOW)
    assert step.status.state == "Succeeded"
    step = decide(ours, see(running(0), running(1), stray), NOW)
    assert [(d.pod.uid, d.stray) for d in step.delete] == [("theirs", True)]
    spared = frozenset({"theirs"})
    step = decide(ours, see(running(0), running(1), stray, spared=spared), NOW)
    assert not step.delete and step.requeue_after == SPARED_SECONDS, "nothing else brings it back"


def test_pods_made_from_an_edited_spec_are_not_mixed() -> None:
    step = decide(write(job()), see(pod(0, spec_hash="older")), NOW)
    assert step.status.attempt == 1 and step.status.budget.charged == 0 and not step.create


# Trouble


def test_an_invalid_job_says_so_and_gets_no_pods() -> None:
    trouble = InvalidJob("spec.template.spec.hostNetwork", "is not allowed", True)
    status = decide(job(), see(children_ready=False, create_error=trouble), NOW).status
    assert condition(status, "Accepted") == ("False", "Invalid")
    assert status.state == "Pending"


def test_a_taken_name_says_so() -> None:
    trouble = AlreadyExists(409, "AlreadyExists", "Service digits exists and is not this job's")
    status = decide(job(), see(children_ready=False, create_error=trouble), NOW).status
    assert condition(status, "Accepted") == ("False", "NameTaken")


def test_a_refusal_is_quoted_and_tried_again() -> None:
    trouble = Refused(403, "Forbidden", "exceeded quota: pods=1")
    step = decide(write(job()), see(pod(0), create_error=trouble), NOW)
    found = step.status.condition("Running")
    assert found and found.reason == "CreateRefused" and "exceeded quota" in found.message
    assert step.create == (1,)


# For whatever is seen


def histories() -> st.SearchStrategy[list[list[PodRecord]]]:
    makers = st.sampled_from([pod, running, succeeded, failed])
    one = st.builds(
        lambda make, rank, attempt, deleting: make(rank, attempt=attempt, deleting=deleting),
        makers,
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
    )
    return st.lists(st.lists(one, max_size=5, unique_by=lambda p: p.name), max_size=8)


@given(histories(), st.booleans())
def test_counters_never_fall_and_terminal_is_terminal(
    history: list[list[PodRecord]], suspend: bool
) -> None:
    current = job(nnodes=3)
    for position, pods in enumerate(history):
        wanted = job(nnodes=3, suspend=suspend and position % 2 == 1)
        before = current.status
        step = decide(with_status(wanted, before), see(*pods), NOW + position)
        after = step.status
        assert after.attempt >= before.attempt and after.restarts >= before.restarts
        assert after.restarts - before.restarts <= 1 and after.attempt - before.attempt <= 1
        if before.state in ("Succeeded", "Failed"):
            assert after == before and not step.create
        if step.create:
            assert not any(p.live and p.attempt < after.attempt for p in pods)
            assert after.state in ("Starting", "Restarting")
        if after.attempt != before.attempt:
            assert not step.delete and not step.create
        current = with_status(wanted, after)


@given(histories())
def test_planning_again_on_a_stored_status_settles(history: list[list[PodRecord]]) -> None:
    for pods in history:
        current = job(nnodes=3)
        for _ in range(12):
            after = write(current, *pods)
            if after == current:
                break
            current = after
        else:
            pytest.fail(f"still changing: {current.status}")
