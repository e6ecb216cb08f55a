"""Which pods are ended or deleted, and with how much grace."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.plan.cleanup import FENCE_SECONDS, SIDECAR_SECONDS, SURVIVOR_GRACE
from ddpjob.plan.model import OVERDUE_SECONDS, PodRecord
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    RECREATE,
    STARTED,
    condition,
    decide,
    deleted,
    failed,
    long_running,
    pod,
    running,
    see,
    started,
    succeeded,
    summary,
    write,
)


@pytest.mark.parametrize(
    ("policy", "gone"),
    [("None", set()), ("Running", {"digits-0-1"}), ("All", {"digits-0-0", "digits-0-1"})],
)
def test_the_policy_says_which_pods_of_a_finished_job_go(policy: str, gone: set[str]) -> None:
    pods = (succeeded(0), running(1))
    done = write(started(*pods, cleanPodPolicy=policy, successPolicy="Rank0"), *pods)
    assert done.status.state == "Succeeded"
    assert deleted(decide(done, see(*pods), NOW)) == gone
    failing = (failed(0), running(1))
    over = started(running(0), running(1), cleanPodPolicy=policy, failurePolicy={"maxRestarts": 0})
    over = write(over, *failing)
    assert over.status.state == "Failed" and deleted(decide(over, see(*failing), NOW)) == gone


def test_the_deadline_ends_pods_by_their_kubelets_and_deletes_none_with_a_log() -> None:
    ours = long_running(activeDeadlineSeconds=300)
    pods = (running(0, started_at=STARTED), pod(1))
    late = write(ours, *pods)
    assert late.status.state == "Failed"
    assert condition(late.status, "Failed") == ("True", "DeadlineExceeded")
    assert late.status.restarts == 0 and late.status.history[-1].reason == "DeadlineExceeded"
    step = decide(late, see(*pods), NOW)
    assert [p.name for p in step.expire] == ["digits-0-0"] and deleted(step) == {"digits-0-1"}
    asked = running(0, started_at=STARTED, deadline_seconds=300)
    assert decide(late, see(asked), NOW).expire == () and not decide(late, see(asked), NOW).delete
    over = failed(0, started_at=STARTED, deadline_seconds=300)
    assert not decide(late, see(over), NOW).delete
    bound = pod(1, node="node-2")  # it may have started meanwhile
    step = decide(late, see(bound), NOW)
    assert [p.name for p in step.expire] == ["digits-0-1"] and not step.delete


def unreachable(rank: int, since: str = "2027-01-15T07:59:55Z", **fields: Any) -> PodRecord:
    """A pod whose node was given up 5 s before NOW, and which Kubernetes deletes therefore."""
    values = {"deleting": True, "disruption": "NodeLost", "unreachable_since": since, **fields}
    return running(rank, **values)


def test_pods_of_a_lost_node_are_deleted_by_force_after_the_fence() -> None:
    ours = write(started(running(0), running(1)), running(0), unreachable(1))
    assert ours.status.failure and ours.status.failure.reason == "NodeLost"
    assert (ours.status.attempt, ours.status.budget.charged) == (1, 0)
    step = decide(ours, see(running(0), unreachable(1)), NOW)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(0, SURVIVOR_GRACE)]
    assert step.requeue_after == pytest.approx(FENCE_SECONDS - 5) and not step.create
    step = decide(ours, see(unreachable(1)), NOW + 5)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(1, 0)] and not step.create
    assert decide(ours, see(), NOW + 5).create == (0, 1)


def test_a_pod_that_no_kubelet_has_taken_is_deleted_by_force_and_waited_for_no_longer() -> None:
    """On a node that is not there, or held by somebody's finalizer."""
    ours = write(started(), failed(0, summary()), pod(1))
    assert ours.status.attempt == 1
    going: dict[str, Any] = {
        "deleting": True,
        "deletion_deadline": timestamp(NOW + 5),
        "node": "nowhere",
    }
    step = decide(ours, see(failed(0), pod(1, **going)), NOW)
    assert not step.delete and not step.create and step.requeue_after == 5 + OVERDUE_SECONDS
    later = NOW + 5 + OVERDUE_SECONDS
    step = decide(ours, see(failed(0), pod(1, **going)), later)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(1, 0)] and not step.create
    held = pod(1, **{**going, "forced": True})
    step = decide(ours, see(failed(0), held), later)
    assert step.create == (0, 1) and not step.delete
    started_there = pod(1, **going, started_at=timestamp(NOW))
    step = decide(ours, see(failed(0), started_there), later + 1000)
    assert not step.create and not step.delete, "its kubelet is to say when it has ended"


