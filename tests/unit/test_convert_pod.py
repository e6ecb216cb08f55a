"""Pod templates as overlays of a DDPJob's pods, and as fields of its spec."""

from typing import Any

import pytest

from ddpjob.convert import tables
from ddpjob.convert.objects import convert
from ddpjob.errors import InvalidJob
from tests.foreign import note_at, notes_of, pytorch_job, spec_of, template

PVC = {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}
MEMORY = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
SHM = {"name": "dshm", "mountPath": "/dev/shm"}


def job(**fields: Any) -> Any:
    """A PyTorchJob of Workers with these fields of the trainer; `pod_…` are those of the pod."""
    return pytorch_job(worker={"template": template(**fields)})


def container(**fields: Any) -> dict[str, Any]:
    """The overlay of the trainer's container that these fields become."""
    (found,) = spec_of(job(**fields))["template"]["spec"]["containers"]
    assert found.pop("name") == "trainer"
    return dict(found)


def pod(**fields: Any) -> dict[str, Any]:
    """The overlay of the pod that these fields of the pod become."""
    found = spec_of(job(**{f"pod_{name}": value for name, value in fields.items()}))
    return dict(found["template"]["spec"])


def test_the_fields_that_a_spec_has_itself() -> None:
    fields = {
        "imagePullPolicy": "Always",
        "env": [{"name": "A", "value": "1"}],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "resources": {"limits": {"cpu": 2, "nvidia.com/gpu": 1}},
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    }
    spec = spec_of(
        job(
            **fields,
            pod_volumes=[PVC],
            pod_imagePullSecrets=[{"name": "p"}],
            pod_dnsPolicy="None",
            pod_terminationGracePeriodSeconds=90,
        )
    )
    assert spec["terminationGracePeriodSeconds"] == 90
    assert {name: spec[name] for name in fields} == fields
    assert spec["volumes"] == [PVC] and spec["imagePullSecrets"] == [{"name": "p"}]
    assert spec["template"] == {"spec": {"dnsPolicy": "None"}}


def test_what_a_pod_has_beside_them_is_in_the_overlay() -> None:
    fields = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "schedulerName": "volcano",
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "hostIPC": True,
    }
    assert pod(**fields) == fields
    fields = {"workingDir": "/src", "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}
    assert container(**fields) == fields


def test_labels_of_pods_but_for_those_of_ddpjob() -> None:
    body = job()
    own = {"ddpjob.dev/job": "x", "app.kubernetes.io/managed-by": "me"}
    metadata = {"labels": {"a": "b", **own}, "annotations": {"c": "d"}, "name": "n"}
    body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"] = metadata
    expected = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
    assert spec_of(body)["template"] == expected
    converted = convert(body)
    for path in ("labels.ddpjob.dev/job", "managed-by", "metadata.name"):
        assert "not carried over" in note_at(converted, path)


def test_fields_that_ddpjob_sets_are_left_out_and_named() -> None:
    of_pod, of_trainer = ({name: "x" for name in table} for table in (tables.POD, tables.TRAINER))
    body = job(**of_trainer, **{f"pod_{name}": value for name, value in of_pod.items()})
    assert "template" not in spec_of(body)
    for path in (
        *(f"spec.{name}" for name in of_pod),
        *(f"[pytorch].{name}" for name in of_trainer),
    ):
        assert "not carried over: 'x': " in note_at(convert(body), path)


def test_the_port_of_the_rendezvous_is_the_master_port() -> None:
    ports = [
        {"name": "pytorchjob-port", "containerPort": 23456},
        {"containerPort": 6006},
        {"containerPort": 6006, "protocol": "UDP"},
    ]
    body = job(ports=ports)
    assert spec_of(body)["masterPort"] == 23456
    assert container(ports=ports) == {"ports": [{"containerPort": 6006}]}
    assert "not carried over: 6006: stands twice" in " ".join(notes_of(body))
    assert "only the job's own pods reach it" in note_at(convert(body), ".ports")
    assert not [note for note in notes_of(job(ports=ports[:1])) if ".ports" in note]


def test_amounts_that_are_fractions_become_texts() -> None:
    resources = {"limits": {"cpu": 0.5, "memory": 1e-9}, "requests": {"cpu": 0.25}}
    assert spec_of(job(resources=resources))["resources"] == {
        "limits": {"cpu": "0.5", "memory": "1e-09"},
        "requests": {"cpu": "0.25"},
    }


def test_of_a_variable_that_stands_twice_the_last_one_counts() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "2"}]
    assert spec_of(job(env=env))["env"] == [{"name": "B"}, {"name": "A", "value": "2"}]
    assert "stands twice" in note_at(convert(job(env=env)), "env[A]")


