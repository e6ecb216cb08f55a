"""What makes the pod of rank 0 of the pod of the Workers."""

from typing import Any

import pytest

from ddpjob.convert.objects import convert
from ddpjob.errors import InvalidJob
from tests.foreign import notes_of, pytorch_job, spec_of, template

A = {"name": "A", "value": "1"}
DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}
MOUNT = {"name": "data", "mountPath": "/data"}


def job(worker: dict[str, Any], master: dict[str, Any]) -> Any:
    """A PyTorchJob whose Worker and Master have these fields in their templates."""
    return pytorch_job(
        worker={"template": template(**worker)}, master={"template": template(**master)}
    )


def overlay(*trainer: Any, **pod: Any) -> Any:
    """What the template of rank 0 has in its trainer and its pod."""
    containers = {"containers": [{"name": "trainer", **each} for each in trainer]}
    return {"template": {"spec": {**pod, **(containers if trainer else {})}}}


B = [{"name": "A", "value": "2"}, {"name": "B"}]
POOLS = ({"pod_nodeSelector": {"a": name}} for name in "bc")
CASES: list[tuple[dict[str, Any], dict[str, Any], Any]] = [
    ({}, {}, None),
    ({}, {"image": "other:1"}, {"image": "other:1"}),
    ({"resources": {"limits": {"cpu": 4}}}, {}, {"resources": {}}),
    ({"env": [A]}, {"env": B}, overlay({"env": B})),
    (
        {},
        {"volumeMounts": [MOUNT], "pod_volumes": [DATA]},
        overlay({"volumeMounts": [MOUNT]}, volumes=[DATA]),
    ),
    ({"pod_tolerations": [{"key": "a"}]}, {"pod_tolerations": []}, overlay(tolerations=[])),
    (*POOLS, overlay(nodeSelector={"a": "c"})),
]


@pytest.mark.parametrize(("worker", "master", "expected"), CASES)
def test_the_master_is_what_differs(worker: Any, master: Any, expected: Any) -> None:
    assert spec_of(job(worker, master)).get("master") == expected


def test_labels_of_the_master_alone() -> None:
    body = job({}, {})
    labels = {"metadata": {"labels": {"role": "master"}}}
    body["spec"]["pytorchReplicaSpecs"]["Master"]["template"] |= labels
    assert spec_of(body)["master"] == {"template": labels}


KEPT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"env": [A, {"name": "B"}]}, {"env": [A]}, "Worker.template.spec.containers[pytorch].env[B]"),
    ({"pod_nodeSelector": {"a": "b", "c": "d"}}, {"pod_nodeSelector": {"a": "b"}}, "Selector.c"),
    ({"workingDir": "/src"}, {}, "[pytorch].workingDir"),
    ({"volumeMounts": [MOUNT], "pod_volumes": [DATA]}, {}, "spec.volumes"),
]


@pytest.mark.parametrize(("worker", "master", "path"), KEPT)
def test_what_only_the_workers_have_rank_0_gets_too_and_that_is_said(
    worker: Any, master: Any, path: str
) -> None:
    body = job(worker, master)
    assert spec_of(body).get("master", {}).get("template", {}) == {}
    said = "changed: is not in the Master, but rank 0 gets it too"
    assert any(note.endswith(said) and f"{path}: " in note for note in notes_of(body))


SECRET = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"env": [A]}, {"env": [{"name": "A", **SECRET}]}, "env[A].value: must be in the Master too"),
    ({"pod_volumes": [CLAIM]}, {"pod_volumes": [{"name": "v", "emptyDir": {}}]}, "volumes[v].pers"),
    ({"securityContext": {"runAsUser": 5}}, {"securityContext": {}}, "securityContext.runAsUser"),
    (
        {"resources": {"limits": {"nvidia.com/gpu": 8}}},
        {},
        "DDPJob spec.master.resources.limits: must have as many GPUs as spec.resources.limits",
    ),
    ({}, {"args": ["x"]}, "Worker.template.spec.containers[pytorch].command: must be as in the"),
    (
        {"pod_topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": n} for n in (1, 2)]},
        {"pod_topologySpreadConstraints": [{"topologyKey": "z"}]},
        "topologySpreadConstraints: must be as in the Master, or have each topologyKey once",
    ),
]


@pytest.mark.parametrize(("worker", "master", "rule"), REFUSED)
def test_two_pods_that_no_overlay_can_make_of_one_are_refused(
    worker: Any, master: Any, rule: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(job(worker, master))
    assert rule in str(refused.value)


def test_the_rendezvous_of_each_role_is_no_difference() -> None:
    commands = [["torchrun", f"--node_rank={rank}", "train.py"] for rank in (0, 1)]
    body = job({"command": commands[1]}, {"command": commands[0]})
    assert spec_of(body)["args"] == ["train.py"] and "master" not in spec_of(body)


def test_all_pods_get_the_workers_shm_and_grace_and_the_masters_port() -> None:
    port = {"name": "pytorchjob-port"}
    shm = {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]
    body = job(
        {"ports": [{**port, "containerPort": 2000}], "pod_terminationGracePeriodSeconds": 5},
        {"ports": [{**port, "containerPort": 3000}], **shm, "pod_volumes": volumes},
    )
    spec = spec_of(body)
    assert (spec["masterPort"], spec["terminationGracePeriodSeconds"]) == (3000, 5)
    assert "shm" not in spec and "master" not in spec
    for path in ("Master.template.spec.containers[pytorch].volumeMounts[/dev/shm]", "GraceP"):
        assert any("the Worker has another" in n and path in n for n in notes_of(body)), path
