"""What of a spec may change when: every field, added, changed and removed, in every state.

Updates are dry runs, so one object per state and starting spec serves them all.
"""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ddpjob.api import MUTABLE_FIELDS, Spec
from ddpjob.json_depth import Body
from tests.bad_input import definition
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import MERGE, Client

REFUSAL = "cannot change once the job has started; suspend it first"

# Before the first pod, and when the last one is gone; Suspending is spec.suspend with pods left.
FREE = ("NotStarted", "Pending", "Queued", "Suspended")
FIXED = ("Starting", "Running", "Restarting", "Idle", "Suspending", "Succeeded", "Failed")

# Of each field what `FULL` holds and another value. Both differ from the default.
VALUES: dict[str, tuple[Any, Any]] = {
    "image": ("trainer:1", "trainer:2"),
    "imagePullPolicy": ("Always", "Never"),
    "imagePullSecrets": ([{"name": "a"}], [{"name": "a"}, {"name": "b"}]),
    "launcher": ("none", "torchrun"),
    "command": (["python3", "train.py"], ["python3", "other.py"]),
    "nnodes": (2, 3),
    "nprocPerNode": (2, "auto"),
    "backend": ("gloo", "nccl"),
    "masterPort": (29600, 29700),
    "spares": (1, 2),
    "sparePriorityClassName": ("a", "b"),
    "elastic": ({"minNodes": 1}, {"minNodes": 2}),
    "envFrom": ([{"configMapRef": {"name": "a"}}], [{"secretRef": {"name": "a"}}]),
    "resources": ({"limits": {"cpu": 1}}, {"limits": {"cpu": 2}}),
    "volumes": ([{"name": "a", "emptyDir": {}}], [{"name": "a", "configMap": {"name": "b"}}]),
    "volumeMounts": ([{"name": "a", "mountPath": "/a"}], [{"name": "a", "mountPath": "/b"}]),
    "networkPolicy": ({"enabled": False}, {"enabled": True, "egress": []}),
    "shm": ({"enabled": True, "sizeLimit": "1Gi"}, {"enabled": True, "sizeLimit": "2Gi"}),
    "warmStart": ({"enabled": True, "modules": ["a"]}, {"enabled": True, "modules": ["b"]}),
    "checkpoint": (
        {"volume": {"emptyDir": {}}, "mountPath": "/checkpoints"},
        {"volume": {"emptyDir": {}}, "mountPath": "/elsewhere"},
    ),
    "data": (
        {"volume": {"persistentVolumeClaim": {"claimName": "a"}}, "mountPath": "/data"},
        {"volume": {"persistentVolumeClaim": {"claimName": "b"}}, "mountPath": "/data"},
    ),
    "master": ({"image": "trainer:3"}, {"image": "trainer:3", "resources": {"limits": {"cpu": 4}}}),
    "progress": ("file", "auto"),
    "scheduling": ({"gang": "Auto", "queue": "a"}, {"gang": "Auto", "queue": "b"}),
    "successPolicy": ("Rank0", "All"),
    "startupDeadlineSeconds": (60, 600),
    "hangTimeoutSeconds": (300, 600),
    "keepSeconds": (60, 600),
    "nodeTimeoutSeconds": (20, 30),
    "managedBy": ("ddpjob.dev/operator", "example.com/other"),
    "terminationGracePeriodSeconds": (30, 90),
}
ALWAYS: dict[str, tuple[Any, Any]] = {
    "args": (["train.py"], ["train.py", "--epochs=3"]),
    "env": ([{"name": "SEED", "value": "1"}], [{"name": "SEED", "value": "2"}]),
    "code": (
        {"configMaps": ["a"], "sha256": "0" * 64, "mountPath": "/src"},
        {"configMaps": ["a"], "sha256": "1" * 64, "mountPath": "/src"},
    ),
    "suspend": (True, False),
    "failurePolicy": (
        {"maxRestarts": 5, "restartStrategy": "InPlace"},
        {"maxRestarts": 5, "restartStrategy": "Recreate"},
    ),
    "cleanPodPolicy": ("All", "None"),
    "activeDeadlineSeconds": (600, 6000),
    "ttlSecondsAfterFinished": (60, 0),
    # The API server cannot compare an open subtree; the operator restarts for it.
    "template": ({"metadata": {"labels": {"a": "b"}}}, {"metadata": {"labels": {"a": "c"}}}),
}
REQUIRED = ("image",)

FULL: Body = {name: before for name, (before, _) in VALUES.items()}
BARE: Body = {"image": "trainer:1", "args": ["train.py"]}
WITHOUT_ARGS: Body = {"image": "trainer:1", "command": ["python3", "train.py"]}
SCRIPT: Body = {**FULL, "launcher": "torchrun", "args": ["train.py"]}  # needs no command
STARTS = {"full": FULL, "bare": BARE, "without-args": WITHOUT_ARGS, "script": SCRIPT}


