"""Pod templates as overlays of a DDPJob's pods, and as fields of its spec."""

from typing import Any

import pytest

from ddpjob.convert import tables
from ddpjob.convert.objects import convert
from ddpjob.errors import InvalidJob
from tests.foreign import PYTORCH_SPEC, note_at, notes_of, pytorch_job, spec_of, template

PVC = {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}
MEMORY = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
SHM = {"name": "dshm", "mountPath": "/dev/shm"}
OLD = {"name": "old", "cephfs": {"monitors": ["a"]}}
PROPAGATED = {"name": "old", "mountPath": "/old", "mountPropagation": "Bidirectional"}
SIDE = {"name": "side", "image": "s:1", "env": [{"name": "RANK", "value": "0"}]}
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
ROOT = {"runAsUser": 0}
GRANTED = {"runAsUser": 0, "runAsNonRoot": False}


def job(**fields: Any) -> Any:
    """A PyTorchJob of Workers with these fields of the trainer; `pod_…` are those of the pod."""
    return pytorch_job(worker={"template": template(**fields)})


def in_pod(*containers: Any, **fields: Any) -> dict[str, Any]:
    """The overlay of a pod with these fields and containers."""
    return {
        "template": {"spec": {**fields, **({"containers": [*containers]} if containers else {})}}
    }


def in_trainer(**fields: Any) -> dict[str, Any]:
    """The overlay of a pod whose trainer has these fields."""
    return in_pod({"name": "trainer", **fields})


def variable(path: str) -> dict[str, Any]:
    """A variable with a field of the pod."""
    return {"env": [{"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}


SAME: list[dict[str, Any]] = [
    {"imagePullPolicy": "Always", "envFrom": [{"secretRef": {"name": "s"}}]},
    {
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"cpu": 2, "nvidia.com/gpu": 1}},
    },
]
OF_POD: dict[str, Any] = {
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {}},
    "schedulerName": "volcano",
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "hostIPC": True,
    "tomorrow": {"a": 1},
}
OF_TRAINER: dict[str, Any] = {
    "workingDir": "/src",
    "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
    "tomorrow": 2,
}
# Fields of a template, what they are in the spec, and a part of the notes.
FIELDS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *((fields, fields, "") for fields in SAME),
    ({"pod_imagePullSecrets": [{"name": "p"}]}, {"imagePullSecrets": [{"name": "p"}]}, ""),
    (
        {"pod_terminationGracePeriodSeconds": 90},
        {"terminationGracePeriodSeconds": 90},
        "",
    ),
    (
        {"pod_terminationGracePeriodSeconds": 0},
        {"terminationGracePeriodSeconds": 1},
        "GracePeriodSeconds: changed: 0: is 1, the least that a DDPJob can have",
    ),
    ({f"pod_{name}": value for name, value in OF_POD.items()}, in_pod(**OF_POD), ""),
    (OF_TRAINER, in_trainer(**OF_TRAINER), ""),
    (
        {"resources": {"limits": {"cpu": 0.5, "memory": 1e-9}}},
        {"resources": {"limits": {"cpu": "0.5", "memory": "1e-09"}}},
        "",
    ),
    (
        {"env": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]},
        {"env": [{"name": "B"}, {"name": "A", "value": "2"}]},
        "env[A]: changed: stands twice, and the last one counts",
    ),
    (
        {"env": [{"name": "RANK", "value": "1"}, {"name": "LR", "value": "1"}]},
        {"env": [{"name": "LR", "value": "1"}]},
        "env[RANK]: not carried over: ddpjob sets it",
    ),
    (
        {"ports": [{"name": "pytorchjob-port", "containerPort": 23456}]},
        {"masterPort": 23456},
        "",
    ),
    (
        {"ports": [{"containerPort": 6006}, {"containerPort": 6006, "protocol": "UDP"}]},
        in_trainer(ports=[{"containerPort": 6006}]),
        "6006: stands twice",
    ),
    (
        {"ports": [{"containerPort": 6006}]},
        in_trainer(ports=[{"containerPort": 6006}]),
        "[pytorch].ports: changed: is in template, but only the job's own pods reach it",
    ),
    (
        {"volumeMounts": [SHM], "pod_volumes": [MEMORY]},
        {"volumeMounts": [SHM], "volumes": [MEMORY], "shm": {"enabled": False}},
        "",
    ),
    (
        {"volumeMounts": [PROPAGATED], "pod_volumes": [OLD, {"name": "none"}]},
        {"volumes": [{"name": "none", "emptyDir": {}}]}
        | in_pod({"name": "trainer", "volumeMounts": [PROPAGATED]}, volumes=[OLD]),
        "",
    ),
    (
        {"volumeMounts": [{"name": "data", "mountPath": "/x/"}], "pod_volumes": [PVC]},
        {"volumes": [PVC], "volumeMounts": [{"name": "data", "mountPath": "/x"}]},
        "volumeMounts[/x]: changed: claim 'claim': stays a volume; name it in checkpoint or data",
    ),
    (
        {"pod_containers": [SIDE], "pod_initContainers": [{"name": "init", "image": "i:1"}]},
        in_pod(SIDE, initContainers=[{"name": "init", "image": "i:1"}]),
        "only the trainer gets RANK",
    ),
    (
        {"pod_securityContext": ROOT, "securityContext": ROOT},
        in_pod({"name": "trainer", "securityContext": GRANTED}, securityContext=GRANTED),
        "0: runAsNonRoot: false is added",
    ),
    (variable(INDEX), variable("metadata.labels['ddpjob.dev/rank']"), "is ddpjob.dev/rank, which"),
]


