"""TrainJobs as DDPJobs: runtimes, trainers, patches, and what Trainer would have done."""

from typing import Any

import pytest

from ddpjob.convert.objects import convert
from ddpjob.errors import InvalidJob
from tests.foreign import (
    IMAGE,
    conversions,
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
    assert "stands twice" not in "".join(notes_of(own(trainer=trainer), runtime(pod=pod)))


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


def processes(count: int | None, **resources: Any) -> tuple[Any, Any, Any]:
    """A job with these resources, its runtime, and the spec with this number of processes."""
    declared = {} if count is None else {"nprocPerNode": count}
    spec = {"resources": resources, **declared} if resources else declared
    return own(trainer={"resourcesPerNode": resources}), OWN, spec


def limited(jobset: Any = (), torch: Any = None) -> Any:
    """A runtime whose job restarts once, with other limits."""
    jobs = [replicated_job("node", "trainer", template("node"), backoffLimit=1)]
    policy = {"numNodes": 2, "torch": torch or {}}
    return runtime(jobset={"replicatedJobs": jobs, **dict(jobset)}, mlPolicy=policy)


def restarts(count: int) -> dict[str, Any]:
    """The fields of a spec with this limit of restarts."""
    return {"failurePolicy": {"maxRestarts": count}}


EIGHT: dict[str, Any] = {"limits": {"cpu": 8}}
PYTHON = {"command": ["python", "a.py"], "resourcesPerNode": EIGHT}
OTHER = {"targetJobs": [{"name": "dataset-initializer"}], "spec": {"nodeSelector": {"a": "b"}}}
LOADER = patch(spec={})
LOADER["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["name"] = "loader"
ELASTIC = {"elasticPolicy": {"minNodes": 2, "maxRestarts": 3}, "envInjection": {}}
HELD = {"suspend": True, "activeDeadlineSeconds": 60}
MANAGER = "trainer.kubeflow.org/trainjob-controller"
COSCHEDULING = runtime(podGroupPolicy={"coscheduling": {"scheduleTimeoutSeconds": 90}})
QUEUED = {"annotations": {"scheduling.volcano.sh/queue-name": "q", "a": "b"}}
VOLCANO = runtime(pod={**template("node"), "metadata": QUEUED})
NOTED_POD = {"template": {"metadata": {"annotations": {"a": "b"}}}}
# What a TrainJob with its runtime becomes beside the fields of PLAIN.
BECOMES: list[tuple[Any, Any, Any]] = [
    # Without GPUs `auto` is the number of CPUs in the requests, or else in the limits.
    processes(3, requests={"cpu": "2500m"}, limits={"cpu": 8}),
    processes(8, limits={"cpu": 8}),
    processes(None, limits={"memory": "1Gi"}),
    processes(None, limits={"cpu": 8, "nvidia.com/gpu": 2}),
    processes(None),
    (own(trainer={"numProcPerNode": 5}), OWN, {"nprocPerNode": 5}),
    (own(trainer={"numNodes": 3}), runtime(mlPolicy={"torch": {}}), {"nnodes": 3}),
    (own(trainer=PYTHON), OWN, {"launcher": "python", "args": ["a.py"], "resources": EIGHT}),
    (own(trainer={"args": ["--lr", "1"]}), OWN, {"args": ["train.py", "--lr", "1"]}),
    *((own(**{name: [patch]}), OWN, {"template": EXPECTED}) for name, patch in PATCHES.items()),
    (own(**HELD), OWN, HELD),
    (own(), runtime(jobset={"ttlSecondsAfterFinished": 9}), {"ttlSecondsAfterFinished": 9}),
    (own(), COSCHEDULING, {"startupDeadlineSeconds": 90}),
    (own(), VOLCANO, {"scheduling": {"queue": "q"}, **NOTED_POD}),
    (own(), limited(), restarts(1)),
    (own(), limited({"failurePolicy": {"maxRestarts": 2}}), restarts(2)),
    (own(), limited(torch=ELASTIC), {**restarts(3), "elastic": {"minNodes": 2}}),
    (own(trainer={"command": ["torchrun", "--max-restarts=4", "train.py"]}), OWN, restarts(4)),
]


@pytest.mark.parametrize(("job", "known", "expected"), BECOMES)
def test_what_a_trainjob_becomes(job: Any, known: Any, expected: Any) -> None:
    assert spec_of(job, known) == {**PLAIN, **expected}


NOTED: list[tuple[Any, Any, str]] = [
    (own(), OWN, "failurePolicy: changed: absent: the whole group restarts"),
    (own(podTemplateOverrides=[OTHER]), OWN, "spec: not carried over: {nodeSelector}: a DDPJob"),
    (own(runtimePatches=[LOADER]), OWN, "template: not carried over: {spec}: a DDPJob has no such"),
    (own(managedBy="x"), OWN, "managedBy: not carried over: 'x': it does not know DDPJobs"),
    (own(), limited({"failurePolicy": {"rules": [{}]}}), "failurePolicy.rules: not carried over"),
    (own(), limited({"successPolicy": {}}), "successPolicy: not carried over: {}: the JobSet's"),
    (own(), limited(torch=ELASTIC), "elasticPolicy.minNodes: changed: 2: is elastic.minNodes, the"),
    (own(), limited(torch=ELASTIC), "envInjection: not carried over"),
]


@pytest.mark.parametrize(("job", "known", "said"), NOTED)
def test_what_is_different_is_said(job: Any, known: Any, said: str) -> None:
    assert said in "\n".join(notes_of(job, known))
    assert "managedBy" not in " ".join(notes_of(own(managedBy=MANAGER), OWN))


def replaced(**pod: Any) -> Any:
    """A TrainJob with a patch of the pod's spec."""
    return own(runtimePatches=[patch(spec={"template": {"spec": pod}})])


def jobset_labels(labels: Any) -> Any:
    """A TrainJob with a patch of the JobSet's labels."""
    body = {"template": {"metadata": {"labels": labels}}}
    return own(runtimePatches=[{"manager": "me", "trainingRuntimeSpec": body}])


REFUSED: list[tuple[Any, Any, str]] = [
    (train_job("unknown"), OWN, "spec.runtimeRef.name: must be a runtime of the input, or torch-"),
    (own(), runtime(mlPolicy={"mpi": {}}), "runtime.spec.mlPolicy.mpi: must be absent, because a"),
    (own(), runtime(jobset={"replicatedJobs": []}), "must have a job with the label trainer.kube"),
    (own(), runtime(pod={}), "pod.spec.containers: must have a container with the name node"),
    (own(trainer={"command": ["tune", "run"]}), OWN, "trainer.command: must be whole: to tune"),
    (own(trainer={"numNodes": 0}), OWN, "DDPJob spec.nnodes: must be at least 1, got 0"),
    (own() | {"apiVersion": "trainer.kubeflow.org/v2"}, OWN, "must be trainer.kubeflow.org/v1al"),
    (replaced(containers=5), OWN, "pod.spec.containers: must be a list, got 5"),
    (jobset_labels("abc"), OWN, "trainingRuntimeSpec.template.metadata.labels: must be an object,"),
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
    job, known = own(trainer={"tomorrow": 1}), runtime(tomorrow=1)
    for path in ("spec.trainer", "runtime.spec"):
        assert f"{path}.tomorrow: not carried over: 1: unknown field" in notes_of(job, known)


def test_every_job_is_converted_to_a_valid_one_or_refused_in_words() -> None:
    assert len(list(conversions(map(fuzzed_train_job, range(JOBS))))) > JOBS / 5
