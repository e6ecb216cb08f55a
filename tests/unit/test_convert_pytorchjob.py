"""PyTorchJobs as DDPJobs: replicas, policies, what is lost, and what cannot be one job."""

from typing import Any

import orjson
import pytest

from ddpjob import api
from ddpjob.api.podtypes import is_reserved
from ddpjob.convert.fields import cleaned
from ddpjob.convert.objects import Converted, convert
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.overlay import MERGE_KEYS, is_keyed
from tests.foreign import (
    IMAGE,
    everything,
    fuzzed_pytorch_job,
    note_at,
    notes_of,
    pytorch_job,
    spec_of,
    template,
)

JOBS = 1500
PLAIN = {"image": IMAGE, "args": ["train.py"], "nnodes": 3, "cleanPodPolicy": "None"}


def test_workers_alone() -> None:
    job = convert(pytorch_job()).job
    assert job["metadata"] == {"name": "digits"}
    assert job["spec"] == PLAIN
    assert list(job["spec"]) == ["image", "args", "nnodes", "cleanPodPolicy"]  # in their order


def test_the_master_is_rank_0_and_its_success_is_that_of_the_job() -> None:
    assert spec_of(pytorch_job(master={})) == {**PLAIN, "nnodes": 4, "successPolicy": "Rank0"}
    alone = pytorch_job(worker={"replicas": 0}, master={})
    assert spec_of(alone) == {**PLAIN, "nnodes": 1}
    assert "there are no replicas" in note_at(convert(alone), "Worker.template")


