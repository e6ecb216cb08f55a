"""Sizes: a group that need not be whole goes on with fewer nodes, and takes in those that come."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ddpjob import names
from ddpjob.api import DDPJob, Moved
from ddpjob.errors import InvalidJob
from ddpjob.plan.model import Decision, PodRecord
from ddpjob.plan.own import absent, name_of, print_of, sort_pods
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    RECREATE,
    decide,
    deleted,
    job,
    made_pod,
    pod,
    reported,
    running,
    see,
    started,
    told,
    trainer,
    with_status,
    write,
)

ALL = (running(0), running(1), running(2))
AT_ONCE = {"minNodes": 2, "replaceSeconds": 0, "growSeconds": 60}
SPARE = replace(running(-1), node="node-9")


def whole(*pods: PodRecord, **elastic: Any) -> DDPJob:
    """A job of three nodes that runs with these pods."""
    pods = pods or ALL
    ours = started(*pods, nnodes=len(pods), elastic={**AT_ONCE, **elastic})
    return write(ours, *pods)


def without(*ranks: int, pods: tuple[PodRecord, ...] = ALL) -> list[PodRecord]:
    """The pods, of which those of these ranks are being deleted."""
    return [replace(p, deleting=p.rank in ranks, disruption="") for p in pods]


def lose(ours: DDPJob, *ranks: int, **fields: Any) -> Decision:
    """What is decided where the pods of these ranks are lost."""
    return decide(ours, see(*without(*ranks), **fields), NOW)


def shrunk(rank: int = 1, **elastic: Any) -> DDPJob:
    """A job that has lost a node of three, and trains with the others."""
    ours = with_status(whole(**elastic), lose(whole(**elastic), rank).status)
    left = [p for p in ALL if p.rank != rank]
    return write(ours, *left, round_status=told(round=1))


def with_spare(ours: DDPJob) -> tuple[DDPJob, list[PodRecord]]:
    """The same, once a spare has come for the missing node."""
    left = [running(0), running(2), SPARE]
    for pods in (left[:2], left):
        made = {-1: SPARE.uid_print}
        observed = see(*pods, round_status=told(round=1), made=made)
        ours = with_status(ours, decide(ours, observed, NOW).status)
    return ours, left


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_pod_of_the_highest_rank_gets_the_lost_one_and_none_is_made(rank: int) -> None:
    before = whole()
    step = lose(before, rank)
    after, own = step.status, step.status.own_pods
    assert (after.state, after.attempt, after.round, after.restarts) == ("Restarting", 0, 1, 1)
    assert (after.nodes.desired, after.world_size, own.size) == (2, 2, 2)
    assert own.moved == ([] if rank == 2 else [Moved(rank=rank, of=2)])
    assert not step.create
    assert ("pod digits-0-2 gets node rank" in step.events[0].message) == (rank < 2)
    ours = with_status(before, after)
    assert {name_of(ours, after, r) for r in (0, 1)} == {p.name for p in ALL if p.rank != rank}
    # What is told of the next round, once no rank of the lost pod lives.
    step = decide(ours, see(*without(rank)), NOW)
    assert not (step.create or deleted(step))
    moved = "" if rank == 2 else f"{rank}:{ALL[2].uid_print}"
    assert (step.order.round, step.order.size, step.order.pods) == (0, 2, moved)
    left = [p for p in ALL if p.rank != rank]
    step = decide(ours, see(*left), NOW)
    assert step.order.round == 1 and not step.create
    assert step.head == ("uid-digits-0-2" if rank == 0 else "uid-digits-0-0")
    assert bool(step.order.members) == (rank == 0)
    placed = {step.order.placed(p).rank for p in left}
    assert placed == {0, 1}
    # And then they train.
    ours = with_status(ours, step.status)
    step = decide(ours, see(*left, round_status=told(round=1)), NOW)
    condition = step.status.condition("Running")
    assert step.status.state == "Running" and condition
    assert condition.message == "2 of 2 nodes run; the job wants 3"
    assert step.status.summary.nodes == "2/2+0"
    assert not absent(step.status, left)


def test_all_that_are_left_have_to_end_well() -> None:
    ours = shrunk()
    ends: dict[str, Any] = {"result": "succeeded", "ended": True, "exit_code": 0, "running": False}
    left = [replace(running(rank), **ends) for rank in (0, 2)]
    step = decide(ours, see(*left), NOW)
    assert step.status.state == "Succeeded"
    complete = step.status.condition("Complete")
    assert complete and complete.reason == "AllRanksSucceeded"


def test_a_pod_can_move_again_and_be_replaced() -> None:
    four = (*ALL, running(3))
    ours = whole(*four)
    ours = with_status(ours, decide(ours, see(*without(0, pods=four)), NOW).status)
    left = list(four[1:])
    assert name_of(ours, ours.status, 0) == "digits-0-3"
    ours = write(ours, *left, round_status=told(round=1))
    step = decide(ours, see(*(replace(p, deleting=p.rank == 2) for p in left)), NOW)
    ours = with_status(ours, step.status)
    assert [name_of(ours, ours.status, rank) for rank in (0, 1)] == ["digits-0-3", "digits-0-1"]
    assert ours.status.own_pods.size == 2
    left = [running(1), running(3)]
    ours = write(ours, *left, round_status=told(round=2))
    # Two are the least, so now a new pod comes, and the others wait for it.
    step = decide(ours, see(running(1), replace(running(3), deleting=True)), NOW)
    ours = with_status(ours, step.status)
    assert name_of(ours, ours.status, 0) == "digits-0-0-r3" and not ours.status.own_pods.moved


@pytest.mark.parametrize(("step", "size"), [(1, 3), (2, 2)])
def test_sizes_have_steps_and_who_is_left_over_ends(step: int, size: int) -> None:
    four = (*ALL, running(3))
    ours = whole(*four, step=step)
    found = decide(ours, see(*without(1, pods=four)), NOW)
    assert found.status.own_pods.size == size
    ours = with_status(ours, found.status)
    left = [running(0), running(2), running(3)]
    found = decide(ours, see(*left), NOW)
    assert deleted(found) == ({"digits-0-2"} if size == 2 else set())
    assert found.order.round == (0 if size == 2 else 1)


def test_a_lost_pod_is_replaced_first_if_the_user_waits_for_it() -> None:
    ours = whole(replaceSeconds=30)
    ours = with_status(ours, lose(ours, 1).status)
    assert ours.status.own_pods.size is None
    left = [running(0), running(2)]
    step = decide(ours, see(*left), NOW)
    assert step.create == (1,)
    ours, new = with_status(ours, step.status), pod(1, since=1)
    step = decide(ours, see(*left, new), NOW + 29)
    assert not step.create and step.requeue_after and step.requeue_after <= 1.1
    seen = see(*left, new)  # perhaps late, and another operator has given a spare this rank
    late = decide(ours, replace(seen, confirmed=False), NOW + 31)
    assert late.confirm and late.status == ours.status
    step = decide(ours, seen, NOW + 31)
    assert (step.status.round, step.status.own_pods.size) == (2, 2)
    last = step.status.history[-1]
    assert last.reason == "GroupResized" and "goes on with 2 nodes of 3" in (last.message or "")
    assert "the pod of node rank 1 does not run yet" in step.events[0].message
    ours = with_status(ours, step.status)
    assert deleted(decide(ours, see(*left, new), NOW + 31)) == {new.name}


def test_an_attempt_begins_with_those_that_are_there() -> None:
    ours = started(*(pod(rank) for rank in range(3)), nnodes=3, elastic=AT_ONCE)
    here = [running(0), pod(1), running(2)]
    assert decide(ours, see(*here), NOW + 29).status.own_pods.size is None
    step = decide(ours, see(*here), NOW + 31)
    assert (step.status.round, step.status.own_pods.size) == (1, 2)
    few = [running(0), pod(1), pod(2)]
    assert decide(ours, see(*few), NOW + 31).status.round == 0


def test_a_rank_0_of_its_own_kind_is_waited_for() -> None:
    ours = job(nnodes=3, elastic=AT_ONCE, master={"image": "other:1"})
    ours = write(write(write(ours), *map(pod, range(3))), *ALL)
    step = decide(ours, see(*without(0)), NOW)
    assert step.status.own_pods.size is None and step.status.own_pods.since == {0: 1}
    assert lose(ours, 2).status.own_pods.size == 2


def test_a_spare_comes_for_the_missing_node_and_is_taken_in_after_a_time() -> None:
    ours, left = with_spare(shrunk())
    assert ours.status.summary.nodes == "2/2+1"
    step = decide(ours, see(*left, round_status=told(round=1)), NOW + 50)
    assert step.status.round == 1 and step.requeue_after == 10
    step = decide(ours, see(*left, round_status=told(round=1)), NOW + 60)
    own = step.status.own_pods
    assert (step.status.round, own.size, own.since) == (2, None, {1: 1, 2: 2})
    assert step.status.history[-1].reason == "GroupResized" and step.status.failure is not None
    assert (step.status.nodes.desired, step.status.world_size) == (3, 3)
    ours = with_status(ours, step.status)
    found = decide(ours, see(*left), NOW + 60)
    assert (found.order.round, found.order.size) == (2, 3)
    prints = {1: "uid-digits-0-2", 2: "uid-digits-0-s1"}
    assert found.order.pods == ",".join(f"{r}:{print_of(uid)}" for r, uid in prints.items())
    assert len(sort_pods(ours, ours.status, left).current) == 3


def test_it_is_not_taken_in_where_a_rank_has_ended_well_or_the_pods_are_old() -> None:
    ours, left = with_spare(shrunk())
    group = told(round=1)
    assert decide(ours, see(*left, round_status=group, spec_hash="new"), NOW + 60).status.round == 1
    left[1] = replace(left[1], result="succeeded", ended=True, exit_code=0, running=False)
    assert decide(ours, see(*left, round_status=group), NOW + 60).status.round == 1


def test_with_a_checkpoint_it_waits_for_the_next_save() -> None:
    volume: dict[str, Any] = {"volume": {"emptyDir": {}}}
    ours, left = with_spare(shrunk())
    spec = job(nnodes=3, elastic=AT_ONCE, checkpoint=volume).spec
    ours = ours.model_copy(update={"spec": spec})
    for seconds, number in ((float("inf"), 1), (4.0, 1), (0.1, 2)):
        observed = see(*left, round_status=told(round=1), saved_seconds=seconds)
        assert decide(ours, observed, NOW + 60).status.round == number


def test_a_round_that_begins_anyway_takes_it_in() -> None:
    ours, left = with_spare(shrunk())
    observed = see(
        *left,
        round_status=told(
            reported(1, round=1, progress={"step": 9, "source": "counted", "round": 1}), round=1
        ),
    )
    step = decide(ours, observed, NOW + 1)
    assert (step.status.round, step.status.own_pods.size) == (2, None)
    assert "with 3 nodes: spare digits-0-s1 gets node rank 2" in step.events[0].message


def test_what_a_pod_is_told_has_marks_that_its_agent_replaces() -> None:
    ours = job(nnodes=3, nprocPerNode=2, elastic=AT_ONCE)
    env = {each["name"]: each.get("value") for each in trainer(made_pod(ours, 1))["env"]}
    assert env["DDPJOB_NODE_RANK"] == "1" and env["DDPJOB_NNODES"] == "3"
    assert {env[name] for name in ("RANK", "PET_NODE_RANK")} == {names.OWN_RANK}
    assert {env[name] for name in ("WORLD_SIZE", "PET_NNODES")} == {names.OWN_NNODES}
    assert env["DDPJOB_WORLD_SIZE"] == names.OWN_WORLD_SIZE
    assert env["DDPJOB_MAX_WORLD_SIZE"] == "6"
    assert json.dumps(made_pod(ours, -1)).count(names.OWN_RANK) == 3
    args = trainer(made_pod(job(launcher="accelerate", nnodes=3, elastic=AT_ONCE)))["args"]
    assert args[args.index("--num_machines") + 1] == names.OWN_NNODES


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"nnodes": 2, "elastic": {"minNodes": 3}}, "spec.elastic.minNodes"),
        ({"launcher": "none", "elastic": {"minNodes": 1}}, "spec.elastic"),
    ],
)
def test_what_cannot_be_is_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidJob, match=field):
        job(**spec)


def test_it_does_nothing_where_all_pods_are_made_anew() -> None:
    ours = job(nnodes=3, elastic=AT_ONCE, **RECREATE)
    assert (ours.spec.least_nodes, ours.spec.largest_group(2)) == (3, 0)
    ours = write(write(write(ours), *map(pod, range(3))), *ALL)
    assert lose(ours, 1).status.attempt == 1


def test_what_was_made_anew_for_a_rank_that_is_no_more_ends_too() -> None:
    ours = whole(replaceSeconds=30)
    ours = with_status(ours, lose(ours, 2).status)
    new = running(2, since=1)
    ours = write(ours, running(0), running(1), new, round_status=told(round=1))
    ours = ours.model_copy(update={"spec": job(nnodes=3, elastic=AT_ONCE).spec})
    going = [running(0), running(1), replace(new, deleting=True)]
    ours = with_status(ours, decide(ours, see(*going), NOW).status)
    assert (ours.status.round, ours.status.own_pods.size) == (2, 2)
    sorted_pods = sort_pods(ours, ours.status, going)
    assert [pod.name for pod in sorted_pods.older] == [new.name] and not sorted_pods.ahead
    assert decide(ours, see(*going, ordered=1), NOW).order.held


def test_nobody_is_left_out_whose_ranks_may_run_on_unseen() -> None:
    four = (*ALL, running(3))
    ours = whole(*four, replaceSeconds=30)
    ours = with_status(ours, decide(ours, see(*without(3, pods=four)), NOW).status)
    unseen = replace(running(2), unreachable_since=timestamp(NOW))
    for pod_2, size in ((running(2), 3), (unseen, None)):
        step = decide(ours, see(running(0), running(1), pod_2, pod(3, since=1)), NOW + 31)
        assert step.status.own_pods.size == size


def test_it_is_not_taken_in_at_the_last_save() -> None:
    ours, left = with_spare(shrunk())
    ended = replace(reported(1, round=1), exit_code=0)
    for group, number in ((told(round=1), 2), (told(ended, round=1), 1)):
        assert decide(ours, see(*left, round_status=group), NOW + 60).status.round == number
