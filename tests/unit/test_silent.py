"""What follows from nodes that nobody hears."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.api import DDPJob, SilentNode
from ddpjob.plan.failure import PRIMARY_WAIT_SECONDS
from ddpjob.plan.model import PodRecord, RoundStatus
from ddpjob.plan.restart import AVOID_SECONDS, MAX_SILENT_NODES
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    RECREATE,
    condition,
    decide,
    deleted,
    failed,
    in_attempt,
    pod,
    reported,
    running,
    see,
    summary,
    told,
    whole,
    with_status,
    write,
)

NODES = ("node-a", "node-b")
GONE = AVOID_SECONDS + 1


def on_node(rank: int, **fields: Any) -> PodRecord:
    """A pod that runs on a node of its own."""
    return replace(running(rank, node_timeout=15, **fields), node=NODES[rank])


BOTH = (on_node(0), on_node(1))


def restarted(*silent: int, **spec: Any) -> DDPJob:
    """A job of two nodes, some of which are silent."""
    return write(whole(**spec), *BOTH, silent=frozenset(silent))


def avoiding(*names: str, **status: Any) -> DDPJob:
    """A job whose second attempt starts, and keeps off these nodes since NOW."""
    entries = [{"name": name, "time": timestamp(NOW)} for name in names]
    ours = in_attempt(1, silentNodes=entries, **status)
    return with_status(ours, ours.status.model_copy(update={"state": "Starting"}))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_silent_node_means_a_restart_that_is_not_counted(rank: int) -> None:
    assert (restarted(rank).status.attempt, restarted(rank).status.round) == (0, 1)
    ours = restarted(rank, **RECREATE)
    status, found = ours.status, ours.status.failure
    assert (status.state, status.attempt, status.round, status.restarts) == ("Restarting", 1, 0, 1)
    assert found and (found.reason, found.rank, found.node) == ("NodeSilent", rank, NODES[rank])
    assert found.message == f"nobody has heard node {NODES[rank]} for 15 s"
    assert status.budget.charged == 0 and not status.history[-1].charged
    assert condition(status, "Running") == ("False", "NodeSilent")
    assert status.silent_nodes == [SilentNode(name=NODES[rank], time=timestamp(NOW))]
    assert status.avoided_nodes == []


def test_its_pods_are_deleted_by_force_and_those_of_others_in_order() -> None:
    step = decide(restarted(1, **RECREATE), see(*BOTH), NOW)
    assert {(each.pod.rank, each.grace_seconds) for each in step.delete} == {(0, 5), (1, 0)}
    assert not step.create
    # Its kubelet has been told to end it, and is not there.
    ending = replace(BOTH[1], deleting=True)
    step = decide(restarted(1, **RECREATE), see(ending), NOW)
    assert [(each.pod.rank, each.grace_seconds) for each in step.delete] == [(1, 0)]
    forced = replace(ending, forced=True)
    assert not decide(restarted(1, **RECREATE), see(forced), NOW).delete


def test_after_the_time_to_keep_off_its_kubelet_ends_its_pods_in_order_again() -> None:
    step = decide(restarted(1, **RECREATE), see(*BOTH), NOW + GONE)
    assert {(each.pod.rank, each.grace_seconds) for each in step.delete} == {(0, 5), (1, 5)}


def test_the_job_ends_if_a_rule_says_so() -> None:
    rule = {"action": "FailJob", "onReasons": ["NodeSilent"]}
    ours = write(whole(failurePolicy={"rules": [rule]}), *BOTH, silent=frozenset((1,)))
    assert ours.status.state == "Failed"


def test_all_silent_nodes_are_kept_off_whichever_failure_is_answered() -> None:
    assert [node.name for node in restarted(0, 1).status.silent_nodes] == list(NODES)
    ours = write(whole(), failed(0, summary()), BOTH[1], silent=frozenset((1,)))
    assert ours.status.failure and ours.status.failure.reason == "Exception"
    assert [node.name for node in ours.status.silent_nodes] == ["node-b"]


def test_older_entries_end_with_their_time_and_the_latest_are_kept() -> None:
    def entries(count: int, at: float) -> list[SilentNode]:
        return [SilentNode(name=f"n{number}", time=timestamp(at)) for number in range(count)]

    ours = whole()
    for since, count in ((NOW - GONE, 0), (NOW + GONE, 0), (NOW - 5, MAX_SILENT_NODES - 1)):
        old = entries(MAX_SILENT_NODES, since)
        status = ours.status.model_copy(update={"silent_nodes": old})
        after = write(with_status(ours, status), *BOTH, silent=frozenset((1,))).status
        assert len(after.silent_nodes) == count + 1
        assert after.silent_nodes[-1].name == "node-b"


@pytest.mark.parametrize(
    "change", [{"deleting": True}, {"running": False}, {"result": "succeeded", "running": False}]
)
def test_only_a_pod_that_runs_can_be_silent(change: dict[str, Any]) -> None:
    ours = whole()
    seen = see(BOTH[0], replace(BOTH[1], **change), silent=frozenset((1,)))
    failure = decide(ours, seen, NOW).status.failure
    assert failure is None or failure.reason != "NodeSilent"


def test_a_node_that_has_finished_is_missed_by_nobody() -> None:
    ours = whole()
    seen = ours.status.model_copy(update={"succeeded_ranks": "1"})
    after = decide(with_status(ours, seen), see(*BOTH, silent=frozenset((1,))), NOW).status
    assert (after.attempt, after.failure) == (0, None)


def test_a_node_that_heard_nobody_says_so_and_the_cause_is_waited_for() -> None:
    words = summary(reason="NodeSilent", peer=True, message="node rank 0 has not been heard")
    fenced = replace(failed(1, words), node="node-b")
    ours, heard = whole(), told()
    step = decide(ours, see(BOTH[0], fenced, round_status=heard), NOW)
    assert step.only_secondary and step.requeue_after == PRIMARY_WAIT_SECONDS
    first = decide(ours, see(BOTH[0], fenced, silent=frozenset((0,))), NOW).status
    assert first.failure and (first.failure.reason, first.failure.rank) == ("NodeSilent", 0)
    assert [node.name for node in first.silent_nodes] == ["node-a"]
    # The operator hears rank 0, so the network between the two is broken.
    late = see(BOTH[0], fenced, round_status=heard, secondary_seconds=PRIMARY_WAIT_SECONDS)
    status = decide(ours, late, NOW).status
    assert (status.round, status.budget.charged) == (1, 0)
    assert status.failure and status.failure.reason == "NodeSilent"
    assert [node.name for node in status.silent_nodes] == ["node-b"]


@pytest.mark.parametrize(("heard", "timeout", "seconds"), [(None, 15, 32.5), (told(), 60, 30.0)])
def test_the_cause_is_waited_for_until_rank_0_may_count_as_silent(
    heard: RoundStatus | None, timeout: int, seconds: float
) -> None:
    """Or its node, which nobody hears, would be kept, and the node that says so kept off."""
    words = summary(reason="NodeSilent", peer=True, message="node rank 0 has not been heard")
    rank_0 = replace(BOTH[0], node_timeout=timeout)
    seen = see(rank_0, replace(failed(1, words), node="node-b"), round_status=heard)
    step = decide(whole(), replace(seen, secondary_seconds=seconds - 0.5), NOW)
    assert step.only_secondary and step.requeue_after == 0.5
    assert decide(whole(), replace(seen, secondary_seconds=seconds), NOW).status.round == 1


def test_a_rank_0_that_heard_nobody_waits_for_those_that_it_lost() -> None:
    """The node of an operator and of rank 1 is lost: rank 0 must not be kept off its own."""
    words = summary(reason="NodeSilent", peer=True, message="neither another node nor the operator")
    fenced = replace(failed(0, words), node="node-a", node_timeout=15)
    seen = replace(see(fenced, BOTH[1]), secondary_seconds=PRIMARY_WAIT_SECONDS + 11)
    step = decide(whole(), seen, NOW)
    assert step.only_secondary and step.requeue_after == 0.25
    found = decide(whole(), replace(seen, silent=frozenset((1,))), NOW).status
    assert found.failure and (found.failure.reason, found.failure.rank) == ("NodeSilent", 1)
    assert [node.name for node in found.silent_nodes] == ["node-b"]
    late = replace(seen, secondary_seconds=PRIMARY_WAIT_SECONDS + 11.25)
    status = decide(whole(), late, NOW).status
    assert [node.name for node in status.silent_nodes] == ["node-a"]  # rank 1 can be heard


def test_no_round_begins_with_a_silent_node() -> None:
    seen = see(*BOTH, round_status=told(reported(0)), silent=frozenset((1,)))
    status = decide(whole(), seen, NOW).status
    assert (status.attempt, status.round, status.own_pods.since) == (0, 1, {1: 1})


def test_pods_that_find_no_other_node_may_return_once_kubernetes_had_its_say() -> None:
    stuck = pod(1, attempt=1, reason="Unschedulable", message="0/2 nodes are available")
    seen = see(replace(running(0, attempt=1), node="node-a"), stuck)
    ours = write(avoiding("node-b"), *seen.pods)
    step = decide(ours, seen, NOW + 20)
    assert step.status.attempt == 1 and step.requeue_after == pytest.approx(AVOID_SECONDS - 20)
    after = decide(ours, seen, NOW + GONE)
    status = after.status
    assert (status.attempt, status.state, status.budget.charged) == (2, "Restarting", 0)
    assert condition(status, "Running") == ("False", "AvoidanceOver")
    assert status.silent_nodes == [] and status.history[-1].reason == "AvoidanceOver"
    (event,) = after.events
    assert event.reason == "Restarting" and "node-b" in event.message
    assert deleted(decide(with_status(ours, status), seen, NOW + GONE)) == {
        "digits-1-0",
        "digits-1-1",
    }


@pytest.mark.parametrize(
    "second",
    [
        pod(1, attempt=1, reason="ImagePullBackOff", node="node-c"),
        replace(running(1, attempt=1), node="node-c"),
    ],
)
def test_pods_that_have_nodes_stay(second: PodRecord) -> None:
    seen = see(replace(running(0, attempt=1), node="node-a"), second)
    ours = write(avoiding("node-b"), *seen.pods)
    assert decide(ours, seen, NOW + GONE).status.attempt == 1
