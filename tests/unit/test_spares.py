"""Spares: when they are made, who gets a rank, and what never becomes of them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ddpjob import names
from ddpjob.api import DDPJob, SilentNode
from ddpjob.errors import InvalidJob
from ddpjob.plan.model import Decision, Order, PodRecord
from ddpjob.plan.own import absent, name_of, print_of, sort_pods, with_spares
from ddpjob.pods.allowlist import Policy
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    decide,
    deleted,
    edited,
    job,
    made_pod,
    pod,
    running,
    see,
    told,
    trainer,
    whole,
    with_status,
)

BOTH = (running(0), running(1))
GOING = running(1, deleting=True, disruption="Evicted")
SPARE = replace(running(-1), node="node-9")


def seen(ours: DDPJob, *pods: PodRecord, **fields: Any) -> Decision:
    """What is decided where these are the pods; the operator has made all spares itself."""
    made = {each.rank: each.uid_print for each in pods if each.rank < 0}
    return decide(ours, see(*pods, made=made, **fields), NOW)


def with_spare(*others: PodRecord, **spec: Any) -> DDPJob:
    """A job that runs, with a spare."""
    ours = whole(**{"spares": 1, **spec})
    ours = with_status(ours, seen(ours, *BOTH).status)
    return with_status(ours, seen(ours, *BOTH, SPARE, *others).status)


def test_a_spare_is_made_once_all_nodes_run_and_the_status_has_its_number() -> None:
    ours = job(nnodes=2, spares=1, status={"state": "Starting", "nodes": {"desired": 2}})
    assert not seen(ours, running(0), pod(1)).status.own_pods.spares
    ours = whole(spares=1)
    step = seen(with_status(ours, with_spares(ours.status, [])), *BOTH)
    assert [s.number for s in step.status.own_pods.spares] == [1] and not step.create
    ours = with_status(ours, step.status)
    assert seen(ours, *BOTH).create == (-1,)
    assert seen(ours, *BOTH, children_ready=False).prepare
    assert name_of(ours, ours.status, -1) == "digits-0-s1"
    # Nor is it made again before its time, whatever has become of the last one.
    step = seen(ours, *BOTH, spares_wait=20.0)
    assert not step.create and step.requeue_after == 20.0


def test_a_spare_that_finds_no_other_node_than_a_silent_one_is_made_anew_in_a_minute() -> None:
    stuck = replace(pod(-1), node="", reason="Unschedulable")
    ours = with_status(whole(spares=1), seen(whole(spares=1), *BOTH).status)
    silent = [SilentNode(name="node-9", time=timestamp(NOW - 20))]
    ours = with_status(ours, ours.status.model_copy(update={"silent_nodes": silent}))
    ours = with_status(ours, seen(ours, *BOTH, stuck).status)
    step = seen(ours, *BOTH, stuck)
    assert not step.create and step.requeue_after == 40.0
    silent = [SilentNode(name="node-9", time=timestamp(NOW - 61))]
    ours = with_status(ours, ours.status.model_copy(update={"silent_nodes": silent}))
    assert not seen(ours, *BOTH, replace(stuck, reason="")).create, "it may come yet"
    step = seen(ours, *BOTH, stuck)
    assert [s.number for s in step.status.own_pods.spares] == [2]
    assert not step.status.silent_nodes, "the next one may run there"
    ours = with_status(ours, step.status)
    step = seen(ours, *BOTH, stuck)
    assert step.create == (-2,) and [d.pod.uid for d in step.delete] == [stuck.uid]
    # One that finds no node at all waits for one.
    again = replace(stuck, rank=-2, name="digits-0-s2", uid="2", uid_print=print_of("2"))
    ours = with_status(ours, seen(ours, *BOTH, again).status)
    assert seen(ours, *BOTH, again).is_idle(ours.status)


def test_its_uid_enters_the_status_and_the_columns_show_it() -> None:
    ours = with_spare()
    (spare,) = ours.status.own_pods.spares
    assert spare.uid == print_of("uid-digits-0-s1") and spare.rank is None
    step = seen(ours, *BOTH, SPARE)
    assert step.is_idle(ours.status)
    assert (step.status.nodes.spares, step.status.summary.nodes) == (1, "2/2+1")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_pods_rank_goes_to_the_spare_and_no_pod_is_made(rank: int) -> None:
    pods = [running(0), running(1)]
    pods[rank] = replace(pods[rank], deleting=True, disruption="Evicted")
    ours = with_spare()
    step = seen(ours, *pods, SPARE)
    assert "spare digits-0-s1 gets node rank" in step.events[0].message
    assert (step.status.attempt, step.status.round, step.status.nodes.running) == (0, 1, 2)
    ours = with_status(ours, step.status)
    assert name_of(ours, ours.status, rank) == "digits-0-s1"
    step = seen(ours, *pods, SPARE)  # the old one has not ended
    assert not step.create and (step.order.round, step.order.made) == (0, (0, 1))
    assert step.order.pods == f"{rank}:{SPARE.uid_print}"
    left = (pods[1 - rank], SPARE)
    step = seen(ours, *left)
    assert step.order.round == 1 and not step.create and not step.delete
    assert (step.head == SPARE.uid) == (rank == 0)
    assert step.order.placed(SPARE).rank == rank
    ours = with_status(ours, seen(ours, *left, round_status=told(round=1)).status)
    assert ours.status.state == "Running" and not absent(ours.status, left)
    # Another one comes behind it.
    step = seen(ours, *left)
    numbers = [(each.number, each.rank) for each in step.status.own_pods.spares]
    assert numbers == [(1, rank), (2, None)]


def test_the_spares_that_are_too_few_go_to_the_lowest_ranks_and_the_others_are_made() -> None:
    three = (running(0), running(1), running(2))
    ours = whole(nnodes=3, spares=1)
    ours = with_status(ours, seen(ours, *three).status)
    ours = with_status(ours, seen(ours, *three, SPARE).status)
    lost = (running(0), GOING, running(2, deleting=True))
    step = seen(ours, *lost, SPARE)
    assert "gets node rank 1, the pod of node rank 2 is replaced" in step.events[0].message
    ours = with_status(ours, step.status)
    assert seen(ours, *lost, SPARE).create == (2,)


def test_a_promoted_spare_is_lost_as_any_pod() -> None:
    ours = with_spare()
    ours = with_status(ours, seen(ours, running(0), GOING, SPARE).status)
    going = replace(SPARE, deleting=True)
    step = seen(ours, running(0), going)
    assert (step.status.round, step.status.own_pods.since) == (2, {1: 2})
    ours = with_status(ours, step.status)
    assert sort_pods(ours, ours.status, (running(0), going)).older[0].name == "digits-0-s1"
    step = seen(ours, running(0), going, ordered=1)
    assert (step.order.round, step.order.held) == (1, True)  # its ranks may live
    # A round that was never ordered, since ranks of the one before lived, is not ordered either.
    assert seen(ours, running(0), going, ordered=0).order.round == 0
    assert seen(ours, running(0), going, round_status=told(round=1)).order.round == 1
    assert name_of(ours, ours.status, 1) == "digits-0-1-r2"


@pytest.mark.parametrize(
    ("spare", "spec", "fields"),
    [
        pytest.param(pod(-1), {}, {}, id="not there yet"),
        pytest.param(replace(SPARE, deleting=True), {}, {}, id="is going"),
        pytest.param(replace(SPARE, spec_hash="old"), {}, {}, id="edited since"),
        pytest.param(
            replace(SPARE, node="node-1"), {}, {"silent": frozenset({1})}, id="on the silent node"
        ),
    ],
)
def test_who_cannot_take_a_rank(
    spare: PodRecord, spec: dict[str, Any], fields: dict[str, Any]
) -> None:
    ours = with_spare(**spec)
    lost = replace(running(1), node_timeout=15) if fields else GOING
    step = seen(ours, running(0), lost, spare, **fields)
    assert step.status.round == 1 and name_of(ours, step.status, 1) == "digits-0-1-r1"


def test_after_an_edit_no_spare_is_made_or_taken_and_all_pods_are_made_anew() -> None:
    ours = with_spare()
    first, second, spare, going = (
        replace(each, spec_hash="before the edit") for each in (*BOTH, SPARE, GOING)
    )
    step = seen(ours, first, second, spare)
    assert step.status.own_pods.spares == ours.status.own_pods.spares and not step.create
    assert seen(ours, first, going, SPARE).status.attempt == 1


def test_a_spare_that_waited_in_vain_has_done_no_work() -> None:
    ours = with_spare(nnodes=2)
    dead = replace(SPARE, running=False, result="succeeded")
    suspended = edited(ours, suspend=True)
    step = seen(suspended, *BOTH, dead)
    assert step.status.succeeded_ranks == "" and step.status.attempt == 1


def test_a_spare_that_is_not_seen_is_looked_for() -> None:
    ours = with_spare()
    assert seen(ours, *BOTH, confirmed=False).confirm
    assert not seen(ours, *BOTH).confirm


def test_rank_0_is_not_for_a_spare_that_is_made_in_another_way() -> None:
    ours = with_spare(master={"image": "trainer:first"})
    step = seen(ours, running(0, deleting=True), running(1), SPARE)
    assert name_of(ours, step.status, 0) == "digits-0-0-r1"


def test_nothing_befalls_the_group_where_a_spare_ends_or_is_somebody_elses() -> None:
    ours = with_spare()
    dead = replace(SPARE, running=False, result="failed")
    step = seen(ours, *BOTH, dead)
    assert (step.status.state, step.status.round) == ("Running", 0)
    assert [s.number for s in step.status.own_pods.spares] == [2]  # numbers only grow
    ours = with_status(ours, step.status)
    step = seen(ours, *BOTH, dead)
    assert step.create == (-2,)
    forged = replace(SPARE, uid="forged", uid_print=print_of("forged"))
    for stray in (forged, replace(running(-7), created_at=None)):
        step = decide(ours, see(*BOTH, stray), NOW)
        assert deleted(step) == {stray.name}


def test_a_spare_has_no_rank_in_its_environment_and_keeps_off_the_others_nodes() -> None:
    ours = job(nnodes=2, spares=1, sparePriorityClassName="low")
    body, other = made_pod(ours, -1), made_pod(ours, 1)
    assert body["metadata"]["name"] == body["spec"]["hostname"] == "digits-0-s1"
    assert body["metadata"]["labels"][names.RANK_LABEL] == "s1"
    env = {each["name"]: each.get("value") for each in trainer(body)["env"]}
    ranks = ("RANK", "PET_NODE_RANK", "DDPJOB_NODE_RANK")
    assert {env[name] for name in ranks} == {names.OWN_RANK}
    (wish,) = body["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert wish["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert body["spec"]["priorityClassName"] == "low"
    for own in (body, other):  # the rest is the same
        del own["spec"]["hostname"], own["metadata"]["name"], own["metadata"]["labels"]
        own["spec"].pop("affinity", None)
        own["spec"].pop("priorityClassName", None)
    assert json.dumps(body).replace(names.OWN_RANK, "1") == json.dumps(other)


def test_its_priority_class_must_be_allowed() -> None:
    ours = job(nnodes=2, spares=1, sparePriorityClassName="low")
    with pytest.raises(InvalidJob, match=r"spec\.sparePriorityClassName") as caught:
        made_pod(ours, -1, Policy(priority_class_names=["high"]))
    assert caught.value.value == "low"


def test_spares_need_agents_that_wait() -> None:
    with pytest.raises(InvalidJob, match=r"spec\.spares"):
        job(nnodes=2, spares=1, launcher="none", args=None)
    ours = whole(spares=1, failurePolicy={"restartStrategy": "Recreate"})
    step = seen(ours, *BOTH)
    assert step.is_idle(ours.status) and not step.status.own_pods.spares
    assert step.status.summary.nodes == "2/2"


def test_an_order_that_names_nobody_places_nobody() -> None:
    assert Order().placed(SPARE).rank == -1
    assert Order(pods="1:", made=(0, 1)).placed(SPARE).rank == -1