def test_memory_at_dev_shm_is_shm() -> None:
    body = job(volumeMounts=[SHM], pod_volumes=[MEMORY])
    assert spec_of(body)["shm"] == {"sizeLimit": "8Gi"}
    assert not {"volumes", "volumeMounts", "template"} & spec_of(body).keys()
    unlimited = {"name": "dshm", "emptyDir": {"medium": "Memory"}}
    assert "shm" not in spec_of(job(volumeMounts=[SHM], pod_volumes=[unlimited]))


@pytest.mark.parametrize(
    ("mount", "volume", "others"),
    [
        (SHM, PVC | {"name": "dshm"}, []),
        (SHM, {"name": "dshm", "emptyDir": {}}, []),
        (SHM | {"subPath": "a"}, MEMORY, []),
        (SHM | {"mountPath": "/dev/shm/"}, MEMORY, [{"name": "s", "volumeMounts": [SHM]}]),
    ],
)
def test_anything_else_at_dev_shm_stays_and_takes_the_place_of_shm(
    mount: Any, volume: Any, others: Any
) -> None:
    spec = spec_of(job(volumeMounts=[mount], pod_volumes=[volume], pod_containers=others))
    assert spec["shm"] == {"enabled": False}
    assert spec["volumes"] == [volume]
    assert spec["volumeMounts"] == [mount | {"mountPath": "/dev/shm"}]


def test_volumes_and_mounts_that_a_spec_does_not_have_are_in_the_overlay() -> None:
    volumes = [{"name": "old", "cephfs": {"monitors": ["a"]}}, {"name": "none"}]
    mounts = [{"name": "old", "mountPath": "/old", "mountPropagation": "Bidirectional"}]
    spec = spec_of(job(volumeMounts=mounts, pod_volumes=volumes))
    assert spec["volumes"] == [{"name": "none", "emptyDir": {}}]
    assert spec["template"]["spec"] == {
        "containers": [{"name": "trainer", "volumeMounts": mounts}],
        "volumes": volumes[:1],
    }


def test_nobody_guesses_what_a_claim_holds() -> None:
    body = job(volumeMounts=[{"name": "data", "mountPath": "/x/"}], pod_volumes=[PVC])
    spec = spec_of(body)
    assert spec["volumeMounts"] == [{"name": "data", "mountPath": "/x"}]
    assert not {"checkpoint", "data"} & spec.keys()
    assert "claim 'claim': stays a volume" in note_at(convert(body), "volumeMounts[/x]")


def test_sidecars_and_init_containers_are_in_the_overlay() -> None:
    side = {"name": "side", "image": "s:1", "env": [{"name": "RANK", "value": "0"}]}
    init = {"name": "init", "image": "i:1"}
    body = job(pod_containers=[side], pod_initContainers=[init])
    overlay = spec_of(body)["template"]["spec"]
    assert overlay == {"containers": [side], "initContainers": [init]}
    assert "only the trainer gets RANK" in note_at(convert(body), "template.spec")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"pod_containers": [{"name": "trainer"}]}, "containers[trainer].name: must be another name"),
    ({"pod_containers": [{"name": "s"}] * 2}, "spec.containers: must have each name once, got ['"),
    ({"pod_containers": ["x"]}, "spec.containers[1]: must be an object with name, got 'x'"),
    ({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}, "no volume has the name, got 'a'"),
    ({"env": [{"name": "A", "value": 1}]}, "DDPJob spec.env[0].value: must be a string, got 1"),
    ({"env": "x"}, "spec.containers[0].env: must be a list, got a text"),
    ({"command": [1]}, "[pytorch].command: must be a list of strings, got a list"),
    ({"args": "train.py"}, "[pytorch].args: must be a list, got a text"),
    ({"resources": {"limits": {"cpu": "x"}}}, "DDPJob spec.resources.limits.cpu: must be a quant"),
    ({"ports": [{"name": "pytorchjob-port", "containerPort": 80}]}, "DDPJob spec.masterPort: must"),
    ({"pod_volumes": [{"name": "ddpjob-run", "emptyDir": {}}]}, "begin with ddpjob- are reserved"),
    ({"pod_terminationGracePeriodSeconds": 0}, "GracePeriodSeconds: must be at least 1, got 0"),
]


