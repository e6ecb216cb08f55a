"""What becomes of the others where one pod is lost: they stay, and only that one is made anew."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob import api, names
from ddpjob.api import DDPJob
from ddpjob.errors import InvalidJob
from ddpjob.plan.model import Decision, PodRecord
from ddpjob.plan.own import print_of, proofs, sort_pods
from tests.builders import (
    NOW,
    decide,
    deleted,
    edited,
    failed,
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

BOTH = (running(0), running(1))
GOING = running(1, deleting=True, disruption="Evicted")
NEW = running(1, since=1)


def lost(ours: DDPJob, *pods: PodRecord, **fields: Any) -> Decision:
    """What is decided where these are the pods."""
    return decide(ours, see(*pods, **fields), NOW)


def replaced(ours: DDPJob | None = None) -> DDPJob:
    """A job whose node 1 is lost while it runs, and is to be replaced."""
    return write(ours or whole(), running(0), GOING)


def test_the_others_stay_in_the_attempts_next_round() -> None:
    before = whole()
    step = lost(before, running(0), GOING)
    after = step.status
    assert (after.state, after.attempt, after.round, after.restarts) == ("Restarting", 0, 1, 1)
    assert after.budget.charged == 0 and after.failure and after.failure.reason == "Evicted"
    assert not (step.create or step.delete)
    own = after.own_pods
    assert own.since == {1: 1} and own.latest == 1
    assert own.uids == before.status.own_pods.uids[:6] + "......"
    assert own.roots and own.roots != before.status.own_pods.roots
    assert (after.nodes.running, after.nodes.desired) == (1, 2)
    (event,) = step.events
    assert "the pod of node rank 1 is replaced, in round 1" in event.message


def test_one_pod_is_created_beside_the_one_that_ends_and_the_round_is_ordered_after_that() -> None:
    ours = replaced()
    step = lost(ours, running(0), GOING)
    assert step.create == (1,) and not step.delete
    assert (step.order.round, step.order.pods) == (0, "1:")
    ours = write(ours, running(0), GOING, pod(1, since=1))
    step = lost(ours, running(0), pod(1, since=1))
    assert not step.create and step.order.round == 1
    assert step.order.pods == f"1:{print_of('uid-digits-0-1-r1')}"
    assert step.order.members == frozenset()  # rank 0 is where it was


def test_all_pods_are_made_anew_where_no_kubelet_ends_the_one_that_is_replaced() -> None:
    """Its ranks may run on, beside the round that would begin once it is deleted by force."""
    new, alone = pod(1, since=1), replace(GOING, unreachable_since="2027-01-15T07:59:55Z")
    ours = write(replaced(), running(0), GOING, new)
    assert lost(ours, running(0), alone, new).status.attempt == 0, "it may have been ordered"
    step = lost(ours, running(0), alone, new, round_status=told(round=0))
    assert (step.status.attempt, step.status.round, step.status.history[-1].reason) == (
        *(1, 0),
        "NodeLost",
    )
    assert step.status.budget.charged == 0 and "may run on" in step.events[0].message
    dead = replace(told(round=0), dead=frozenset({alone.uid_print}))
    begun = lost(ours, running(0), alone, new, round_status=dead)
    assert begun.status.attempt == 0 and begun.order.round == 1


def test_the_round_need_not_wait_for_a_pod_whose_agent_says_that_nothing_of_it_lives() -> None:
    ours = write(replaced(), running(0), GOING, pod(1, since=1))
    for dead, number in ((frozenset[str](), 0), (frozenset({GOING.uid_print}), 1)):
        said = replace(told(round=0), dead=dead)
        assert (
            lost(ours, running(0), GOING, pod(1, since=1), round_status=said).order.round == number
        )


def test_it_runs_once_the_group_says_so() -> None:
    ours = write(replaced(), running(0), NEW, round_status=told(round=0))
    assert ours.status.state == "Restarting"
    ours = write(ours, running(0), NEW, round_status=told(round=1))
    assert (ours.status.state, ours.status.round) == ("Running", 1)
    assert ours.status.own_pods.since == {1: 1}


def test_rank_0_is_lost_as_any_other_and_all_are_told_where_it_is() -> None:
    going = running(0, deleting=True)
    ours = write(whole(), going, running(1))
    assert ours.status.own_pods.since == {0: 1}
    step = lost(ours, running(0, since=1), running(1))
    assert step.head == "uid-digits-0-0-r1"
    assert step.order.members == {"uid-digits-0-0-r1", "uid-digits-0-1"}


def test_two_that_are_lost_one_after_the_other_are_both_replaced() -> None:
    ours = write(whole(nnodes=3), running(0), running(1), running(2))
    ours = write(ours, running(0), GOING, running(2))
    ours = write(ours, running(0), GOING, running(2))
    waiting = pod(1, since=1)
    ours = write(ours, running(0), waiting, running(2, deleting=True))
    assert (ours.status.round, ours.status.own_pods.since) == (2, {1: 1, 2: 2})
    step = decide(ours, see(running(0), waiting), NOW + 60)  # after the pause of a second one
    assert step.create == (2,)
    # The first one is lost before it was ever there.
    ours = write(ours, running(0), replace(waiting, deleting=True), pod(2, since=2))
    assert (ours.status.round, ours.status.own_pods.since) == (3, {1: 3, 2: 2})


def test_a_silent_nodes_pod_is_deleted_by_force_and_its_node_kept_off() -> None:
    pods = (running(0), replace(running(1), node="node-2", node_timeout=20))
    ours = write(whole(), *pods, silent=frozenset({1}))
    assert ours.status.round == 1 and [n.name for n in ours.status.silent_nodes] == ["node-2"]
    step = lost(ours, *pods)
    assert deleted(step) == {"digits-0-1"} and step.delete[0].grace_seconds == 0
    assert step.order.round == 0


def test_a_pod_that_has_ended_with_its_ranks_is_replaced_and_kept_for_its_log() -> None:
    dead = failed(1, summary(reason="OOMKilled", exit_code=137))
    ours = write(whole(), running(0), dead)
    assert (ours.status.attempt, ours.status.round, ours.status.budget.charged) == (0, 1, 1)
    step = lost(ours, running(0), dead)
    assert step.create == (1,) and not step.delete
    # Another one's end is the last failure by now.
    ours = write(ours, running(0, deleting=True), dead, NEW)
    assert deleted(lost(ours, dead, NEW)) == {"digits-0-1"}


def recreating(ours: DDPJob) -> DDPJob:
    policy = ours.spec.failure_policy.model_copy(update={"restart_strategy": "Recreate"})
    return edited(ours, failure_policy=policy)


FORCED = replace(GOING, forced=True)
CRASH = failed(1, summary())


@pytest.mark.parametrize(
    ("ours", "pods", "fields"),
    [
        pytest.param(recreating(whole()), (running(0), GOING), {}, id="Recreate"),
        pytest.param(whole(), (running(0),), {}, id="nobody saw it end"),
        pytest.param(whole(), (running(0), FORCED), {}, id="deleted by force"),
        pytest.param(
            whole(),
            (running(0), replace(GOING, unreachable_since="2027-01-15T07:59:00Z")),
            {},
            id="its node is lost, and nothing fences it",
        ),
        pytest.param(
            whole(), (running(0, spec_hash="old"), GOING), {}, id="edited since, so all are old"
        ),
        pytest.param(
            whole(),
            (running(0), GOING),
            {"edit_error": InvalidJob("spec.template", "must not name a host")},
            id="edited so that no pod can be made",
        ),
        pytest.param(
            whole(),
            (running(0, deleting=True), GOING),
            {},
            id="none stays",
        ),
        pytest.param(
            whole(
                failurePolicy={
                    "rules": [{"onReasons": ["Evicted"], "action": "Restart", "avoidNode": True}]
                }
            ),
            (running(0), GOING),
            {},
            id="a rule avoids its node",
        ),
        pytest.param(
            whole(), (running(0), failed(1, summary(reason="Rendezvous"))), {}, id="doubt"
        ),
    ],
)
def test_all_pods_are_made_anew_where_there_is_any_doubt(
    ours: DDPJob, pods: tuple[PodRecord, ...], fields: dict[str, Any]
) -> None:
    after = lost(ours, *pods, **fields).status
    assert (after.attempt, after.round) == (1, 0)
    assert not after.own_pods.replacements


def test_a_second_failure_of_processes_in_a_row_wants_new_pods() -> None:
    ours = write(whole(), running(0), CRASH)
    assert ours.status.round == 1
    ours = write(ours, running(0), NEW, round_status=told(round=1))
    again = failed(1, summary(round=1), since=1)
    assert lost(ours, running(0), again).status.attempt == 1


def test_nobody_waits_through_a_long_pause_for_rank_0s_pod() -> None:
    budget = whole().status.budget.model_copy(update={"consecutive_restarts": 4})
    ours = with_status(whole(), whole().status.model_copy(update={"budget": budget}))
    assert lost(ours, running(0), GOING).status.attempt == 0
    assert lost(ours, running(0, deleting=True), running(1)).status.attempt == 1


def test_a_failure_of_the_round_before_wants_new_pods() -> None:
    """Pods that could not go on say what they have said before."""
    ours = replaced()
    late = failed(0, summary())
    assert lost(ours, late, NEW).status.attempt == 1


def test_a_name_that_would_be_too_long_wants_new_pods() -> None:
    for rounds, attempt in ((0, 0), (10**8, 1)):
        ours = whole()
        status = ours.status.model_copy(update={"round": rounds})
        name = "d" * 52

        def named(record: PodRecord, name: str = name) -> PodRecord:
            return replace(record, name=record.name.replace("digits", name), job=name)

        ours = with_status(
            ours.model_copy(update={"metadata": ours.metadata.model_copy(update={"name": name})}),
            status,
        )
        assert lost(ours, named(running(0)), named(GOING)).status.attempt == attempt


def test_copies_of_the_first_pods_proof_are_of_no_use_for_its_successor() -> None:
    ours, key = replaced(), see().key
    first = proofs(key, ours.uid, 0, 0, 2)
    forged = replace(pod(1, since=1), uid="forged", uid_print=print_of("forged"), root=first.root)
    sorted_pods = sort_pods(ours, ours.status, (running(0), forged))
    assert [p.uid for p in sorted_pods.strays] == ["forged"]
    # Nor is the first pod its own successor, or one of a round that was never begun.
    late = replace(pod(1, since=2), root=first.root)
    sorted_pods = sort_pods(ours, ours.status, (running(0), running(1), late))
    assert [p.since for p in sorted_pods.ahead] == [2]
    assert [p.name for p in sorted_pods.older] == ["digits-0-1"]


def test_the_status_has_room_for_so_many() -> None:
    ours = whole()
    entries = [api.Replacements(round=n, ranks="0") for n in range(1, api.MAX_REPLACEMENTS + 1)]
    table = ours.status.own_pods.model_copy(update={"replacements": entries})
    status = ours.status.model_copy(update={"pods": [table], "round": len(entries)})
    pods = (running(0, since=len(entries)), running(1, deleting=True))
    assert lost(with_status(ours, status), *pods).status.attempt == 1


def test_names_of_pods_are_read_as_they_are_written() -> None:
    for place in ((0, 0, 0), (3, 12, 0), (3, 12, 7)):
        name = names.pod_name("digits-0", *place)
        assert names.parse_pod_name("digits-0", name) == place
        assert names.parse_pod_name("digits", name) is None and names.place(name) == place
    for name in ("digits-0", "digits-0-1-r0", "digits-0-1-r", "digits-00-1", "digits-0-1-2"):
        assert names.parse_pod_name("digits", name) is None


def test_a_failing_rank_beside_a_lost_pod_changes_nothing_of_that() -> None:
    step = lost(whole(), running(0), GOING, round_status=told(reported(0, peer="a rank is gone")))
    assert (step.status.attempt, step.status.round) == (0, 1)
    assert step.status.failure and step.status.failure.reason == "Evicted"
