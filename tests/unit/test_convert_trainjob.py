"""TrainJobs as DDPJobs: runtimes, trainers, patches, and what Trainer would have done."""

from typing import Any

import pytest

from ddpjob import api
from ddpjob.convert import Runtimes, convert, runtimes_of
from ddpjob.convert.patches import MAX_PATCHES
from ddpjob.errors import InvalidJob
from tests.foreign import (
    IMAGE,
    fuzzed_train_job,
    note_at,
    notes_of,
    replicated_job,
    runtime,
    spec_of,
    template,
    train_job,
)

JOBS = 1500
OWN = runtime()
PLAIN = {"image": IMAGE, "args": ["train.py"], "nnodes": 2}


def own(**spec: Any) -> Any:
    """A TrainJob of the runtime `own`."""
    return train_job("own", **spec)


def test_a_runtime_of_the_input() -> None:
    assert spec_of(own(), OWN) == PLAIN


def test_a_runtime_that_trainer_ships() -> None:
    job = train_job(trainer={"command": ["torchrun", "train.py"], "numNodes": 3})
    spec = spec_of(job)
    assert spec.pop("image").startswith("pytorch/pytorch:")
    assert spec == {"args": ["train.py"], "nnodes": 3}
    assert "as Kubeflow Trainer v2.3.0 has it" in note_at(convert(job), "runtimeRef.name")


@pytest.mark.parametrize("name", ["llama3.2-1b", "llama3.2-3b", "qwen2.5-1.5b"])
def test_the_shipped_runtimes_of_torchtune(name: str) -> None:
    job = train_job(f"torchtune-{name}", initializer={"dataset": {"storageUri": "hf://a/b"}})
    spec = spec_of(job)
    assert spec["command"] == ["tune", "run", "--nnodes=$(PET_NNODES)"]
    assert spec["args"][:2] == ["full_finetune_distributed", "--config"]
    claim = {"persistentVolumeClaim": {"claimName": "initializer-digits"}}
    assert spec["volumes"] == [{"name": "initializer", **claim}]
    notes = " ".join(notes_of(job))
    assert "claim 'initializer-digits' must be there" in notes
    assert "replicatedJobs[model-initializer]: not carried over: a DDPJob is one group" in notes
    assert "unknown field" not in notes
    assert "initializer.dataset: not carried over: {storageUri}: ddpjob loads nothing" in notes


def test_the_shipped_runtime_with_a_cache_names_the_job_by_its_label() -> None:
    job = train_job("torch-distributed-with-cache", trainer={"command": ["torchrun", "a.py"]})
    (variable,) = spec_of(job)["env"]
    path = "metadata.labels['ddpjob.dev/job']"
    assert variable == {"name": "TRAIN_JOB_NAME", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_a_runtime_of_a_namespace_is_found_in_that_namespace() -> None:
    here, there = runtime(), runtime(pod=template("node", command=["torchrun", "other.py"]))
    for body, namespace in ((here, "team"), (there, "elsewhere")):
        body["kind"], body["metadata"]["namespace"] = "TrainingRuntime", namespace
    job = own(runtimeRef={"name": "own", "kind": "TrainingRuntime"})
    for namespace, script in (("team", "train.py"), ("elsewhere", "other.py")):
        job["metadata"]["namespace"] = namespace
        assert spec_of(job, here, there)["args"] == [script]


def test_processes_are_counted_as_trainer_counts_them() -> None:
    """Without GPUs `auto` is the number of CPUs in the requests, or else in the limits."""
    for resources, expected in (
        ({"requests": {"cpu": "2500m"}, "limits": {"cpu": 8}}, 3),
        ({"limits": {"cpu": 8}}, 8),
        ({"limits": {"memory": "1Gi"}}, None),
        ({"limits": {"cpu": 8, "nvidia.com/gpu": 2}}, None),
        ({}, None),
    ):
        job = own(trainer={"resourcesPerNode": resources})
        assert spec_of(job, OWN).get("nprocPerNode") == expected, resources
    assert spec_of(own(trainer={"numProcPerNode": 5}), OWN)["nprocPerNode"] == 5
    older = runtime(mlPolicy={"torch": {"numProcPerNode": 4}})
    assert spec_of(own(), older) == {**PLAIN, "nnodes": 1, "nprocPerNode": 4}
    single = own(
        trainer={"command": ["python", "a.py"], "resourcesPerNode": {"limits": {"cpu": 8}}}
    )
    assert "nprocPerNode" not in spec_of(single, OWN)
    single["spec"]["trainer"]["command"] = ["./train"]  # nobody knows what it starts
    assert "nprocPerNode" not in spec_of(single, OWN)


def test_the_trainer_replaces_what_the_runtime_has() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
    ]
    pod = template("node", env=env, args=["x"], resources={"limits": {"cpu": 1, "memory": "1Gi"}})
    trainer: dict[str, Any] = {
        "image": "mine:1",
        "command": ["python", "a.py"],
        "args": ["--lr", "1"],
        "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
        "numNodes": 5,
        "resourcesPerNode": {"limits": {"cpu": 2}},
    }
    assert spec_of(own(trainer=trainer), runtime(pod=pod)) == {
        "image": "mine:1",
        "launcher": "python",
        "args": ["a.py", "--lr", "1"],
        "nnodes": 5,
        "env": [env[0], *trainer["env"]],
        "resources": {"limits": {"cpu": 2, "memory": "1Gi"}},
    }