@pytest.mark.parametrize(("fields", "rule"), REFUSED)
def test_what_is_no_pod_of_a_ddpjob_is_refused_with_its_path(fields: Any, rule: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(job(**fields))
    assert rule in str(refused.value)


def test_the_user_is_another_than_the_images_and_that_is_said() -> None:
    where = "template.spec.securityContext.runAsUser"
    assert "pods run as user 10001" in note_at(convert(job()), where)
    context = {"runAsUser": 1000}
    for body in (job(securityContext=context), job(pod_securityContext=context)):
        assert not [note for note in notes_of(body) if where in note]


def test_who_asks_for_root_gets_root() -> None:
    body = job(pod_securityContext={"runAsUser": 0}, securityContext={"runAsUser": 0})
    overlay = spec_of(body)["template"]["spec"]
    assert overlay["securityContext"] == {"runAsUser": 0, "runAsNonRoot": False}
    assert overlay["containers"][0]["securityContext"] == {"runAsUser": 0, "runAsNonRoot": False}
    assert "0: runAsNonRoot: false is added" in note_at(convert(body), "runAsUser")


@pytest.mark.parametrize(
    "context", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}], ids=str
)
def test_privileges_that_contradict_ddpjobs_default_get_what_they_need(context: Any) -> None:
    """The API server refuses them beside allowPrivilegeEscalation: false."""
    expected = {**context, "allowPrivilegeEscalation": True}
    assert container(securityContext=dict(context)) == {"securityContext": expected}


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"pod_hostNetwork": True}, "hostNetwork"),
        ({"pod_serviceAccountName": "sa"}, "serviceAccountNames"),
        ({"pod_priorityClassName": "system-node-critical"}, "priorityClassNames"),
        ({"pod_securityContext": {"sysctls": [{"name": "a", "value": "1"}]}}, "privileged"),
        ({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}, "capabilities"),
        ({"securityContext": {"privileged": True}}, "privileged"),
        ({"pod_volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "volumeTypes"),
        ({"pod_nodeName": "n"}, "nodeName"),
    ],
    ids=str,
)
def test_what_an_installation_must_allow_is_carried_over_and_named(
    fields: Any, setting: str
) -> None:
    notes = [note for note in notes_of(job(**fields)) if f"(policy.{setting})" in note]
    assert notes and all("see the chart's values" in note for note in notes)


def test_the_token_of_a_service_account_is_not_mounted_by_itself() -> None:
    body = job(pod_serviceAccountName="sa")
    notes = [note for note in notes_of(body) if "its token is not mounted" in note]
    assert len(notes) == 1
    body = job(pod_serviceAccountName="sa", pod_automountServiceAccountToken=True)
    assert not [note for note in notes_of(body) if "its token is not mounted" in note]


def test_labels_in_selectors_are_those_of_ddpjobs_pods() -> None:
    terms = [
        {
            "topologyKey": "zone",
            "labelSelector": {
                "matchLabels": {"training.kubeflow.org/job-name": "digits", "a": "b"},
                "matchExpressions": [
                    {"key": "training.kubeflow.org/replica-type", "operator": "Exists"},
                    {"key": "training.kubeflow.org/job-name", "operator": "Exists"},
                ],
            },
        }
    ]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    body = job(pod_affinity=affinity)
    overlay = spec_of(body)["template"]["spec"]["affinity"]["podAntiAffinity"]
    selector = overlay["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"]
    assert selector["matchLabels"] == {"ddpjob.dev/job": "digits", "a": "b"}
    keys = [term["key"] for term in selector["matchExpressions"]]
    assert keys == ["training.kubeflow.org/replica-type", "ddpjob.dev/job"]
    (lost,) = [note for note in notes_of(body) if "replica-type" in note]
    assert "not carried over: training.kubeflow.org/replica-type: no pod" in lost


def test_labels_in_variables_are_those_of_ddpjobs_pods() -> None:
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    body = job(env=[{"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}])
    (variable,) = spec_of(body)["env"]
    assert variable["valueFrom"] == {
        "fieldRef": {"fieldPath": "metadata.labels['ddpjob.dev/rank']"}
    }