def test_metadata_that_belongs_to_the_old_object_is_left_out_and_named() -> None:
    job = pytorch_job()
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    job["metadata"] |= {
        "namespace": "team",
        "labels": {"a": "b", "kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"c": "d", **last},
        "uid": "u",
        "resourceVersion": "1",
        "finalizers": ["x"],
    }
    job["status"] = {"conditions": []}
    converted = convert(job)
    assert converted.job["metadata"] == {
        "name": "digits",
        "namespace": "team",
        "labels": {"a": "b", "kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"c": "d"},
    }
    notes = [str(note) for note in converted.notes]
    (old,) = [note for note in notes if "metadata.uid" in note]
    assert "metadata.resourceVersion" in old and "status" in old and "metadata.finalizers" in old
    assert "Kueue does not know DDPJobs" in note_at(converted, "queue-name")


FAILURES: list[tuple[dict[str, Any], dict[str, Any], Any, str]] = [
    ({"restartPolicy": "OnFailure"}, {}, None, "OnFailure: the whole group restarts"),
    ({"restartPolicy": "Always"}, {}, None, "not carried over: Always: a rank that has ended"),
    ({"restartPolicy": "Never"}, {}, {"maxRestarts": 0}, "Never: after a failure the job fails"),
    ({}, {"backoffLimit": 5}, {"maxRestarts": 5}, ""),
]


def test_more_restarts_than_a_ddpjob_can_have() -> None:
    job = pytorch_job(runPolicy={"backoffLimit": 5000})
    assert spec_of(job)["failurePolicy"] == {"maxRestarts": 1000}
    assert "changed: 5000: 1000 are the most" in note_at(convert(job), "failurePolicy.maxRestarts")


@pytest.mark.parametrize(("worker", "policy", "expected", "said"), FAILURES)
def test_restart_policies(worker: Any, policy: Any, expected: Any, said: str) -> None:
    job = pytorch_job(worker=worker, runPolicy=policy)
    assert spec_of(job).get("failurePolicy") == expected
    assert said in " ".join(note for note in notes_of(job) if ".restartPolicy: " in note)


def test_exit_codes_below_128_are_permanent_with_restart_policy_exit_code() -> None:
    job = pytorch_job(worker={"restartPolicy": "ExitCode"}, runPolicy={"backoffLimit": 2})
    policy = spec_of(job)["failurePolicy"]
    codes = [code for rule in policy["rules"] for code in rule["onExitCodes"]]
    assert codes == list(range(1, 128)) and policy["maxRestarts"] == 2
    assert {rule["action"] for rule in policy["rules"]} == {"FailJob"}


def test_one_restart_policy_counts_for_the_group() -> None:
    job = pytorch_job(worker={"restartPolicy": "Never"}, master={"restartPolicy": "Always"})
    assert spec_of(job)["failurePolicy"] == {"maxRestarts": 0}
    assert "Never: counts for the Master too" in " ".join(notes_of(job))


def test_the_limit_nearest_to_the_script_counts() -> None:
    job = pytorch_job(elasticPolicy={"maxRestarts": 7}, runPolicy={"backoffLimit": 5})
    assert spec_of(job)["failurePolicy"] == {"maxRestarts": 7}
    assert "not carried over: 5: another" in note_at(convert(job), "backoffLimit")
    command = ["torchrun", "--max-restarts=9", "train.py"]
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = template(command=command)
    assert spec_of(job)["failurePolicy"] == {"maxRestarts": 9}


def test_the_run_policy() -> None:
    policy = {
        "cleanPodPolicy": "All",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 3600,
        "suspend": True,
        "schedulingPolicy": {
            "minAvailable": 3,
            "queue": "q",
            "minResources": {"cpu": 3},
            "priorityClass": "high",
            "scheduleTimeoutSeconds": 600,
        },
        "managedBy": "kueue.x-k8s.io/multikueue",
    }
    job = pytorch_job(runPolicy=policy)
    assert spec_of(job) == {
        **PLAIN,
        "cleanPodPolicy": "All",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 3600,
        "suspend": True,
        "startupDeadlineSeconds": 600,
        "template": {"spec": {"priorityClassName": "high"}},
    }
    converted = convert(job)
    for name in ("minAvailable", "queue", "minResources"):
        assert "not carried over" in note_at(converted, f"schedulingPolicy.{name}")
    assert "changed" in note_at(converted, "priorityClass")
    assert "not carried over" in note_at(converted, "managedBy")


def test_the_pods_own_priority_class_outranks_that_of_the_pod_group() -> None:
    pod = template(pod_priorityClassName="low")
    policy = {"schedulingPolicy": {"priorityClass": "high"}}
    spec = spec_of(pytorch_job(worker={"template": pod}, runPolicy=policy))
    assert spec["template"] == {"spec": {"priorityClassName": "low"}}


def test_an_elastic_job_trains_on_its_replicas() -> None:
    policy = {
        "minReplicas": 1,
        "maxReplicas": 8,
        "rdzvBackend": "etcd",
        "rdzvHost": "etcd",
        "rdzvConf": [{"key": "timeout", "value": "1"}],
        "standalone": True,
        "nProcPerNode": 4,
        "metrics": [{"type": "Resource"}],
    }
    converted = convert(pytorch_job(elasticPolicy=policy))
    assert converted.job["spec"] == {**PLAIN, "nprocPerNode": 4}
    lost = {note.path.rpartition(".")[2] for note in converted.notes if note.is_lost}
    assert lost == policy.keys() - {"nProcPerNode"}


REFUSED: list[tuple[Any, str]] = [
    (pytorch_job(worker={"replicas": 0}), "spec.pytorchReplicaSpecs: must have a Master, or a"),
    (pytorch_job(worker={"replicas": -1}), "Worker.replicas: must be at least 0, got -1"),
    (pytorch_job(worker={"replicas": "2"}), "Worker.replicas: must be an integer, got '2'"),
    (pytorch_job(master={"replicas": 2}), "Master.replicas: must be 1, got 2"),
    (pytorch_job(worker={"restartPolicy": "x"}), "must be one of Always, OnFailure, Never, Exit"),
    (pytorch_job(runPolicy={"cleanPodPolicy": ""}), "DDPJob spec.cleanPodPolicy: must be one of"),
    (pytorch_job(runPolicy=[]), "spec.runPolicy: must be an object, got []"),
    (pytorch_job(runPolicy={"backoffLimit": -1}), "DDPJob spec.failurePolicy.maxRestarts: must be"),
    (pytorch_job(worker={"template": template("main")}), "must have a container with the name"),
    (pytorch_job(worker={"template": template(image=None)}), "DDPJob spec.image: is required"),
    (pytorch_job() | {"metadata": {"generateName": "a-"}}, "metadata.name: is required: a DDPJob"),
    (pytorch_job() | {"metadata": {"name": "x" * 60}}, "DDPJob metadata.name: must be at most 52"),
    (
        pytorch_job() | {"apiVersion": "kubeflow.org/v2"},
        "apiVersion: must be kubeflow.org/v1 for a",
    ),
    (pytorch_job() | {"kind": "TFJob"}, "kind: must be PyTorchJob of kubeflow.org/v1 or TrainJob"),
    (None, "(object): must be an object: PyTorchJob of kubeflow.org/v1 or TrainJob of"),
]


@pytest.mark.parametrize(("body", "rule"), REFUSED)
def test_what_can_be_no_ddpjob_is_refused_with_the_reason(body: Any, rule: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(body)
    assert rule in str(refused.value)


def test_roles_of_other_names_and_twice_the_same_are_refused() -> None:
    for names in (["Chief"], ["Worker", "worker"]):
        job = pytorch_job()
        role = job["spec"]["pytorchReplicaSpecs"]["Worker"]
        job["spec"]["pytorchReplicaSpecs"] = dict.fromkeys(names, role)
        with pytest.raises(InvalidJob, match="must be Master or Worker, each once, got"):
            convert(job)


def test_an_unknown_field_is_named_wherever_it_is() -> None:
    worker = "spec.pytorchReplicaSpecs.Worker"
    for path in ("", "spec", "spec.runPolicy", worker, f"{worker}.template"):
        job = part = pytorch_job()
        for name in path.split(".") if path else []:
            part = part.setdefault(name, {})
        part["tomorrow"] = 1
        assert f"{path}.tomorrow: not carried over: 1: unknown".strip(".") in " ".join(
            notes_of(job)
        )


def test_unknown_fields_of_pods_and_containers_stay_in_the_overlay() -> None:
    pod = template(pod_tomorrow={"a": 1}, later=2)
    overlay = spec_of(pytorch_job(worker={"template": pod}))["template"]["spec"]
    assert overlay == {"tomorrow": {"a": 1}, "containers": [{"name": "trainer", "later": 2}]}


def test_nulls_are_absent_fields() -> None:
    job = pytorch_job(elasticPolicy=None, runPolicy={"suspend": None}, nprocPerNode=None)
    assert convert(job) == convert(pytorch_job(runPolicy={}))


def test_what_both_roles_have_is_said_once() -> None:
    pod = template(env=[{"name": "RANK", "value": "0"}])
    notes = notes_of(pytorch_job(worker={"template": pod}, master={"template": pod}))
    (note,) = [note for note in notes if "env[RANK]" in note]
    assert note.startswith("spec.pytorchReplicaSpecs.*.template.spec.containers[pytorch].env[RANK]")


def test_too_deep_an_object_is_refused_at_once() -> None:
    body: Any = 1
    for _ in range(5000):
        body = {"a": body}
    with pytest.raises(InvalidJob, match="must have at most 100 objects within each other"):
        convert(pytorch_job(x=body))


def missing(asked: Any, made: Any, path: str, field: str = "") -> list[str]:
    """The paths of what is asked for in one pod template, and is not in the pod that is made."""
    if isinstance(asked, dict) and isinstance(made, dict):
        found = [f"{path}.{name}" for name in asked if name not in made and asked[name]]
        for name in asked.keys() & made.keys():
            found += missing(asked[name], made[name], f"{path}.{name}", name)
        return found
    key = MERGE_KEYS.get(field, "")
    is_list = key and is_keyed(asked, key) and is_keyed(made, key)
    if is_list and len({item[key] for item in asked}) == len(asked):
        known = {item[key]: item for item in made}
        found = []
        for item in asked:
            where = f"{path}[{item[key]}]"
            found += missing(item, known[item[key]], where) if item[key] in known else [where]
        return found
    if field == "tolerations" and isinstance(asked, list):
        made = made[: len(asked)]  # ddpjob adds its own
    return [] if asked == made else [path]


def roles(body: Body, job: Body) -> list[tuple[str, Body, Body]]:
    """For each role: its path, its template, and the pod that ddpjob makes of the result."""
    pods = render.pods(api.DDPJob.parse(job), render.Agent(b""), everything(job["spec"]))
    given = cleaned(body)["spec"]["pytorchReplicaSpecs"]
    return [
        (f"spec.pytorchReplicaSpecs.{name}", role["template"], orjson.loads(pods.body(rank)))
        for name, rank in (("Master", 0), ("Worker", 1))
        if (role := given.get(name)) and role.get("replicas", 1)
    ]


def is_in_the_pods_or_named(body: Body, converted: Converted) -> bool:
    """Whether every value of a template, but for command and args, is in the pod or in a note."""
    for path, asked, made in roles(body, converted.job):
        named = [note.path.replace("spec.pytorchReplicaSpecs.*", path) for note in converted.notes]
        for container in asked["spec"]["containers"]:
            if container["name"] == "pytorch":
                container["name"] = "trainer"
                for word in ("command", "args"):
                    container.pop(word, None)
        for lost in missing(asked, made, f"{path}.template"):
            where = lost.replace("containers[trainer]", "containers[pytorch]")
            if not any(n.startswith(where) or where.startswith(n) for n in named):
                return False
    return True


def test_every_job_is_converted_to_a_valid_one_or_refused_in_words() -> None:
    ended = {"converted": 0, "refused": 0}
    for number in range(JOBS):
        body = fuzzed_pytorch_job(number)
        try:
            converted = convert(body)
        except InvalidJob as problem:
            assert "\n" not in str(problem) and len(str(problem)) < 1024, number
            ended["refused"] += 1
        else:
            assert api.validate(converted.job) == [], number
            assert all(str(note).isprintable() for note in converted.notes), number
            assert is_in_the_pods_or_named(body, converted), number
            ended["converted"] += 1
    assert min(ended.values()) > JOBS / 5, ended


def test_reserved_variables_are_dropped_and_named() -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES", "DDPJOB_JOB")
    assert all(map(is_reserved, names))
    env = [{"name": name, "value": "1"} for name in (*names, "LR")]
    converted = convert(pytorch_job(worker={"template": template(env=env)}))
    assert converted.job["spec"]["env"] == [{"name": "LR", "value": "1"}]
    for name in names:
        assert "not carried over: ddpjob sets it" in note_at(converted, f"env[{name}]")
