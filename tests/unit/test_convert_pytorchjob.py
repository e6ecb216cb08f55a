"""PyTorchJobs as DDPJobs: replicas, policies, what is lost, and what cannot be one job."""

from typing import Any

import orjson
import pytest

from ddpjob import api
from ddpjob.convert.fields import cleaned
from ddpjob.convert.objects import Converted, convert
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.overlay import MERGE_KEYS, is_keyed
from tests.foreign import (
    PYTORCH_SPEC,
    conversions,
    everything,
    fuzzed_pytorch_job,
    note_at,
    notes_of,
    pytorch_job,
    spec_of,
    template,
)

JOBS = 1500
LOW = template(pod_priorityClassName="low")
NEVER, ALWAYS = {"restartPolicy": "Never"}, {"restartPolicy": "Always"}
RUN_POLICY = {
    "cleanPodPolicy": "All",
    "ttlSecondsAfterFinished": 60,
    "activeDeadlineSeconds": 3600,
    "suspend": True,
}


def high(**fields: Any) -> Any:
    """A PyTorchJob whose pod group has a priority class."""
    return pytorch_job(runPolicy={"schedulingPolicy": {"priorityClass": "high"}}, **fields)


def restarts(count: int) -> Body:
    """The fields of a spec with this limit of restarts."""
    return {"failurePolicy": {"maxRestarts": count}}


def two(worker: Body, master: Body) -> Any:
    """A PyTorchJob whose Worker and Master have these fields in their templates."""
    return pytorch_job(
        worker={"template": template(**worker)}, master={"template": template(**master)}
    )


ROLES = {"nnodes": 4, "successPolicy": "Rank0"}
CPUS = {"limits": {"cpu": 4}}
PORTS = [{"ports": [{"name": "pytorchjob-port", "containerPort": port}]} for port in (2000, 3000)]
RANKS = [{"command": ["torchrun", f"--node_rank={rank}", "train.py"]} for rank in (1, 0)]
# What a PyTorchJob becomes beside the fields of PYTORCH_SPEC, and a part of the notes.
BECOMES: list[tuple[Body, Body, str]] = [
    (pytorch_job(), {}, "Worker.restartPolicy: changed: OnFailure: the whole group restarts"),
    (pytorch_job(master={}), ROLES, ""),
    (two({}, {"image": "other:1"}), {**ROLES, "master": {"image": "other:1"}}, ""),
    (two({"resources": CPUS}, {}), {**ROLES, "resources": CPUS, "master": {"resources": {}}}, ""),
    (two(*RANKS), ROLES, "command: changed: --node_rank: left out"),
    (two(*PORTS), {**ROLES, "masterPort": 3000}, ""),
    (pytorch_job(worker={"replicas": 0}, master={}), {"nnodes": 1}, "there are no replicas"),
    (pytorch_job(worker=ALWAYS), {}, "not carried over: Always: a rank that has ended well"),
    (pytorch_job(worker=NEVER), restarts(0), "Never: after a failure the job fails"),
    (pytorch_job(worker=NEVER, runPolicy={"backoffLimit": 5}), restarts(0), "5: another field"),
    (
        pytorch_job(worker=NEVER, master=ALWAYS),
        {**ROLES, **restarts(0)},
        "Never: counts for the Master too",
    ),
    (
        pytorch_job(runPolicy={"backoffLimit": 5}),
        restarts(5),
        "backoffLimit: changed: 5: is failurePolicy.maxRestarts, which counts restarts of the",
    ),
    (
        pytorch_job(elasticPolicy={"maxRestarts": 7}, runPolicy={"backoffLimit": 5}),
        restarts(7),
        "backoffLimit: not carried over: 5: another field",
    ),
    (
        pytorch_job(
            worker={"template": template(command=["torchrun", "--max-restarts=9", "train.py"])},
            elasticPolicy={"maxRestarts": 7},
        ),
        restarts(9),
        "",
    ),
    (pytorch_job(runPolicy=RUN_POLICY), RUN_POLICY, ""),
    (
        pytorch_job(runPolicy={"schedulingPolicy": {"scheduleTimeoutSeconds": 600}}),
        {"startupDeadlineSeconds": 600},
        "600: is startupDeadlineSeconds, which also covers the pull of images",
    ),
    (
        high(),
        {"template": {"spec": {"priorityClassName": "high"}}},
        "priorityClass: changed: 'high': is template.spec.priorityClassName",
    ),
    (high(worker={"template": LOW}), {"template": {"spec": {"priorityClassName": "low"}}}, ""),
    (
        pytorch_job(runPolicy={"schedulingPolicy": {"queue": "q", "minResources": {"cpu": 3}}}),
        {"scheduling": {"queue": "q"}},
        "schedulingPolicy.minResources: not carried over: {cpu}: a gang is all pods of the job",
    ),
    (
        pytorch_job(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}),
        {},
        "managedBy: not carried over: 'kueue.x-k8s.io/multikueue': it does not know DDPJobs",
    ),
    (pytorch_job(elasticPolicy={"nProcPerNode": 4}), {"nprocPerNode": 4}, ""),
    (
        pytorch_job(elasticPolicy={"minReplicas": 1, "standalone": True}),
        {"elastic": {"minNodes": 1}},
        "elasticPolicy.minReplicas: changed: 1: is elastic.minNodes, the group waits",
    ),
    (
        pytorch_job(elasticPolicy={"maxReplicas": 9}),
        {},
        "elasticPolicy.maxReplicas: not carried over: 9: nnodes is the largest size",
    ),
    (pytorch_job(runPolicy={"suspend": False}, nprocPerNode=None), {}, ""),
]


