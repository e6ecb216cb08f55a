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


CASES: list[tuple[dict[str, Any], dict[str, Any], Any]] = [
    ({}, {}, None),
    ({}, {"image": "other:1"}, {"image": "other:1"}),
    ({"resources": {"limits": {"cpu": 4}}}, {}, {"resources": {}}),
]


@pytest.mark.parametrize(("worker", "master", "expected"), CASES)
def test_the_master_is_what_differs(worker: Any, master: Any, expected: Any) -> None:
    assert spec_of(job(worker, master)).get("master") == expected


NOTED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"env": [A]}, {}, "Master.template.spec.containers[pytorch].env"),
    ({}, {"workingDir": "/src"}, "[pytorch].workingDir"),
    ({}, {"volumeMounts": [MOUNT], "pod_volumes": [DATA]}, "Master.template.spec.volumes"),
    ({}, {"pod_nodeSelector": {"a": "b"}}, "spec.nodeSelector"),
    ({}, {"pod_containers": [{"name": "side", "image": "s:1"}]}, "spec.containers"),
    ({"pod_terminationGracePeriodSeconds": 5}, {}, "spec.terminationGracePeriodSeconds"),
]


@pytest.mark.parametrize(("worker", "master", "path"), NOTED)
def test_rank_0_gets_what_the_workers_have_and_that_is_said(
    worker: Any, master: Any, path: str
) -> None:
    body = job(worker, master)
    assert "master" not in spec_of(body)
    said = f"{path}: not carried over: rank 0 gets what the Worker has; see spec.master.template"
    assert any(note.endswith(said) for note in notes_of(body))


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"resources": {"limits": {"nvidia.com/gpu": 8}}},
        {},
        "DDPJob spec.master.resources.limits: must have as many GPUs as spec.resources.limits",
    ),
    ({}, {"args": ["x"]}, "Worker.template.spec.containers[pytorch].command: must be as in the"),
]


@pytest.mark.parametrize(("worker", "master", "rule"), REFUSED)
def test_two_programs_or_numbers_of_gpus_are_refused(worker: Any, master: Any, rule: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(job(worker, master))
    assert rule in str(refused.value)


def test_the_rendezvous_of_each_role_is_no_difference() -> None:
    commands = [["torchrun", f"--node_rank={rank}", "train.py"] for rank in (0, 1)]
    body = job({"command": commands[1]}, {"command": commands[0]})
    assert spec_of(body)["args"] == ["train.py"] and "master" not in spec_of(body)


def test_all_pods_get_the_masters_port() -> None:
    ports = [[{"name": "pytorchjob-port", "containerPort": port}] for port in (2000, 3000)]
    spec = spec_of(job({"ports": ports[0]}, {"ports": ports[1]}))
    assert spec["masterPort"] == 3000 and "master" not in spec
