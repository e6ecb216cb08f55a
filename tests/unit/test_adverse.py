"""What is nobody's ordinary day: scripts that go back, users who meddle, clocks that are wrong."""

from dataclasses import replace

import pytest

from ddpjob.api import DDPJob
from ddpjob.errors import InvalidJob, Refused
from ddpjob.plan.cleanup import FENCE_SECONDS
from ddpjob.times import timestamp
from tests.builders import NOW, decide, failed, job, pod, running, succeeded, summary, with_status
from tests.unit.test_budget import reports
from tests.unit.test_decide import condition, ranks, see, started, write

STARTED = timestamp(NOW - 300)
COMPLETED = summary(reason="Completed", exit_code=0, message="")


def live_through(ours: DDPJob, steps: tuple[int, ...], *, now: float) -> DDPJob:
    """One attempt of one node that reports these steps and fails."""
    attempt = ours.status.attempt
    alone = running(0, attempt=attempt)
    ours = write(ours, now=now)
    for _ in range(3):
        ours = write(ours, alone, now=now)
    for step in steps:
        ours = write(ours, alone, now=now, report=reports(step, attempt))
    return write(ours, failed(0, summary(), attempt=attempt), now=now)


def test_steps_that_a_script_takes_again_are_no_progress() -> None:
    policy = {"maxRestarts": 2, "backoffSeconds": {"first": 1, "cap": 1}}
    ours = job(nnodes=1, failurePolicy=policy)
    for life in range(3):
        assert ours.status.attempt == life
        ours = live_through(ours, (0, 50, 99, 0, 5 + life), now=NOW + 60 * life)
        assert ours.status.budget.highest_step == 99
    assert ours.status.state == "Failed"
    assert condition(ours.status, "Failed") == ("True", "MaxRestartsExceeded")


def test_a_step_beyond_all_still_gives_the_budget_back_after_steps_taken_again() -> None:
    ours = live_through(job(nnodes=1), (0, 99, 5), now=NOW)
    assert ours.status.budget.charged == 1
    alone = running(0, attempt=1)
    for step, charged in ((98, 1), (99, 1), (100, 0)):
        ours = write(ours, alone, now=NOW + 60, report=reports(step, 1))
        assert ours.status.budget.charged == charged, step


def test_a_group_that_was_never_whole_is_not_charged_for_waiting() -> None:
    alone = failed(0, summary(reason="Rendezvous", exit_code=None, message="no group of 2 nodes"))
    waiting = decide(started(), see(alone, pod(1, reason="Unschedulable")), NOW).status
    assert waiting.attempt == 1 and waiting.budget.charged == 0
    assert waiting.failure and waiting.failure.reason == "Rendezvous"
    whole = write(started(), running(0), running(1))
    assert decide(whole, see(alone, running(1)), NOW).status.budget.charged == 1
    rules = [{"onReasons": ["Rendezvous"], "action": "Restart", "countsTowardsMax": True}]
    asked = started(failurePolicy={"rules": rules})
    assert decide(asked, see(alone, pod(1)), NOW).status.budget.charged == 1


def test_a_pod_of_a_rank_that_the_job_has_not_is_deleted_and_counts_for_nothing() -> None:
    stray = succeeded(7)
    ours = write(started(), running(0), running(1))
    step = decide(ours, see(succeeded(0), running(1), stray), NOW)
    assert ranks(step) == {"digits-0-7"}
    going = replace(stray, deleting=True, deletion_deadline=timestamp(NOW + 5), started_at=STARTED)
    step = decide(ours, see(succeeded(0), running(1), going), NOW)
    assert step.status.state == "Running" and step.status.succeeded_ranks == "0"
    assert not step.delete and step.status.nodes.running == 1


@pytest.mark.parametrize(("limit", "asked"), [(3600, True), (301, True), (300, False), (1, False)])
def test_somebody_elses_limit_of_a_pod_does_not_outlive_the_jobs(limit: int, asked: bool) -> None:
    late = write(write(started(activeDeadlineSeconds=1), running(0), running(1)), now=NOW + 5)
    assert late.status.state == "Failed"
    theirs = running(0, started_at=STARTED, deadline_seconds=limit)
    assert [p.name for p in decide(late, see(theirs), NOW).expire] == ["digits-0-0"] * asked


@pytest.mark.parametrize("policy", ["Running", "None"])
def test_a_pod_of_a_lost_node_is_fenced_after_the_deadline_as_well(policy: str) -> None:
    ours = started(activeDeadlineSeconds=1, cleanPodPolicy=policy)
    late = write(write(ours, running(0), running(1)), now=NOW + 5)
    lost = running(1, deleting=True, disruption="NodeLost", unreachable_since=timestamp(NOW))
    step = decide(late, see(lost), NOW + 5)
    assert not step.delete and not step.expire and step.requeue_after == FENCE_SECONDS - 5
    (fenced,) = decide(late, see(lost), NOW + FENCE_SECONDS).delete
    assert fenced.grace_seconds == 0


def test_without_an_agent_a_deleted_pods_exit_code_0_proves_nothing() -> None:
    told = succeeded(0, deleting=True, disruption="Evicted", node="node-1")
    bare = started(pod(0), nnodes=1, launcher="none")
    status = decide(bare, see(told), NOW).status
    assert status.state == "Restarting" and status.failure and status.failure.reason == "Evicted"
    assert status.budget.charged == 0
    assert decide(bare, see(succeeded(0)), NOW).status.state == "Succeeded"
    assert decide(started(pod(0), nnodes=1), see(told), NOW).status.state == "Succeeded"


