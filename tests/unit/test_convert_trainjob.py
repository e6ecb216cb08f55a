"""TrainJobs as DDPJobs: runtimes, trainers, patches, and what Trainer would have done."""

from typing import Any

import pytest

from ddpjob import api
from ddpjob.convert.objects import convert
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
NODES = [replicated_job("node", "trainer", template("node"))]
PLAIN = {"image": IMAGE, "args": ["train.py"], "nnodes": 2}


def own(**spec: Any) -> Any:
    """A TrainJob of the runtime `own`."""
    return train_job("own", **spec)


def test_a_runtime_of_the_input() -> None:
    assert spec_of(own(), OWN) == PLAIN
    assert "absent: the whole group restarts" in " ".join(notes_of(own(), OWN))


def test_a_runtime_that_trainer_ships() -> None:
    job = train_job(trainer={"command": ["torchrun", "train.py"], "numNodes": 3})
    spec = spec_of(job)
    assert spec.pop("image").startswith("pytorch/pytorch:")
    assert spec == {"args": ["train.py"], "nnodes": 3}
    assert "as Kubeflow Trainer v2.3.0 has it" in note_at(convert(job), "runtimeRef.name")


def test_other_jobs_and_claims_of_a_runtime_are_left_to_the_user() -> None:
    jobs = [replicated_job("loader", "dataset-initializer", template("loader")), *NODES]
    claims = [{"templates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "x"}}]}]
    known = runtime(jobset={"replicatedJobs": jobs, "volumeClaimPolicies": claims})
    job = own(initializer={"dataset": {"storageUri": "hf://a/b"}})
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data-digits"}}
    assert spec_of(job, known) == {**PLAIN, "volumes": [claim]}
    notes = " ".join(notes_of(job, known))
    assert "claim 'data-digits' must be there" in notes and "unknown field" not in notes
    assert "replicatedJobs[loader]: not carried over: a DDPJob is one group" in notes
    assert "initializer.dataset: not carried over: {storageUri}: ddpjob loads nothing" in notes


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


def test_a_trainers_command_keeps_the_runtimes_args() -> None:
    pod = template("node", args=["--lr", "1"])
    spec = spec_of(own(trainer={"command": ["torchrun", "a.py"]}), runtime(pod=pod))
    assert spec["args"] == ["a.py", "--lr", "1"]


def patch(*, manager: str = "me", **job: Any) -> dict[str, Any]:
    """A runtime patch of the job `node`."""
    body = {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}
    return {"manager": manager, "time": "now", "trainingRuntimeSpec": {"template": body}}


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


PATCHES: dict[str, Any] = {
    "podSpecOverrides": {"targetJobs": [{"name": "node"}], **OVERLAY},
    "podTemplateOverrides": {"targetJobs": [{"name": "node"}], "spec": OVERLAY},
    "runtimePatches": patch(spec={"template": {"spec": OVERLAY}}),
}


@pytest.mark.parametrize("field", PATCHES)
def test_patches_of_each_version(field: str) -> None:
    assert spec_of(own(**{field: [PATCHES[field]]}), OWN) == {**PLAIN, "template": EXPECTED}


def test_metadata_of_patches() -> None:
    pods = {"template": {"metadata": {"labels": {"pod": "1"}}}}
    runtime_patch = patch(metadata={"labels": {"job": "1"}}, spec=pods)
    jobset = {"labels": {"set": "1"}, "annotations": {"note": "1"}}
    runtime_patch["trainingRuntimeSpec"]["template"]["metadata"] = jobset
    job = own(runtimePatches=[runtime_patch], labels={"old": "1"})
    job["metadata"]["labels"] = {"set": "2"}
    converted = convert(job, [OWN])
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
    assert "it does not know DDPJobs" in note_at(convert(job, [OWN]), "managedBy")
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


def replaced(**pod: Any) -> Any:
    """A TrainJob with a patch of the pod's spec."""
    return own(runtimePatches=[patch(spec={"template": {"spec": pod}})])


def jobset_labels(labels: Any) -> Any:
    """A TrainJob with a patch of the JobSet's labels."""
    body = {"template": {"metadata": {"labels": labels}}}
    return own(runtimePatches=[{"manager": "me", "trainingRuntimeSpec": body}])


REFUSED: list[tuple[Any, Any, str]] = [
    (train_job("unknown"), OWN, "spec.runtimeRef.name: must be a runtime of the input, or torch-"),
    (own(runtimeRef={}), OWN, "spec.runtimeRef.name: must be a runtime of the input"),
    (own(runtimeRef={"name": "own", "kind": "x"}), OWN, "must be a runtime of the input, or torch"),
    (own(), runtime(mlPolicy={"mpi": {}}), "runtime.spec.mlPolicy.mpi: must be absent, because a"),
    (own(), runtime(jobset={"replicatedJobs": []}), "must have a job with the label trainer.kube"),
    (own(), runtime(pod={}), "pod.spec.containers: must have a container with the name node"),
    (own(trainer={"command": ["tune", "run"]}), OWN, "trainer.command: must be whole: to tune"),
    (own(trainer={"numNodes": 0}), OWN, "DDPJob spec.nnodes: must be at least 1, got 0"),
    (own(trainer={"numNodes": "2"}), OWN, "spec.trainer.numNodes: must be an integer, got '2'"),
    (own(trainer={"env": [1]}), OWN, "env[0]: must be an object, got 1"),
    (own() | {"apiVersion": "trainer.kubeflow.org/v2"}, OWN, "must be trainer.kubeflow.org/v1al"),
    (replaced(containers=5), OWN, "pod.spec.containers: must be a list, got 5"),
    (replaced(containers=[{"name": "node", "env": [{"name": []}]}]), OWN, "env[0].name: must be a"),
    (jobset_labels("abc"), OWN, "trainingRuntimeSpec.template.metadata.labels: must be an object,"),
    (own(), runtime(pod={"spec": {"containers": 5}}), "pod.spec.containers: must be a list, got 5"),
    (
        own(trainer={"resourcesPerNode": {"limits": {"cpu": "1" + "0" * 400}}}),
        OWN,
        "DDPJob spec.resources.limits.cpu: must be a quantity, not negative, such as 2",
    ),
]


@pytest.mark.parametrize(("body", "known", "rule"), REFUSED)
def test_what_can_be_no_ddpjob_is_refused_with_the_reason(body: Any, known: Any, rule: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        convert(body, [known])
    assert rule in str(refused.value)


def test_an_unknown_field_is_named_wherever_it_is() -> None:
    for is_job, path in (
        *((True, path) for path in ("spec", "spec.runtimeRef", "spec.trainer")),
        *((False, path) for path in ("spec", "spec.mlPolicy", "spec.mlPolicy.torch")),
        (False, "spec.template"),
    ):
        job, known = own(), runtime()
        part = job if is_job else known
        for name in path.split("."):
            part = part.setdefault(name, {})
        part["tomorrow"] = 1
        where = path if is_job else f"runtime.{path}"
        assert f"{where}.tomorrow: not carried over: 1: unknown field" in notes_of(job, known)


def test_every_job_is_converted_to_a_valid_one_or_refused_in_words() -> None:
    ended = {"converted": 0, "refused": 0}
    for number in range(JOBS):
        body, known = fuzzed_train_job(number)
        try:
            converted = convert(body, [known])
        except InvalidJob as problem:
            assert "\n" not in str(problem) and len(str(problem)) < 1024, number
            ended["refused"] += 1
        else:
            assert api.validate(converted.job) == [], number
            assert all(str(note).isprintable() for note in converted.notes), number
            ended["converted"] += 1
    assert min(ended.values()) > JOBS / 5, ended