@pytest.mark.parametrize(("fields", "expected", "said"), FIELDS, ids=lambda x: str(x)[:50])
def test_what_becomes_of_the_fields_of_a_pod(fields: Any, expected: Any, said: str) -> None:
    body = job(**fields)
    assert spec_of(body) == PYTORCH_SPEC | expected
    assert said in "\n".join(notes_of(body))


@pytest.mark.parametrize(
    "context", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}], ids=str
)
def test_privileges_that_contradict_ddpjobs_default_get_what_they_need(context: Any) -> None:
    """The API server refuses them beside allowPrivilegeEscalation: false."""
    expected = in_trainer(securityContext={**context, "allowPrivilegeEscalation": True})
    assert spec_of(job(securityContext=context)) == PYTORCH_SPEC | expected


def test_labels_of_pods_but_for_those_of_ddpjob() -> None:
    body = job()
    own = {"ddpjob.dev/job": "x", "app.kubernetes.io/managed-by": "me"}
    metadata = {"labels": {"a": "b", **own}, "annotations": {"c": "d"}, "name": "n"}
    body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"] = metadata
    expected = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
    assert spec_of(body)["template"] == expected
    for path in ("labels.ddpjob.dev/job", "managed-by", "metadata.name"):
        assert "not carried over" in note_at(convert(body), path)


def test_fields_that_ddpjob_sets_are_left_out_and_named() -> None:
    of_pod, of_trainer = ({name: "x" for name in table} for table in (tables.POD, tables.TRAINER))
    body = job(**of_trainer, **{f"pod_{name}": value for name, value in of_pod.items()})
    assert spec_of(body) == PYTORCH_SPEC
    paths = [f"spec.{name}" for name in of_pod] + [f"[pytorch].{name}" for name in of_trainer]
    assert all("not carried over: 'x': " in note_at(convert(body), path) for path in paths)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"pod_containers": [{"name": "trainer"}]}, "containers[trainer].name: must be another name"),
    ({"pod_containers": [{"name": "s"}] * 2}, "spec.containers: must have each name once, got ['"),
    ({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}, "no volume has the name, got 'a'"),
    ({"env": "x"}, "spec.containers[0].env: must be a list, got a text"),
    ({"command": [1]}, "[pytorch].command: must be a list of strings, got a list"),
    ({"ports": [{"name": "pytorchjob-port", "containerPort": 80}]}, "DDPJob spec.masterPort: must"),
    ({"pod_volumes": [{"name": "ddpjob-run", "emptyDir": {}}]}, "begin with ddpjob- are reserved"),
]


@pytest.mark.parametrize(("fields", "rule"), REFUSED)
def test_what_is_no_pod_of_a_ddpjob_is_refused_with_its_path(fields: Any, rule: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(job(**fields))
    assert rule in str(refused.value)


ACCOUNT = {"pod_serviceAccountName": "sa"}
NOTED = [
    ({}, "runAsUser: changed: absent: pods run as user 10001", True),
    ({"securityContext": {"runAsUser": 5}}, "runAsUser: changed: absent", False),
    (ACCOUNT, "its token is not mounted", True),
    (ACCOUNT | {"pod_automountServiceAccountToken": True}, "its token is not mounted", False),
    (ACCOUNT, "not allowed by this installation (policy.serviceAccountNames) by default", True),
    ({"pod_hostNetwork": True}, "(policy.hostNetwork)", True),
]


@pytest.mark.parametrize(("fields", "said", "is_said"), NOTED, ids=str)
def test_what_is_different_in_the_pods_is_said(fields: Any, said: str, is_said: bool) -> None:
    assert (said in "\n".join(notes_of(job(**fields)))) is is_said


def test_labels_in_selectors_are_those_of_ddpjobs_pods() -> None:
    foreign = ["training.kubeflow.org/replica-type", "training.kubeflow.org/job-name"]
    selector = {
        "matchLabels": {"training.kubeflow.org/job-name": "digits", "a": "b"},
        "matchExpressions": [{"key": key, "operator": "Exists"} for key in foreign],
    }
    terms = [{"maxSkew": 1, "topologyKey": "zone", "labelSelector": selector}]
    body = job(pod_topologySpreadConstraints=terms)
    (term,) = spec_of(body)["template"]["spec"]["topologySpreadConstraints"]
    assert term["labelSelector"]["matchLabels"] == {"ddpjob.dev/job": "digits", "a": "b"}
    keys = [each["key"] for each in term["labelSelector"]["matchExpressions"]]
    assert keys == [foreign[0], "ddpjob.dev/job"]
    (lost,) = [note for note in notes_of(body) if "replica-type" in note]
    assert "not carried over: training.kubeflow.org/replica-type: no pod" in lost