def test_an_eviction_does_not_undo_what_the_agent_says_is_done() -> None:
    ours = write(started(), running(0), running(1))
    done = failed(0, COMPLETED, exit_code=0, reason="Evicted", disruption="Evicted")
    assert decide(ours, see(done, running(1)), NOW).status.succeeded_ranks == "0"
    unsaid = replace(done, message="")
    assert decide(ours, see(unsaid, running(1)), NOW).status.attempt == 1


def test_who_resumes_does_not_wait_for_a_pause_from_before() -> None:
    policy = {"backoffSeconds": {"first": 300, "cap": 3600}, "maxRestarts": 9}
    ours = started(failurePolicy=policy)
    for attempt in range(2):
        ours = write(ours, failed(0, attempt=attempt), running(1, attempt=attempt))
    assert ours.status.budget.next_restart_time == timestamp(NOW + 300)
    spec = ours.spec.model_copy(update={"suspend": True})
    ours = ours.model_copy(update={"spec": spec})
    for _ in range(3):
        ours = write(ours)
    assert ours.status.state == "Suspended"
    resumed = ours.model_copy(update={"spec": spec.model_copy(update={"suspend": False})})
    resumed = write(resumed)
    assert resumed.status.state == "Starting"
    assert decide(resumed, see(), NOW).create == (0, 1)


def test_conditions_do_not_outlive_what_they_say() -> None:
    limited = started(running(0), running(1), hangTimeoutSeconds=60)
    hung = failed(1, summary(reason="Hang", exit_code=None), exit_code=76)
    ours = write(limited, running(0), hung)
    assert condition(ours.status, "Stalled") == ("True", "Hang")
    spec = ours.spec.model_copy(update={"hang_timeout_seconds": 0})
    pods = (running(0, attempt=1), running(1, attempt=1))
    ours = write(ours.model_copy(update={"spec": spec}), *pods)
    assert condition(ours.status, "Stalled") == ("False", "NotWatched")
    absent = write(job(launcher="none"))
    assert condition(absent.status, "AgentAbsent") == ("True", "LauncherNone")
    spec = absent.spec.model_copy(update={"launcher": "torchrun"})
    ours = write(absent.model_copy(update={"spec": spec}), running(0), running(1))
    assert condition(ours.status, "AgentAbsent") == ("False", "AgentRuns")


def test_a_late_word_of_rank_0_does_not_undo_its_last() -> None:
    page = {"attempt": 0, "source": "file", "step": 100}
    ours = write(started(), running(0), running(1), report=reports(97))
    ours = write(ours, succeeded(0, message=summary(progress=page)), running(1), report=reports(97))
    assert ours.status.progress and ours.status.progress.step == 100
    ours = write(ours, running(1), report=reports(97))
    assert ours.status.progress and ours.status.progress.step == 100


def test_a_restart_that_is_further_off_than_any_pause_is_a_clocks_mistake() -> None:
    ours = write(started(), failed(0), running(1))
    for seconds, waits in ((361, True), (3600, False)):
        time = timestamp(NOW + seconds)
        budget = ours.status.budget.model_copy(update={"next_restart_time": time})
        status = ours.status.model_copy(update={"budget": budget})
        step = decide(with_status(ours, status), see(), NOW)
        assert (step.requeue_after == seconds and not step.create) is waits, step


def test_an_edit_that_no_pod_can_be_made_of_is_said_at_once() -> None:
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


def test_rank_0s_last_step_is_known_when_it_has_ended_and_not_before() -> None:
    ours = write(started(), running(0), running(1), report=reports(97))
    ours = write(ours, running(0), failed(1, summary()), report=reports(97))
    assert ours.status.budget.highest_step == 97 and ours.status.history[-1].step == 97
    page = {"attempt": 0, "source": "file", "step": 120}
    left = failed(0, summary(peer=True, progress=page))
    ours = write(ours, left, failed(1, summary()))
    assert ours.status.budget.highest_step == 120 and ours.status.history[-1].step == 120
    assert ours.status.progress and ours.status.progress.step == 120
    again = write(ours, running(0, attempt=1), running(1, attempt=1), report=reports(110, 1))
    assert again.status.budget.charged == 1, "120 had been reached"
    assert decide(ours, see(left, failed(1)), NOW).status == ours.status
    counted = failed(0, summary(progress={**page, "source": "counted", "step": 999}))
    assert decide(ours, see(counted, failed(1)), NOW).status == ours.status


def test_who_resumes_has_all_nodes_again() -> None:
    rules = [{"onExitCodes": [1], "action": "Restart", "avoidNode": True}]
    ours = write(started(failurePolicy={"rules": rules}), failed(0, node="node-1"), running(1))
    assert ours.status.avoided_nodes == ["node-1"]
    ours = ours.model_copy(update={"spec": ours.spec.model_copy(update={"suspend": True})})
    for _ in range(3):
        ours = write(ours)
    assert ours.status.state == "Suspended" and ours.status.avoided_nodes == []


def test_a_refusal_is_told_once_whatever_its_words() -> None:
    ours = started(running(0))
    for count in (1, 2):
        refused = Refused(403, "Forbidden", f"exceeded quota: used {count}")
        step = decide(ours, see(running(0), create_error=refused), NOW)
        told = [(note.reason, note.warning) for note in step.events]
        assert told == ([("CreateRefused", True)] if count == 1 else [])
        ours = with_status(ours, step.status)
    ours = write(ours, running(0), running(1))
    assert decide(ours, see(running(0), running(1)), NOW).events == ()
