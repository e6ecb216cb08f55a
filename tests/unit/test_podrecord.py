"""What is kept of a pod of the API server."""

from typing import Any

import pytest

from ddpjob.plan.podrecord import pod_record
from ddpjob.plan.termination import failure
from tests.builders import IDENTITY, STARTED, UID, record_of


@pytest.mark.parametrize(
    ("conditions", "reason", "disruption", "unreachable_since"),
    [
        ([], "", "", None),
        ([("DisruptionTarget", "True", "PreemptionByScheduler")], "", "Preempted", None),
        ([("DisruptionTarget", "True", "EvictionByEvictionAPI")], "", "Evicted", None),
        ([("DisruptionTarget", "True", "TerminationByKubelet")], "Evicted", "Evicted", None),
        ([("DisruptionTarget", "True", "DeletionByTaintManager")], "", "NodeLost", None),
        ([("DisruptionTarget", "False", "PreemptionByScheduler")], "", "", None),
        ([], "Evicted", "Evicted", None),
        ([], "OutOfcpu", "NodeRefused", None),
        ([], "UnexpectedAdmissionError", "NodeRefused", None),
        ([("Ready", "False", ""), ("ContainersReady", "True", "")], "", "", STARTED),
        ([("Ready", "False", ""), ("ContainersReady", "False", "")], "", "", None),
        ([("Ready", "True", ""), ("ContainersReady", "True", "")], "", "", None),
    ],
)
def test_what_kubernetes_did_to_a_pod_is_read_from_its_conditions(
    conditions: list[tuple[str, str, str]], reason: str, disruption: str, unreachable_since: str
) -> None:
    status = {
        "reason": reason,
        "conditions": [
            {"type": kind, "status": value, "reason": why, "lastTransitionTime": STARTED}
            for kind, value, why in conditions
        ],
    }
    record = record_of(status)
    assert (record.disruption, record.unreachable_since) == (disruption, unreachable_since)


def test_a_lost_pod_that_was_never_ready_is_fenced_once_its_kubelet_is_overdue() -> None:
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    containers = {"type": "ContainersReady", "status": "False"}
    status = {"phase": "Pending", "conditions": [lost, ready, containers]}
    assert record_of(status).unreachable_since is None
    late = record_of(status, deletionTimestamp="2027-01-15T08:00:00Z")
    assert late.unreachable_since == "2027-01-15T08:00:20Z" and late.disruption == "NodeLost"
    by_hand = {"phase": "Pending", "conditions": [ready, containers]}
    assert record_of(by_hand, deletionTimestamp="2027-01-15T08:00:00Z").unreachable_since is None


def test_a_pod_that_waits_at_a_readiness_gate_is_on_no_lost_node() -> None:
    gate = {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}
    ready = {"type": "ContainersReady", "status": "True"}
    conditions = [{**gate, "lastTransitionTime": STARTED}, ready]
    assert record_of({"conditions": conditions}).unreachable_since is None


def test_an_init_container_that_cannot_be_pulled_keeps_its_pod_from_starting() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    status = {
        "phase": "Pending",
        "initContainerStatuses": [
            {"name": "first", "state": {"terminated": {"exitCode": 0}}},
            {"name": "fetch", "state": {"waiting": waiting}},
        ],
        "containerStatuses": [
            {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }
    record = record_of(status)
    assert (record.reason, record.message) == ("ImagePullBackOff", "not found")


@pytest.mark.parametrize(("reason", "result"), [("", "succeeded"), ("Evicted", "failed")])
def test_the_failure_of_a_sidecar_is_not_the_trainers(reason: str, result: str) -> None:
    ends = {"trainer": 0, "sidecar": 1}
    containers = [
        {"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in ends.items()
    ]
    status = {"phase": "Failed", "reason": reason, "containerStatuses": containers}
    assert record_of(status).result == result


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Pending"}, (False, None)),
        ({"phase": "Failed", "reason": "Evicted"}, (False, "failed")),
        ({"phase": "Running", "containerStatuses": [{"name": "other"}]}, (False, None)),
        (
            {
                "phase": "Running",
                "containerStatuses": [{"name": "trainer", "state": {"running": {}}}],
            },
            (True, None),
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "sidecar", "state": {"running": {}}},
                    {"name": "trainer", "state": {"terminated": {"exitCode": 0}}},
                ],
            },
            (False, "succeeded"),
        ),
    ],
)
def test_a_pods_result_is_its_trainers(
    status: dict[str, object], expected: tuple[bool, str | None]
) -> None:
    record = pod_record({"metadata": IDENTITY, "status": status})
    assert record and (record.running, record.result) == expected
    assert record.owner_uid == UID


@pytest.mark.parametrize(
    ("phase", "states", "ended"),
    [
        ("Pending", [], False),
        ("Running", ["terminated"], True),
        ("Running", ["terminated", "running"], False),
        ("Running", ["terminated", "terminated"], True),
        ("Failed", [], True),
    ],
)
def test_a_pod_has_ended_when_no_container_runs_whatever_its_phase(
    phase: str, states: list[str], ended: bool
) -> None:
    names = ["trainer", "sidecar"]
    containers = [
        {"name": name, "state": {state: {}}} for name, state in zip(names, states, strict=False)
    ]
    status = {"phase": phase, "containerStatuses": containers}
    assert record_of(status).ended is ended