def changes(values: dict[str, tuple[Any, Any]], full: str) -> Iterator[tuple[str, str, str, Any]]:
    """(operation, the spec it starts from, field, what a merge patch sets it to)."""
    for field, (before, after) in values.items():
        yield "change", full, field, after
        if field not in REQUIRED:
            yield "remove", "script" if field == "command" else full, field, None
            yield "add", "without-args" if field == "args" else "bare", field, before


@pytest.fixture(scope="module", autouse=True)
def kind(api_server: ApiServer, request: pytest.FixtureRequest) -> None:
    definition.apply(api_server)
    request.getfixturevalue("crd")


@pytest.fixture(scope="module")
def jobs(api_server: ApiServer) -> Iterator[str]:
    """The collection's path, in a namespace of this module's own."""
    namespace = f"immutable-{uuid.uuid4().hex[:8]}"
    api_server.create_namespace(namespace)
    yield f"/apis/ddpjob.dev/v1alpha1/namespaces/{namespace}/ddpjobs"
    api_server.request("DELETE", f"/api/v1/namespaces/{namespace}")


async def create(client: Client, jobs: str, state: str, name: str, spec: Body) -> str:
    """A job in this state, as the operator would leave it; its path."""
    if state in ("Suspending", "Suspended"):
        spec = {**spec, "suspend": True}
    body: Body = {"apiVersion": "ddpjob.dev/v1alpha1", "kind": "DDPJob", "spec": spec}
    body["metadata"] = {"name": f"{name}-{state.lower()}"}
    stored = await client.request("POST", jobs, body)
    path = f"{jobs}/{stored['metadata']['name']}"
    if state != "NotStarted":
        status = {"state": "Running" if state == "Suspending" else state, "attempt": 0}
        await client.request("PUT", f"{path}/status", {**stored, "status": status})
    return path


async def verdict(client: Client, path: str, spec: Body) -> str:
    """Fields, separated by blanks, that the API server says cannot change; empty if it agrees."""
    try:
        await client.request("PATCH", f"{path}?dryRun=All", {"spec": spec}, content_type=MERGE)
    except ApiError as error:
        assert error.code == 422, error
        causes = json.loads(str(error).partition(": ")[2])["details"]["causes"]
        assert all(REFUSAL in cause["message"] for cause in causes), causes
        return " ".join(cause["field"] for cause in causes)
    return ""


def test_the_matrix_knows_every_field() -> None:
    fields = {field.alias or name for name, field in Spec.model_fields.items()}
    assert fields == VALUES.keys() | ALWAYS.keys()
    assert set(ALWAYS) == {*MUTABLE_FIELDS, "template"}


@pytest.mark.parametrize("state", [*FREE, *FIXED])
async def test_a_field_changes_only_while_nothing_runs(
    client: Client, jobs: str, state: str
) -> None:
    paths = {name: await create(client, jobs, state, name, spec) for name, spec in STARTS.items()}
    matrix = list(changes(VALUES, "full"))
    assert len(matrix) == 3 * len(VALUES) - 2 * len(REQUIRED)
    told = [
        await verdict(client, paths[start], {field: value}) for _, start, field, value in matrix
    ]
    expected = ["" if state in FREE else f"spec.{field}" for _, _, field, _ in matrix]
    wrong = [
        f"{operation} {field}: {said or 'accepted'}"
        for (operation, _, field, _), said, want in zip(matrix, told, expected, strict=True)
        if said != want
    ]
    assert wrong == []


@pytest.mark.parametrize("state", [*FREE, *FIXED])
async def test_some_fields_change_at_any_time(client: Client, jobs: str, state: str) -> None:
    changed = {**FULL, **{field: before for field, (before, _) in ALWAYS.items()}}
    paths = {
        "changed": await create(client, jobs, state, "changed", changed),
        "bare": await create(client, jobs, state, "always-bare", BARE),
        "without-args": await create(client, jobs, state, "always-argless", WITHOUT_ARGS),
    }
    for operation, start, field, value in changes(ALWAYS, "changed"):
        said = await verdict(client, paths[start], {field: value})
        assert said == "", f"{operation} {field}"


@pytest.fixture
async def running(client: Client, jobs: str) -> AsyncIterator[str]:
    path = await create(client, jobs, "Running", f"edit-{uuid.uuid4().hex[:8]}", FULL)
    yield path
    await client.request("DELETE", path)


async def test_what_says_the_same_is_no_change(client: Client, running: str) -> None:
    stored = await client.request("GET", running)
    same = {**stored["spec"], "env": list(reversed(stored["spec"]["env"]))}
    assert await verdict(client, running, same) == ""
    labels = {"metadata": {"labels": {"team": "vision"}}}
    after = await client.request("PATCH", running, labels, content_type=MERGE)
    assert after["metadata"]["generation"] == stored["metadata"]["generation"]


async def test_removing_the_status_does_not_open_a_running_job(
    client: Client, running: str
) -> None:
    stored = await client.request("GET", running)
    stored["spec"]["nnodes"] = 3
    del stored["status"]
    with pytest.raises(ApiError, match=REFUSAL):
        await client.request("PUT", running, stored)