def test_processes_that_plain_python_does_not_start_are_named() -> None:
    job = own(trainer={"command": ["python", "a.py"], "numProcPerNode": 4})
    note = note_at(convert(job, Runtimes([OWN])), "trainer.numProcPerNode")
    assert "4: plain Python is one process on each node" in note


def test_a_variable_of_the_trainer_replaces_that_of_the_runtime() -> None:
    pod = template("node", env=[{"name": "A", "value": "1"}])
    job = own(trainer={"env": [{"name": "A", "value": "2"}]})
    assert spec_of(job, runtime(pod=pod))["env"] == [{"name": "A", "value": "2"}]
    assert not [note for note in notes_of(job, runtime(pod=pod)) if "stands twice" in note]


def test_a_trainers_command_keeps_the_runtimes_args() -> None:
    pod = template("node", args=["--lr", "1"])
    spec = spec_of(own(trainer={"command": ["torchrun", "a.py"]}), runtime(pod=pod))
    assert spec["args"] == ["a.py", "--lr", "1"]


def patch(*, manager: str = "me", **job: Any) -> dict[str, Any]:
    """A runtime patch of the job `node`."""
    body = {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}
    return {"manager": manager, "time": "now", "trainingRuntimeSpec": {"template": body}}


def jobset_patch(metadata: Any) -> dict[str, Any]:
    """A runtime patch of the metadata of the JobSet."""
    found = patch()
    found["trainingRuntimeSpec"]["template"]["metadata"] = metadata
    return found


OVERLAY = {
    "nodeSelector": {"a": "b"},
    "containers": [{"name": "node", "securityContext": {"runAsUser": 5}}],
}
EXPECTED = {
    "spec": {
        "nodeSelector": {"a": "b"},
        "containers": [{"name": "trainer", "securityContext": {"runAsUser": 5}}],
    }
}


def patches(pod: Any) -> list[tuple[str, Any]]:
    """The field with patches of each version, and one that changes the pod's spec so."""
    return [
        ("podSpecOverrides", [{"targetJobs": [{"name": "node"}], **pod}]),
        ("podTemplateOverrides", [{"targetJobs": [{"name": "node"}], "spec": pod}]),
        ("runtimePatches", [patch(spec={"template": {"spec": pod}})]),
    ]


PATCHES = patches(OVERLAY)


@pytest.mark.parametrize(("field", "patches"), PATCHES)
def test_patches_of_each_version(field: str, patches: Any) -> None:
    assert spec_of(own(**{field: patches}), OWN) == {**PLAIN, "template": EXPECTED}


def test_metadata_of_patches() -> None:
    pods = {"template": {"metadata": {"labels": {"pod": "1"}}}}
    runtime_patch = patch(metadata={"labels": {"job": "1"}}, spec=pods)
    jobset = {"labels": {"set": "1"}, "annotations": {"note": "1"}}
    runtime_patch["trainingRuntimeSpec"]["template"]["metadata"] = jobset
    job = own(runtimePatches=[runtime_patch], labels={"old": "1"})
    job["metadata"]["labels"] = {"set": "2"}
    converted = convert(job, Runtimes([OWN]))
    assert converted.job["metadata"] == {
        "name": "digits",
        "labels": {"set": "2", "old": "1"},
        "annotations": {"note": "1"},
    }
    assert converted.job["spec"]["template"] == {"metadata": {"labels": {"pod": "1"}}}
    assert "a DDPJob has no Jobs" in note_at(converted, "replicatedJobs[node].template.metadata")