def test_a_pod_that_is_only_unreachable_is_waited_for() -> None:
    quiet = unreachable(1, deleting=False, disruption="")
    step = decide(started(running(0), running(1)), see(running(0), quiet), NOW + 100)
    assert step.status.attempt == 0 and not step.delete


def test_survivors_of_an_eviction_may_save_and_those_of_a_failure_need_not() -> None:
    evicted = running(1, deleting=True, disruption="Evicted")
    ours = write(started(running(0), running(1), **RECREATE), running(0), evicted)
    step = decide(ours, see(running(0), evicted), NOW)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(0, None)]
    gone = decide(ours, see(running(0)), NOW)
    assert [d.grace_seconds for d in gone.delete] == [SURVIVOR_GRACE]
    ours = write(started(running(0), running(1)), running(0), failed(1))
    step = decide(ours, see(running(0), failed(1)), NOW)
    assert [(d.pod.rank, d.grace_seconds) for d in step.delete] == [(0, SURVIVOR_GRACE)]


@pytest.mark.parametrize(("limit", "asked"), [(3600, True), (301, True), (300, False), (1, False)])
def test_somebody_elses_limit_of_a_pod_does_not_outlive_the_jobs(limit: int, asked: bool) -> None:
    late = write(write(started(activeDeadlineSeconds=1), running(0), running(1)), now=NOW + 5)
    assert late.status.state == "Failed"
    theirs = running(0, started_at=STARTED, deadline_seconds=limit)
    assert [p.name for p in decide(late, see(theirs), NOW).expire] == ["digits-0-0"] * asked


@pytest.mark.parametrize(
    ("policy", "ended", "gone"),
    [("Running", {0, 1}, set()), ("None", set(), set()), ("All", set(), {0, 1})],
)
def test_a_sidecar_that_runs_on_is_ended_and_the_pod_is_kept_for_its_log(
    policy: str, ended: set[int], gone: set[int]
) -> None:
    left = [succeeded(rank, ended=False, node="node-1", started_at=STARTED) for rank in (0, 1)]
    done = write(started(cleanPodPolicy=policy), *left)
    step = decide(done, see(*left), NOW)
    assert {pod.rank for pod in step.expire} == ended
    assert {deletion.pod.rank for deletion in step.delete} == gone
    asked = [replace(pod, deadline_seconds=1) for pod in left]
    assert not decide(done, see(*asked), NOW).expire


def test_a_sidecar_that_does_not_end_costs_its_pod_the_log() -> None:
    left = [
        succeeded(rank, ended=False, node="node-1", started_at=STARTED, finished_at=timestamp(NOW))
        for rank in (0, 1)
    ]
    done = write(started(), *left)
    soon = decide(done, see(*left), NOW + 1)
    assert len(soon.expire) == 2 and soon.requeue_after == SIDECAR_SECONDS - 1
    late = decide(done, see(*left), NOW + SIDECAR_SECONDS)
    assert deleted(late) == {"digits-0-0", "digits-0-1"} and not late.expire


def test_a_failed_attempts_sidecar_is_ended_and_its_pod_kept_as_well() -> None:
    rest = [failed(0, ended=False, node="node-1", started_at=STARTED), running(1)]
    again = write(started(), *rest)
    assert again.status.attempt == 1
    step = decide(again, see(*rest), NOW)
    assert [pod.rank for pod in step.expire] == [0] and deleted(step) == {"digits-0-1"}
    older = write(again, failed(0, attempt=1, ended=False))
    assert older.status.failure and older.status.failure.attempt == 1
    assert "digits-0-0" in deleted(decide(older, see(rest[0]), NOW))