@pytest.mark.parametrize(("body", "expected", "said"), BECOMES)
def test_what_a_pytorchjob_becomes(body: Any, expected: Any, said: str) -> None:
    assert spec_of(body) == PYTORCH_SPEC | expected
    assert said in "\n".join(notes_of(body))


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
    assert "Kueue admits the job where the chart has kueue.enabled" in note_at(
        converted, "queue-name"
    )


def test_a_job_that_is_suspended_for_kueue_waits_for_it_by_itself() -> None:
    job = pytorch_job(runPolicy={"suspend": True})
    assert spec_of(job)["suspend"] is True
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert "suspend" not in spec_of(job)
    assert "suspend: changed: true: left out" in "\n".join(notes_of(job))


def test_exit_codes_below_128_are_permanent_with_restart_policy_exit_code() -> None:
    job = pytorch_job(worker={"restartPolicy": "ExitCode"}, runPolicy={"backoffLimit": 2})
    policy = spec_of(job)["failurePolicy"]
    codes = [code for rule in policy["rules"] for code in rule["onExitCodes"]]
    assert codes == list(range(1, 128)) and policy["maxRestarts"] == 2
    assert {rule["action"] for rule in policy["rules"]} == {"FailJob"}


DIFFERENCES: list[tuple[Body, Body, str]] = [
    ({"env": [{"name": "A", "value": "1"}]}, {}, "Master.template.spec.containers[pytorch].env"),
    ({}, {"workingDir": "/src"}, "[pytorch].workingDir"),
    ({}, {"pod_volumes": [{"name": "a", "emptyDir": {}}]}, "Master.template.spec.volumes"),
    ({}, {"pod_containers": [{"name": "side", "image": "s:1"}]}, "spec.containers"),
    ({"pod_terminationGracePeriodSeconds": 5}, {}, "spec.terminationGracePeriodSeconds"),
]


@pytest.mark.parametrize(("worker", "master", "path"), DIFFERENCES)
def test_rank_0_gets_what_the_workers_have_and_that_is_said(
    worker: Body, master: Body, path: str
) -> None:
    body = two(worker, master)
    assert "master" not in spec_of(body)
    said = f"{path}: not carried over: rank 0 gets what the Worker has; see spec.master.template"
    assert any(note.endswith(said) for note in notes_of(body))


TWICE = dict.fromkeys(("Worker", "worker"), {"template": template()})
REFUSED: list[tuple[Any, str]] = [
    (pytorch_job(worker={"replicas": 0}), "spec.pytorchReplicaSpecs: must have a Master, or a"),
    (pytorch_job(worker={"replicas": -1}), "Worker.replicas: must be at least 0, got -1"),
    (pytorch_job(worker={"replicas": "2"}), "Worker.replicas: must be an integer, got '2'"),
    (pytorch_job(master={"replicas": 2}), "Master.replicas: must be 1, got 2"),
    (pytorch_job(worker={"restartPolicy": "x"}), "must be one of Always, OnFailure, Never, Exit"),
    (pytorch_job(pytorchReplicaSpecs={"Chief": {}}), "Chief: must be Master or Worker, each once"),
    (pytorch_job(pytorchReplicaSpecs=TWICE), "worker: must be Master or Worker, each once, got"),
    (pytorch_job(runPolicy={"cleanPodPolicy": ""}), "DDPJob spec.cleanPodPolicy: must be one of"),
    (pytorch_job(runPolicy=[]), "spec.runPolicy: must be an object, got []"),
    (
        two({"resources": {"limits": {"nvidia.com/gpu": 8}}}, {}),
        "must have as many GPUs as spec",
    ),
    (two({}, {"args": ["x"]}), "Worker.template.spec.containers[pytorch].command: must be as in"),
    (pytorch_job(worker={"template": template("main")}), "must have a container with the name"),
    (pytorch_job() | {"metadata": {"generateName": "a-"}}, "metadata.name: is required: a DDPJob"),
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


def test_an_unknown_field_is_named_wherever_it_is() -> None:
    worker = "spec.pytorchReplicaSpecs.Worker"
    for path in ("", "spec", "spec.runPolicy", worker, f"{worker}.template"):
        job = part = pytorch_job()
        for name in path.split(".") if path else []:
            part = part.setdefault(name, {})
        part["tomorrow"] = 1
        lost = f"{path}.tomorrow: not carried over: 1: unknown field"
        assert lost.strip(".") in notes_of(job)


def test_what_both_roles_have_is_said_once() -> None:
    pod = template(env=[{"name": "RANK", "value": "0"}])
    notes = notes_of(pytorch_job(worker={"template": pod}, master={"template": pod}))
    (note,) = [note for note in notes if "env[RANK]" in note]
    assert note.startswith("spec.pytorchReplicaSpecs.*.template.spec.containers[pytorch].env[RANK]")


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
    cases = ((fuzzed_pytorch_job(number), None) for number in range(JOBS))
    found = [is_in_the_pods_or_named(*each) for each in conversions(cases)]
    assert all(found) and len(found) > JOBS / 5