def test_patches_of_other_jobs_are_left_out_and_named() -> None:
    other = {"targetJobs": [{"name": "dataset-initializer"}], "spec": {"nodeSelector": {"a": "b"}}}
    job = own(podTemplateOverrides=[other])
    assert spec_of(job, OWN) == PLAIN
    assert "a DDPJob has no such job" in " ".join(notes_of(job, OWN))


def test_what_holds_for_the_job() -> None:
    job = own(suspend=True, activeDeadlineSeconds=60, managedBy="kueue.x-k8s.io/multikueue")
    assert spec_of(job, OWN) == {**PLAIN, "suspend": True, "activeDeadlineSeconds": 60}
    assert "it does not know DDPJobs" in note_at(convert(job, Runtimes([OWN])), "managedBy")
    ours = own(managedBy="trainer.kubeflow.org/trainjob-controller")
    assert not [note for note in notes_of(ours, OWN) if "managedBy" in note]


def test_what_holds_for_the_jobs_of_a_runtime() -> None:
    jobset = {
        "failurePolicy": {"maxRestarts": 5, "rules": [{}]},
        "ttlSecondsAfterFinished": 9,
        "successPolicy": {"operator": "All"},
    }
    body = runtime(
        jobset=jobset,
        podGroupPolicy={"coscheduling": {"scheduleTimeoutSeconds": 90}},
        mlPolicy={"numNodes": 4, "torch": {"elasticPolicy": {"minNodes": 2}, "envInjection": {}}},
    )
    assert spec_of(own(), body) == {
        **PLAIN,
        "nnodes": 4,
        "failurePolicy": {"maxRestarts": 5},
        "startupDeadlineSeconds": 90,
        "ttlSecondsAfterFinished": 9,
    }
    notes = " ".join(note for note in notes_of(own(), body) if "not carried over" in note)
    for name in ("failurePolicy.rules", "successPolicy", "minNodes", "envInjection"):
        assert f"{name}: not carried over" in notes, name


@pytest.mark.parametrize(
    ("job", "jobset", "torch", "expected"),
    [
        ({"backoffLimit": 1}, {}, {}, 1),
        ({"backoffLimit": 1}, {"failurePolicy": {"maxRestarts": 2}}, {}, 2),
        ({"backoffLimit": 1}, {}, {"elasticPolicy": {"maxRestarts": 3}}, 3),
    ],
)
def test_limits_of_restarts(job: Any, jobset: Any, torch: Any, expected: int) -> None:
    jobs = [replicated_job("node", "trainer", template("node"), **job)]
    body = runtime(jobset={"replicatedJobs": jobs, **jobset}, mlPolicy={"torch": torch})
    assert spec_of(own(), body)["failurePolicy"] == {"maxRestarts": expected}


def test_the_default_of_restarts_is_said() -> None:
    assert "absent: the whole group restarts" in " ".join(notes_of(own(), OWN))


REFUSED: list[tuple[Any, Any, str]] = [
    (train_job("unknown"), OWN, "spec.runtimeRef.name: must be a runtime of the input, or one"),
    (train_job("deepspeed-distributed"), OWN, "must start PyTorch with torchrun, and this runtime"),
    (own(runtimeRef={}), OWN, "spec.runtimeRef.name: must be a runtime of the input"),
    (own(runtimeRef={"name": "own", "apiGroup": "x"}), OWN, "apiGroup: must be trainer.kubeflow"),
    (own(runtimeRef={"name": "own", "kind": "x"}), OWN, "kind: must be ClusterTrainingRuntime or"),
    (own(), runtime(mlPolicy={"mpi": {}}), "runtime.spec.mlPolicy.mpi: must be absent, because a"),
    (own(), runtime(jobset={"replicatedJobs": []}), "must have a job with the label trainer.kube"),
    (own(), runtime(pod=template("main")), "pod.spec.containers: must have a container with the"),
    (own(), runtime(pod={}), "pod.spec.containers: must have a container with the name node"),
    (
        own(trainer={"command": ["tune", "run"]}),
        OWN,
        "spec.trainer.command: must be whole: to tune",
    ),
    (own(trainer={"numNodes": 0}), OWN, "DDPJob spec.nnodes: must be at least 1, got 0"),
    (own(trainer={"numNodes": "2"}), OWN, "spec.trainer.numNodes: must be an integer, got '2'"),
    (own(trainer={"env": [1]}), OWN, "env[0]: must be an object, got 1"),
    (
        own(runtimePatches=[patch(spec={"template": {"spec": {"containers": [{"name": "x"}]}}})]),
        OWN,
        "spec.containers: must be containers of the runtime's job node, got ['x']",
    ),
    (
        own(podTemplateOverrides=[{"targetJobs": [{"name": "node"}]}] * (MAX_PATCHES + 1)),
        OWN,
        "spec: must have at most 256 patches of the job node",
    ),
    (
        own() | {"apiVersion": "trainer.kubeflow.org/v2"},
        OWN,
        "must be trainer.kubeflow.org/v1alpha1",
    ),
]


