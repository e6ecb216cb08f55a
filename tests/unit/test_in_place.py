"""What follows from ranks that have failed while their pods run."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.api import DDPJob
from ddpjob.errors import InvalidJob
from ddpjob.plan.failure import PRIMARY_WAIT_SECONDS
from ddpjob.plan.model import NodeExit, PodRecord, RoundStatus
from tests.builders import (
    NOW,
    condition,
    decide,
    edited,
    failed,
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
    write,
)

BOTH = (running(0), running(1))


def training(**policy: Any) -> DDPJob:
    """A job both of whose nodes run, and which restarts in place, as is the default."""
    return whole(failurePolicy=policy)


def in_round(ours: DDPJob, current: int) -> DDPJob:
    """The job once all nodes run in this round."""
    ours = write(ours, *BOTH, round_status=told(round=current))
    assert (ours.status.state, ours.status.round) == ("Running", current)
    return ours


def test_a_failed_rank_begins_the_next_round_in_the_same_pods() -> None:
    before = write(training(), *BOTH, report=reports(5))
    step = decide(before, see(*BOTH, round_status=told(reported(1, traceback="in step"))), NOW)
    after, was = step.status, before.status
    assert (after.state, after.attempt, after.round, after.restarts) == ("Restarting", 0, 1, 1)
    assert condition(after, "Running") == ("False", "Exception")
    assert not (step.delete or step.create or step.prepare or step.end_round)
    assert (after.nodes, after.pods) == (was.nodes, was.pods)
    found, entry = after.failure, after.history[-1]
    assert found and (found.attempt, found.round, found.rank) == (0, 0, 1)
    assert found.traceback == "in step"
    assert (entry.exit_code, entry.message) == (1, "ValueError: boom")
    assert (entry.attempt, entry.round, entry.charged, entry.step) == (0, 0, True, 5)
    assert (after.budget.charged, after.budget.highest_step) == (1, 5)
    assert after.budget.next_restart_time is None
    (event,) = step.events
    assert (event.reason, event.warning) == ("Restarting", True) and "in place" in event.message
    assert "failure 1, 3 allowed" in event.message


def test_then_nothing_is_done_until_the_agents_say_that_all_ranks_run() -> None:
    group = told(reported(1))
    ours = write(training(), *BOTH, round_status=group)
    for seen in (None, group, replace(told(round=1), running=False)):
        step = decide(ours, see(*BOTH, round_status=seen), NOW)
        assert step.status == ours.status
        assert not (step.delete or step.create or step.prepare or step.end_round or step.confirm)
    again = write(ours, *BOTH, round_status=told(round=1))
    assert condition(again.status, "Running") == ("True", "AllNodesRunning")
    assert again.status.state == "Running"


def recreating(ours: DDPJob) -> DDPJob:
    policy = ours.spec.failure_policy.model_copy(update={"restart_strategy": "Recreate"})
    return edited(ours, failure_policy=policy)


def test_in_place_is_the_default_and_the_strategy_may_change_while_the_job_runs() -> None:
    ours = whole()
    assert decide(ours, see(*BOTH, round_status=told(reported(1))), NOW).status.round == 1
    step = decide(recreating(ours), see(*BOTH, round_status=told(reported(1))), NOW)
    assert step.end_round and step.status == ours.status


@pytest.mark.parametrize("reason", ["Exception", "ExitCode", "Signal", "Hang", "OOMKilled"])
def test_a_failure_of_processes_is_answered_in_place(reason: str) -> None:
    step = decide(training(), see(*BOTH, round_status=told(reported(0, reason=reason))), NOW)
    assert step.status.round == 1 and step.status.failure
    assert step.status.failure.reason == reason
    stalled = step.status.condition("Stalled")
    assert (stalled is not None and stalled.status == "True") == (reason == "Hang")


def doomed(**fields: Any) -> tuple[PodRecord, PodRecord]:
    return running(0), running(1, **fields)


@pytest.mark.parametrize(
    ("report", "pods"),
    [
        (reported(0, reason="LaunchFailed"), BOTH),
        (reported(0, reason="Rendezvous"), BOTH),
        (reported(0, reason="Preempted", exit_code=75), BOTH),
        (reported(0, reason="Evicted"), BOTH),  # a claim
        (NodeExit(0, 1, "no message of an agent's"), BOTH),
        (reported(0), doomed(disruption="Preempted")),
        (reported(1), doomed(disruption="Preempted")),
        (reported(0), doomed(unreachable_since="2027-01-15T07:59:00Z")),
        (reported(0), doomed(spec_hash="before the edit")),
        (reported(0), (running(0), pod(1))),
    ],
)
def test_where_new_pods_are_better_the_agents_end_theirs(
    report: NodeExit, pods: tuple[PodRecord, ...]
) -> None:
    ours = write(training(), *pods)
    step = decide(ours, see(*pods, round_status=told(report)), NOW)
    assert step.end_round and not step.events and not (step.delete or step.create)
    assert step.status == ours.status


def test_an_edit_that_no_pods_can_be_made_of_wants_new_pods_too() -> None:
    error = InvalidJob("spec.template", "must not name a host")
    group = told(reported(1))
    step = decide(training(), see(*BOTH, round_status=group, edit_error=error), NOW)
    assert step.end_round and step.status.round == 0


def test_without_a_known_hash_pods_count_as_unchanged() -> None:
    old = (running(0, spec_hash="other"), running(1, spec_hash="other"))
    group = told(reported(1))
    step = decide(
        training(), see(*old, round_status=group, spec_hash="", children_ready=False), NOW
    )
    assert step.status.round == 1


@pytest.mark.parametrize(
    "policy",
    [
        {"rules": [{"onExitCodes": [3], "action": "FailJob"}]},
        {"rules": [{"onExitCodes": [3], "action": "Ignore"}]},
        {"rules": [{"onExitCodes": [3], "action": "Restart", "avoidNode": True}]},
        {"maxRestarts": 0},
    ],
)
def test_an_end_an_ignored_rank_and_an_avoided_node_are_decided_when_the_pods_have_ended(
    policy: dict[str, Any],
) -> None:
    ours = training(**policy)
    group = told(reported(1, exit_code=3))
    step = decide(ours, see(*BOTH, round_status=group), NOW)
    assert step.end_round and not step.events and step.status == ours.status
    ended = decide(ours, see(running(0), failed(1, summary(exit_code=3)), round_status=group), NOW)
    assert not ended.end_round and ended.status != ours.status


def test_reports_of_other_rounds_and_attempts_are_ignored() -> None:
    ours = in_round(write(training(), *BOTH, round_status=told(reported(1))), 1)
    for group in (
        told(reported(1, round=1)),
        told(reported(1, round=1), round=1, attempt=1),
        told(reported(1), round=1),  # the node's message is of the round before
        told(reported(1, round=2), round=1),
        told(reported(2, round=1), round=1),
    ):
        step = decide(ours, see(*BOTH, round_status=group), NOW)
        assert step.status == ours.status and not step.end_round


@pytest.mark.parametrize(
    "ended", [failed(1, summary()), succeeded(1, message=summary(reason="Completed"))]
)
def test_what_a_kubelet_has_seen_comes_before_what_agents_say(ended: PodRecord) -> None:
    ours = training()
    alone = decide(ours, see(running(0), ended), NOW)
    step = decide(ours, see(running(0), ended, round_status=told(reported(1))), NOW)
    assert step == alone


def test_beside_a_rank_that_has_ended_well_the_group_cannot_go_on() -> None:
    ours = write(training(), succeeded(0), running(1))
    step = decide(ours, see(succeeded(0), running(1), round_status=told(reported(1))), NOW)
    assert step.end_round and step.status == ours.status


def test_a_lost_pod_is_answered_as_if_no_agent_had_said_anything() -> None:
    ours = training()
    lost = (running(0), running(1, deleting=True))
    group = told(reported(0), reported(1))
    step = decide(ours, see(*lost, round_status=group), NOW)
    alone = decide(ours, see(*lost), NOW)
    assert (step.status, step.events) == (alone.status, alone.events) and step.status.round == 1


def test_a_secondary_failure_waits_for_the_primary_one_but_not_for_ever() -> None:
    ours, noise = training(), told(reported(0, peer=True))
    step = decide(ours, see(*BOTH, round_status=noise), NOW)
    assert step.only_secondary and step.requeue_after == PRIMARY_WAIT_SECONDS
    assert not (step.end_round or step.delete or step.create) and step.status == ours.status
    both = told(reported(0, peer=True), reported(1, exit_code=3))
    found = decide(ours, see(*BOTH, round_status=both), NOW).status.failure
    assert found and (found.rank, found.exit_code) == (1, 3)
    late = see(*BOTH, round_status=noise, secondary_seconds=PRIMARY_WAIT_SECONDS)
    assert decide(ours, late, NOW).status.round == 1
    assert decide(recreating(whole()), late, NOW).end_round


def test_a_secondary_failure_of_a_pod_waits_beside_a_primary_one_that_an_agent_reports() -> None:
    pods = (failed(0, summary(peer=True)), running(1))
    step = decide(training(), see(*pods, round_status=told(reported(1))), NOW)
    assert step.only_secondary and step.end_round and step.requeue_after == PRIMARY_WAIT_SECONDS
    assert (step.status.attempt, step.status.round) == (0, 0)


def test_the_second_failure_in_a_row_without_a_step_wants_new_pods() -> None:
    ours = write(training(), *BOTH, report=reports(5), round_status=told(reported(1)))
    ours = write(ours, *BOTH, report=reports(5, round=1), round_status=told(round=1))
    assert ours.status.state == "Running"
    group = told(reported(1, round=1), round=1)
    stuck = decide(ours, see(*BOTH, round_status=group), NOW)
    assert stuck.end_round and stuck.status.round == 1
    ended = decide(ours, see(running(0), failed(1, summary(round=1))), NOW).status
    assert (ended.attempt, ended.round, ended.budget.charged) == (1, 0, 2)
    assert (ended.history[-1].attempt, ended.history[-1].round) == (0, 1)
    assert ended.failure and ended.failure.round == 1


@pytest.mark.parametrize(
    ("source", "seen", "goes_on"),
    [
        ("file", [5, 6], True),
        ("file", [3, 4], True),
        ("file", [5], False),
        ("counted", [1], True),
        ("counted", [0], False),
        ("callback", [6], True),  # it reports as a step ends
        ("callback", [0], False),
        ("file", [], False),
    ],
)
def test_after_a_step_of_this_round_the_next_failure_is_answered_in_place_at_once(
    source: str, seen: list[int], goes_on: bool
) -> None:
    ours = training()
    for step in (4, 5):
        ours = write(ours, *BOTH, report=reports(step, source=source))
    ours = in_round(write(ours, *BOTH, round_status=told(reported(1))), 1)
    for step in seen:
        ours = write(ours, *BOTH, report=reports(step, source=source, round=1))
    made = decide(ours, see(*BOTH, round_status=told(reported(1, round=1), round=1)), NOW)
    assert (made.status.round, made.end_round) == ((2, False) if goes_on else (1, True))
    assert made.status.budget.next_restart_time is None


@pytest.mark.parametrize(
    ("page", "goes_on"),
    [
        ({"source": "counted", "step": 1, "round": 1}, True),
        ({"source": "counted", "step": 0, "round": 1}, False),
        ({"source": "counted", "step": 9, "round": 0}, False),
        ({"source": "callback", "step": 9, "round": 1}, True),
        ({"source": "file", "step": 9, "round": 1}, False),  # nobody knows where it went on
        (None, False),
    ],
)
def test_a_step_that_only_the_failed_node_has_counted_is_a_step(page: Any, goes_on: bool) -> None:
    ours = in_round(write(training(), *BOTH, round_status=told(reported(1))), 1)
    seen = see(*BOTH, round_status=told(reported(1, round=1, progress=page), round=1))
    made = decide(ours, seen, NOW)
    assert (made.status.round, made.end_round) == ((2, False) if goes_on else (1, True))


def test_rank_0s_last_step_is_in_what_its_agent_says() -> None:
    page = {"attempt": 0, "round": 1, "source": "file", "step": 9}
    ours = in_round(write(training(), *BOTH, report=reports(5), round_status=told(reported(1))), 1)
    ours = write(ours, *BOTH, report=reports(8, round=1))
    group = told(reported(0, round=1, progress=page), round=1)
    status = decide(ours, see(*BOTH, report=reports(8, round=1), round_status=group), NOW).status
    assert (status.round, status.history[-1].step, status.budget.highest_step) == (2, 9, 9)
    assert status.progress and status.progress.step == 9


def test_progress_stays_with_its_round() -> None:
    report = replace(reports(5), eta_seconds=60.0)
    ours = write(training(), *BOTH, report=report)
    assert ours.status.progress and ours.status.progress.eta_seconds == 60
    ours = write(ours, *BOTH, report=report, round_status=told(reported(1)))
    old = ours.status.progress
    assert old and (old.attempt, old.round, old.step, old.eta_seconds) == (0, 0, 5, None)
    assert ours.status.current_progress is None
    assert write(ours, *BOTH, report=report).status == ours.status, "a late report of round 0"
    ours = write(ours, *BOTH, report=reports(3, round=1), round_status=told(round=1))
    new = ours.status.current_progress
    assert new and (new.round, new.step, new.first_step) == (1, 3, 3)


def test_a_failure_before_all_nodes_ran_is_answered_in_place_once() -> None:
    ours = started(*BOTH)
    waiting = replace(told(reported(0)), running=False)
    ours = write(ours, *BOTH, round_status=waiting)
    assert (ours.status.state, ours.status.round) == ("Restarting", 1)
    again = replace(told(reported(0, round=1), round=1), running=False)
    assert decide(ours, see(*BOTH, round_status=again), NOW).end_round


def test_a_pod_that_vanishes_in_a_later_round_is_missed() -> None:
    ours = write(training(), *BOTH, round_status=told(reported(1)))
    assert decide(ours, see(running(0), confirmed=False), NOW).confirm
    step = decide(ours, see(running(0)), NOW)
    assert (step.status.attempt, step.status.round) == (1, 0) and not step.create
    assert step.status.failure and step.status.failure.round == 1


def test_a_job_that_is_to_stop_is_not_started_again() -> None:
    ours = training()
    step = decide(edited(ours, suspend=True), see(*BOTH, round_status=told(reported(1))), NOW)
    assert condition(step.status, "Suspended") == ("False", "Suspending")
    assert (step.status.attempt, step.status.round) == (1, 0)


def test_a_node_that_has_left_the_others_is_the_cause_and_stays() -> None:
    """Its launcher waits for the others, so its pod runs."""
    ours = training()
    lost = reported(1, peer=True, message="closed by peer", progress={"step": 8})
    left = reported(0, exit_code=0, reason="Completed", progress={"step": 8})
    step = decide(ours, see(*BOTH, round_status=told(lost, left)), NOW)
    failure = step.status.failure
    assert failure and (failure.reason, failure.rank, failure.pod) == ("PeerEnded", 0, "digits-0-0")
    assert failure.message.startswith("ended after step 8 while rank 1, past step 8, still waited")
    assert (step.status.attempt, step.status.round) == (0, 1)
    ended = failed(1, summary(rank=1, peer=True, message="closed by peer"))
    anew = decide(ours, see(running(0), ended, round_status=told(left)), NOW).status
    assert anew.failure and (anew.failure.reason, anew.failure.rank, anew.attempt) == (
        *("PeerEnded", 0),
        1,
    )
    alone = decide(ours, see(*BOTH, round_status=told(left)), NOW)
    assert alone.status == ours.status and not alone.end_round


def test_a_round_that_the_operator_has_not_ordered_ends_the_attempt() -> None:
    """Another operator may have ordered it, so the job is read anew first."""
    ours = training()
    ahead = RoundStatus(0, 1, True)
    first = decide(ours, see(*BOTH, round_status=ahead, confirmed=False), NOW)
    assert first.confirm and first.status == ours.status
    step = decide(ours, see(*BOTH, round_status=ahead), NOW)
    failure = step.status.failure
    assert failure and (failure.reason, failure.pod) == ("ForeignOrder", "digits-0-0")
    assert (step.status.attempt, step.status.round, step.status.budget.charged) == (1, 0, 1)
    assert failure.message == "its agent is in round 1, and the operator has ordered 0"
    elsewhere = RoundStatus(7, 1, True)
    assert not decide(ours, see(*BOTH, round_status=elsewhere, confirmed=False), NOW).confirm


def test_a_hostile_report_names_no_pod_that_is_not_there() -> None:
    ours = training()
    strange = RoundStatus(0, 0, True, tuple(NodeExit(n, 1, "{") for n in (-1, 2, 2**40)))
    step = decide(ours, see(*BOTH, round_status=strange), NOW)
    assert step.status == ours.status and not step.end_round
    twice = told(reported(1), reported(1))
    assert decide(ours, see(*BOTH, round_status=twice), NOW).status.restarts == 1
    long = told(reported(1, more="x" * 10**5))
    assert decide(ours, see(*BOTH, round_status=long), NOW).end_round, "no kubelet keeps as much"