def test_a_failed_init_container_is_named() -> None:
    ended = {"exitCode": 7, "message": "no route\nto host\n", "finishedAt": "2027-01-15T08:00:00Z"}
    status = {
        "phase": "Failed",
        "initContainerStatuses": [
            {"name": "ready", "state": {"terminated": {"exitCode": 0}}},
            {"name": "fetch", "state": {"terminated": ended}},
        ],
        "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInit"}}}],
    }
    record = record_of(status)
    assert record.result == "failed"
    found = failure(record)
    assert (found.reason, found.exit_code) == ("InitContainerFailed", 7)
    assert found.message == "init container fetch ended with exit code 7: to host"
    assert failure(record_of({**status, "reason": "Evicted"})).reason == "Evicted"


def test_a_pod_is_known_by_its_owner_and_its_name_whatever_its_labels() -> None:
    record = pod_record({"metadata": {**IDENTITY, "labels": {"ddpjob.dev/rank": "7"}}})
    assert record and (record.job, record.attempt, record.rank) == ("digits", 0, 1)
    owner = IDENTITY["ownerReferences"][0]
    other: dict[str, Any] = {"ownerReferences": [{**owner, "name": "digits-0"}]}
    names = ("digits-debug", "digits-0-٣", "digits-0-01", "digits-0-1-2", "other-0-1", "digits")
    strangers: list[dict[str, Any]] = [
        *({"name": name} for name in (*names, "digits-0-1\n", "digits--1-1")),
        *({"ownerReferences": owners} for owners in ([], [{**owner, "controller": False}])),
        {"ownerReferences": [{**owner, "kind": "ReplicaSet"}]},
        other,
    ]
    for changes in strangers:
        assert pod_record({"metadata": {**IDENTITY, **changes}}) is None, changes
    nested = pod_record({"metadata": {**IDENTITY, **other, "name": "digits-0-1-2"}})
    assert nested and (nested.attempt, nested.rank) == (1, 2)


WAITING = {"waiting": {"reason": "ContainerCreating"}}
RUNNING = {"running": {"startedAt": STARTED}}
DONE = {"terminated": {"exitCode": 0}}


def starting(
    states: dict[str, dict[str, Any]], *, sandbox: str = "True", sidecars: tuple[str, ...] = ()
) -> tuple[str, str]:
    """Reason and message of a pending pod, whose init containers have names like `init-1`."""
    spec: dict[str, list[Any]] = {"initContainers": [], "containers": []}
    status: dict[str, list[Any]] = {"initContainerStatuses": [], "containerStatuses": []}
    for name, state in states.items():
        kind = "initContainer" if name.startswith("init") else "container"
        image = {"name": name, "image": f"reg/{name}"}
        always = {"restartPolicy": "Always"} if name in sidecars else {}
        spec[f"{kind}s"].append({**image, **always})
        found = {**image, "state": state, "started": state is RUNNING and name in sidecars}
        status[f"{kind}Statuses"].insert(0, found)  # a kubelet sorts them in its own way
    ready = {"type": "PodReadyToStartContainers", "status": sandbox}
    conditions = [ready] if sandbox else []
    body = {"phase": "Pending", "startTime": STARTED, "conditions": conditions, **status}
    record = pod_record({"metadata": IDENTITY, "spec": spec, "status": body})
    assert record is not None and not record.running and record.result is None
    return record.reason, record.message


def test_a_pod_with_volumes_and_network_pulls_the_image_of_its_next_container() -> None:
    assert starting({"trainer": WAITING}) == ("Pulling", "image reg/trainer")
    mesh = {"mesh": WAITING, "trainer": WAITING}
    assert starting(mesh) == ("Pulling", "image reg/mesh")
    assert starting({**mesh, "mesh": RUNNING}) == ("Pulling", "image reg/trainer")
    fetch = {"init-1": WAITING, "init-2": WAITING, "trainer": WAITING}
    assert starting(fetch) == ("Pulling", "image reg/init-1")
    assert starting({**fetch, "init-1": DONE}) == ("Pulling", "image reg/init-2")
    assert starting({**fetch, "init-1": DONE, "init-2": DONE}) == ("Pulling", "image reg/trainer")


def test_an_init_container_that_runs_is_named_unless_it_is_a_sidecar_that_has_started() -> None:
    fetch = {"init-1": RUNNING, "trainer": WAITING}
    assert starting(fetch) == ("PodInitializing", "init container init-1 runs")
    assert starting(fetch, sidecars=("init-1",)) == ("Pulling", "image reg/trainer")


@pytest.mark.parametrize("sandbox", ["False", "Unknown", ""])
def test_without_a_sandbox_any_of_three_may_be_missing(sandbox: str) -> None:
    """A kubelet before 1.36 says so until it has the first image, too."""
    reason, message = starting({"init-1": WAITING, "trainer": WAITING}, sandbox=sandbox)
    assert (reason, message) == ("ContainerCreating", "volumes, network or image reg/init-1")


def test_a_kubelets_own_words_come_first() -> None:
    says = {"waiting": {"reason": "ContainerCreating", "message": "its own words"}}
    assert starting({"trainer": says}) == ("ContainerCreating", "its own words")
    failing = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    assert starting({"init-1": failing, "trainer": WAITING}) == ("ErrImagePull", "not found")
    fits = {"type": "PodScheduled", "status": "False", "reason": "Schedulable"}
    assert record_of({"phase": "Pending", "conditions": [fits]}).reason == "", "Volcano's"
    unseen = record_of({"phase": "Pending"})
    assert (unseen.reason, unseen.message) == (
        "Unscheduled",
        "scheduler None has not said a word about it",
    )


def test_an_image_of_any_length_is_kept_in_part() -> None:
    trainer = {"name": "trainer", "image": "x" * 1_000_000, "state": WAITING}
    body = {"phase": "Pending", "containerStatuses": [trainer]}
    record = pod_record({"metadata": IDENTITY, "spec": {"containers": [trainer]}, "status": body})
    assert record is not None and len(record.message) == 4096