@pytest.mark.parametrize(("body", "known", "rule"), REFUSED)
def test_what_can_be_no_ddpjob_is_refused_with_the_reason(body: Any, known: Any, rule: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(body, Runtimes([known]))
    assert rule in str(refused.value)


ODD: list[tuple[Any, Any, str]] = [
    *(
        (own(**{field: found}), OWN, f".{kind}: must be a list, got {value!r}")
        for kind, value in (("containers", 5), ("initContainers", 1.5))
        for field, found in patches({kind: value})
    ),
    *(
        (own(**{field: found}), OWN, "pod.spec.containers[node].env[0].name: must be a string, got")
        for name in list[Any](([], {"a": "b"}))
        for field, found in patches({"containers": [{"name": "node", "env": [{"name": name}]}]})
    ),
    *(
        (
            own(runtimePatches=[jobset_patch({kind: value})]),
            OWN,
            f"runtimePatches[me].trainingRuntimeSpec.template.metadata.{kind}: must be an object,",
        )
        for kind in ("labels", "annotations")
        for value in ("abc", ["a"], 5)
    ),
    *(
        (
            own(trainer={"resourcesPerNode": {kind: {"cpu": "1" + "0" * 400}}}),
            OWN,
            f"DDPJob spec.resources.{kind}.cpu: must be a quantity, not negative, such as 2",
        )
        for kind in ("requests", "limits")
    ),
    (own(), runtime(pod={"spec": {"containers": 5}}), "pod.spec.containers: must be a list, got 5"),
]


@pytest.mark.parametrize(("body", "known", "rule"), ODD)
def test_what_no_schema_has_checked_is_named(body: Any, known: Any, rule: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(body, Runtimes([known]))
    assert rule in str(refused.value)


PLACES: list[tuple[bool, list[Any]]] = [
    (True, ["spec"]),
    (True, ["spec", "runtimeRef"]),
    (True, ["spec", "trainer"]),
    (True, ["spec", "initializer"]),
    (False, ["spec"]),
    (False, ["spec", "mlPolicy"]),
    (False, ["spec", "mlPolicy", "torch"]),
    (False, ["spec", "podGroupPolicy"]),
    (False, ["spec", "template"]),
    (False, ["spec", "template", "spec"]),
    (False, ["spec", "template", "spec", "failurePolicy"]),
]


@pytest.mark.parametrize(("is_job", "place"), PLACES)
def test_an_unknown_field_is_named_wherever_it_is(is_job: bool, place: list[Any]) -> None:
    job, known = own(), runtime()
    part = job if is_job else known
    for name in place:
        part = part.setdefault(name, {})
    part["tomorrow"] = 1
    path = ".".join(([] if is_job else ["runtime"]) + [*place, "tomorrow"])
    assert f"{path}: not carried over: 1: unknown field" in notes_of(job, known)


def test_every_job_is_converted_to_a_valid_one_or_refused_in_words() -> None:
    ended = {"converted": 0, "refused": 0}
    for number in range(JOBS):
        body, known = fuzzed_train_job(number)
        try:
            converted = convert(body, runtimes_of([known]))
        except InvalidJob as problem:
            assert "\n" not in str(problem) and len(str(problem)) < 1024, number
            ended["refused"] += 1
        else:
            assert api.validate(converted.job) == [], number
            assert all(str(note).isprintable() for note in converted.notes), number
            ended["converted"] += 1
    assert min(ended.values()) > JOBS / 5, ended
