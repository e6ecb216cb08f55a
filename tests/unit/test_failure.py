"""What follows from failed and lost ranks."""

import itertools
from typing import Any

import pytest

from ddpjob.api import Status
from ddpjob.plan.failure import PRIMARY_WAIT_SECONDS
from ddpjob.plan.model import Observed, PodRecord
from tests.builders import (
    NOW,
    RECREATE,
    condition,
    decide,
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


def test_a_failed_rank_raises_the_attempt_before_anything_is_deleted() -> None:
    step = decide(started(**RECREATE), see(running(0), failed(1, summary(rank=1))), NOW)
    assert step.status.attempt == 1 and step.status.state == "Restarting"
    assert step.status.restarts == 1 and step.status.budget.charged == 1
    assert not step.delete and not step.create


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


def test_the_primary_failure_beats_a_secondary_one_that_came_first() -> None:
    noise = failed(0, summary(rank=0, peer=True, time=NOW - 2, message="closed by peer"))
    cause = failed(1, summary(rank=1, time=NOW - 1, exception="ValueError"))
    failure = decide(started(), see(noise, cause), NOW).status.failure
    assert failure and (failure.rank, failure.exception) == (1, "ValueError")


def test_a_secondary_failure_waits_for_the_primary_one_but_not_for_ever() -> None:
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


def test_a_rank_that_has_left_the_others_is_the_first_cause() -> None:
    noise = summary(rank=0, peer=True, message="closed by peer", progress={"step": 8})
    ended = summary(reason="Completed", exit_code=0, progress={"step": 8})
    left = succeeded(1, message=ended)
    failure = decide(started(), see(failed(0, noise), left), NOW).status.failure
    assert failure and (failure.reason, failure.rank, failure.pod) == ("PeerEnded", 1, left.name)
    told = "ended after step 8 while rank 0, past step 8, still waited for it; all ranks must take "
    assert failure.message == f"{told}the same number of steps (drop_last, or DDP's join)"


def test_the_rank_that_left_last_is_named() -> None:
    """The others' training went on without those that had left before."""
    ends = [summary(reason="Completed", exit_code=0, time=NOW - ago) for ago in (600, 1, 300)]
    left = [succeeded(rank, message=end) for rank, end in enumerate(ends, 1)]
    pods = see(failed(0, summary(rank=0, peer=True, message="closed by peer")), *left)
    failure = decide(started(nnodes=4), pods, NOW).status.failure
    assert failure and (failure.reason, failure.rank) == ("PeerEnded", 2)


def test_a_rank_that_ended_well_is_not_blamed_for_what_may_be_another_s_own_failure() -> None:
    noise = summary(
        reason="ExitCode", rank=0, peer=True, suspect=True, message="exited with code 1"
    )
    failure = decide(started(), see(failed(0, noise), succeeded(1)), NOW).status.failure
    assert failure and failure.message == "exited with code 1; node rank 1 has ended well"


def test_a_secondary_failure_alone_names_the_ranks_that_have_not_failed() -> None:
    """A rank that is late does not fail itself."""
    noise = failed(0, summary(rank=0, peer=True, message="closed by peer"))
    pods = see(*(noise, *map(running, (1, 2, 3))), secondary_seconds=PRIMARY_WAIT_SECONDS)
    failure = decide(started(nnodes=4), pods, NOW).status.failure
    assert failure and failure.rank == 0
    told = "closed by peer; node rank 1-3 has not failed"
    assert failure.message == told


def test_secondary_failures_of_all_ranks_wait_for_no_primary_one() -> None:
    pods = [failed(rank, summary(rank=rank, peer=True)) for rank in (0, 1)]
    assert decide(started(), see(*pods), NOW).status.attempt == 1


def test_the_failure_of_a_large_group_fits_into_a_status() -> None:
    ours = write(write(job(nnodes=3000)))
    noise = summary(peer=True, message="Connection closed by peer " * 40)
    pods = [failed(r, noise) if r % 2 else running(r) for r in range(3000)]
    ours = write(ours, *[running(rank) for rank in range(3000)])
    late = decide(ours, see(*pods, secondary_seconds=PRIMARY_WAIT_SECONDS), NOW).status
    assert late.failure and len(late.failure.message) <= 1024
    assert Status.model_validate(late.to_json()) == late


EVICTED = running(1, deleting=True, disruption="Evicted")
# Of a job of two pods with eight ranks each. Rank 1 is in the other pod.
WHOLE_PODS = {
    "evicted": see(running(0), EVICTED),
    "gone": see(running(0)),
    "no agent's message": see(running(0), failed(1, exit_code=137, reason="OOMKilled")),
    "no script": see(running(0), failed(1, summary(reason="LaunchFailed", message="no script"))),
    "secondary": see(
        *(failed(0, summary(rank=3, peer=True, time=2.0)), failed(1, summary(peer=True, time=1.0))),
        secondary_seconds=PRIMARY_WAIT_SECONDS,
    ),
    "late": see(
        *(failed(0, summary(rank=3, peer=True, message="Timed out")), running(1)),
        secondary_seconds=PRIMARY_WAIT_SECONDS,
    ),
}


@pytest.mark.parametrize("seen", WHOLE_PODS.values(), ids=WHOLE_PODS)
def test_of_a_pod_with_several_ranks_none_is_blamed_for_its_end(seen: Observed) -> None:
    policy = {"rules": [{"onRanks": [1], "action": "FailJob"}]}
    ours = whole(nprocPerNode=8, failurePolicy=policy)
    step = decide(ours, seen, NOW)
    found = step.status.failure
    assert found and (found.rank, found.pod) == (None, "digits-0-1")
    assert step.status.history[-1].rank is None
    assert step.status.state != "Failed" or found.reason == "LaunchFailed", (
        "the rule is about rank 1"
    )
    assert any(event.message.startswith("pod digits-0-1: ") for event in step.events)
    assert (step.status.summary.reason or "").startswith(f"{found.reason} (digits-0-1")
    one = decide(whole(), seen, NOW).status.failure
    assert one and one.rank == 1, "the rank of its only process"


def test_of_a_pod_with_several_ranks_the_one_that_failed_is_named() -> None:
    ours = whole(nprocPerNode=8)
    step = decide(ours, see(running(0), failed(1, summary(rank=13))), NOW)
    assert step.status.failure and step.status.failure.rank == 13
    assert step.events[0].message.startswith("rank 13 (pod digits-0-1): ")


def test_a_pod_that_did_not_start_has_no_rank_that_failed() -> None:
    ours = started(nprocPerNode=8, startupDeadlineSeconds=60)
    found = decide(ours, see(running(0), pod(1, reason="Unschedulable")), NOW + 61).status.failure
    assert found and (found.reason, found.rank) == ("StartupDeadlineExceeded", None)
    assert found.pod == "digits-0-1"


@pytest.mark.parametrize("ended", [failed, succeeded])
def test_a_deeply_nested_message_stops_nothing(ended: Any) -> None:
    deep = '{"version":1,"reason":"X","a":' + "[" * 3000
    status = decide(whole(), see(ended(0, message=deep), running(1)), NOW).status
    assert status.attempt == 1 or status.succeeded_ranks == "0"


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


def test_pods_are_confirmed_before_a_missing_one_counts_as_gone() -> None:
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


def test_a_known_pod_that_is_gone_before_all_are_there_restarts_the_group() -> None:
    """Its uid is known: another pod of that name would be taken for somebody else's."""
    part = write(write(job()), pod(0, reason="Unschedulable"))
    assert part.status.nodes.pending == 1
    assert decide(part, see(confirmed=False), NOW).confirm
    step = decide(part, see(), NOW)
    assert (step.status.attempt, step.status.budget.charged) == (1, 0) and not step.create
    assert step.status.failure and step.status.failure.reason == "ResultUnknown"
    never = write(write(job()))
    assert decide(never, see(), NOW).create == (0, 1)


def test_beside_an_eviction_a_pod_without_an_agent_has_failed_because_of_it() -> None:
    ours = started(running(0), running(1))
    evicted = running(0, deleting=True, disruption="Evicted")
    status = decide(ours, see(evicted, failed(1)), NOW).status
    assert status.failure and status.failure.reason == "Evicted" and status.budget.charged == 0
    status = decide(ours, see(evicted, failed(1, summary())), NOW).status
    assert status.failure and status.failure.reason == "Exception" and status.budget.charged == 1
    status = decide(ours, see(running(0, deleting=True), failed(1)), NOW).status
    assert status.failure and status.failure.reason == "Error" and status.budget.charged == 1


def test_a_termination_message_does_not_hide_the_eviction_of_its_pod() -> None:
    saved = summary(reason="Preempted", exit_code=75, message="saved and stopped (exit code 75)")
    ours = write(started(), failed(0, saved), running(1))
    assert ours.status.failure and ours.status.failure.reason == "Preempted"
    assert (ours.status.budget.charged, ours.status.round) == (0, 1)
    ours = write(started(), failed(0, saved, disruption="Evicted"), running(1))
    assert ours.status.failure and ours.status.failure.reason == "Evicted"
    assert ours.status.failure.exit_code == 75


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ((running(0), running(1, deleting=True)), "PodDeleted"),
        ((running(0), running(1, deleting=True, disruption="Evicted")), "Evicted"),
        ((running(0),), "ResultUnknown"),
        ((running(0), failed(1, summary(rank=1))), "Exception"),
    ],
)
def test_a_lost_or_failed_pod_that_is_ignored_counts_as_finished(
    pods: tuple[PodRecord, ...], reason: str
) -> None:
    rules = [{"onRanks": [1], "onReasons": [reason], "action": "Ignore"}]
    ours = started(running(0), running(1), failurePolicy={"rules": rules})
    ours = with_status(ours, decide(ours, see(running(0), running(1)), NOW).status)
    step = decide(ours, see(*pods), NOW)
    assert (step.status.succeeded_ranks, step.status.attempt) == ("1", 0)
    assert [note.reason for note in step.events] == ["Ignored"] and not step.delete
    later = with_status(ours, step.status)
    again = decide(later, see(*pods), NOW)
    assert not again.create and not again.delete and again.status.attempt == 0
    assert decide(later, see(succeeded(0)), NOW).status.state == "Succeeded"


@pytest.mark.parametrize(
    "reason", ["NodeLost", "Evicted", "PodDeleted", "NodeRefused", "StartupDeadlineExceeded"]
)
def test_what_kubernetes_does_a_pod_cannot_claim(reason: str) -> None:
    ours = started(running(0), running(1), failurePolicy={"maxRestarts": 0})
    step = decide(ours, see(failed(0, summary(reason=reason)), running(1)), NOW)
    assert step.status.state == "Failed" and step.status.failure
    assert step.status.failure.reason == "Error" and step.status.budget.charged == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"disruption": "Preempted"}, "Preempted"),
        ({"disruption": "Evicted"}, "Evicted"),
        ({}, "PodDeleted"),
    ],
)
def test_a_deleted_pod_says_who_deleted_it(fields: dict[str, Any], reason: str) -> None:
    doomed: PodRecord = running(1, deleting=True, **fields)
    status = decide(started(), see(running(0), doomed), NOW).status
    assert status.failure and status.failure.reason == reason
    assert (status.budget.charged, status.restarts) == (0, 1)
