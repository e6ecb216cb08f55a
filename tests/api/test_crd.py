"""The CRD as an API server without anything else of ours takes it, stores by it and explains it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob.api import read_status, with_defaults
from ddpjob.api.crd import COLUMNS, crd
from ddpjob.json_depth import Body
from tests.bad_input import definition
from tests.builders import job_object
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.tiers import ROOT, skipping_where_unavailable

JOBS = "/apis/ddpjob.dev/v1alpha1/namespaces/default/ddpjobs"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATIONS = 256 * 1024  # bytes of all annotations of an object together


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server of this module's own, so that the CRD is new to it."""
    with skipping_where_unavailable():
        server = ApiServer(scheduler=False, controller_manager=False)
    with server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def applied(server: ApiServer) -> str:
    """What kubectl says to the first, plain apply."""
    return definition.apply(server)


def test_plain_apply_creates_the_definition_and_changes_nothing_later(
    server: ApiServer, applied: str
) -> None:
    # Creation also proves that the API server's estimate of what the rules cost stays in bounds.
    assert applied == "customresourcedefinition.apiextensions.k8s.io/ddpjobs.ddpjob.dev created\n"
    assert definition.apply(server).endswith(" unchanged\n")


def test_the_definition_leaves_room_in_the_annotation_of_apply(server: ApiServer) -> None:
    stored = server.request("GET", definition.PATH)
    assert len(stored["metadata"]["annotations"][LAST_APPLIED]) < MAX_ANNOTATIONS / 2
    assert len(json.dumps(crd())) < 128 * 1024


def test_the_structural_schema_is_sound(server: ApiServer) -> None:
    conditions = server.request("GET", definition.PATH)["status"]["conditions"]
    states = {condition["type"]: condition["status"] for condition in conditions}
    assert states["NamesAccepted"] == "True"
    assert states.get("NonStructuralSchema", "False") == "False"


DEFAULTED: Mapping[str, Body] = {
    "least": {},
    "nulls": {
        "nnodes": None,
        "shm": {"enabled": None, "sizeLimit": None},
        "checkpoint": None,
        "resources": {"limits": {"cpu": None}, "requests": None},
        "env": [{"name": "A", "value": None}],
    },
    "empty-objects": {"shm": {}, "failurePolicy": {}, "resources": {}, "template": {}},
    "nested": {
        "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "ckpt"}}},
        "data": {"volume": {"emptyDir": {}}},
        "volumes": [{"name": "a", "configMap": {"name": "b"}}],
        "volumeMounts": [{"name": "a", "mountPath": "/a"}],
        "envFrom": [{"configMapRef": {"name": "b"}}],
        "resources": {"limits": {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": "1"}},
        "template": {"spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": []}},
    },
}


@pytest.mark.parametrize("name", DEFAULTED)
def test_the_api_server_stores_the_defaults_that_the_models_fill_in(
    server: ApiServer, name: str
) -> None:
    wanted = job_object(name, **DEFAULTED[name])
    assert server.request("POST", JOBS, wanted)["spec"] == with_defaults(wanted)["spec"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_stored_as_the_models_read_them(server: ApiServer, example: Path) -> None:
    for wanted in yaml.safe_load_all(example.read_text()):
        if wanted["kind"] == "DDPJob":
            stored = server.request("POST", f"{JOBS}?dryRun=All", wanted)
            assert stored["spec"] == with_defaults(wanted)["spec"]


def test_kubectl_get_shows_what_a_job_does_why_and_where(server: ApiServer) -> None:
    stored = server.request("POST", JOBS, job_object("why"))
    why = "Signal r1 (why-0-1 on gpu-17): killed by SIGKILL"
    summary = {"nodes": "1/2", "step": "1240/2260", "loss": "0.0831", "eta": "14s", "reason": why}
    summary |= {"pod": "why-0-1", "node": "gpu-17", "attempt": "0.1"}
    status = {"state": "Restarting", "summary": summary, "restarts": 1}
    server.request("PUT", f"{JOBS}/why/status", {**stored, "status": status})
    head, row = server.kubectl("get", "ddp", "why").splitlines()
    titles = ["NAME", "STATE", "NODES", "STEP", "LOSS", "ETA", "RESTARTS", "AGE", "REASON"]
    assert head.split() == titles == ["NAME", *map(str.upper, COLUMNS)]
    assert row.split()[:7] == ["why", "Restarting", "1/2", "1240/2260", "0.0831", "14s", "1"]
    assert row.endswith(why) and "gpu-17 " not in row
    head, row = server.kubectl("get", "ddp", "why", "-o", "wide").splitlines()
    assert head.split()[-5:] == ["REASON", "ATTEMPT", "POD", "NODE", "IMAGE"]
    assert row.split()[-4:] == ["0.1", "why-0-1", "gpu-17", "trainer:1"] and why in row


def test_a_curve_and_a_traceback_are_stored_as_they_are_written(server: ApiServer) -> None:
    stored = server.request("POST", JOBS, job_object("curve"))
    numbers = [0.08314, 2.0, 1e-5, 1.234e-9, 123500, 1e15, 1e20, 1.797e308, -0.5]
    points = [[step, number, 5500.5] for step, number in enumerate(numbers)]
    points += [[step, 0.5] for step in range(100, 64 + 100 - len(points))]
    trace = "Traceback (most recent call last):\n\tstep()\nValueError: \U0001f525"
    failure = {"attempt": 0, "round": 0, "reason": "Exception", "message": "", "traceback": trace}
    wanted = read_status({"state": "Running", "curve": points, "failure": failure})
    body = {**stored, "status": wanted.to_json()}
    found = server.request("PUT", f"{JOBS}/curve/status", body)["status"]
    assert found["failure"] == failure and len(found["curve"]) == 64
    assert read_status(found) == wanted
    assert read_status(found).curve == points and len(json.dumps(found["curve"])) < 4096


@pytest.mark.parametrize("wrong", [[[1]], [[1, 2, 3, 4]], [[1, "2"]], [1, 2], [[1, 2]] * 65])
def test_a_curve_of_another_kind_is_refused(server: ApiServer, wrong: list[Any]) -> None:
    stored = server.request("POST", JOBS, {**job_object("x"), "metadata": {"generateName": "odd-"}})
    path = f"{JOBS}/{stored['metadata']['name']}/status"
    with pytest.raises(ApiError, match=r"422.*status.curve"):
        server.request("PUT", path, {**stored, "status": {"curve": wrong}})


@pytest.mark.parametrize(
    ("field", "words"),
    [("spec.checkpoint.volume", "DESCRIPTION:"), ("metadata.name", "Name must be unique")],
)
def test_kubectl_explain_describes_the_fields(server: ApiServer, field: str, words: str) -> None:
    assert words in server.kubectl("explain", f"ddpjob.{field}")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicas": 2}, "spec.replicas"),
        (
            {"volumes": [{"name": "a", "emptyDir": {"sizelimit": "1Gi"}}]},
            "spec.volumes[0].emptyDir.sizelimit",
        ),
    ],
)
def test_unknown_fields_are_refused_where_asked_and_dropped_elsewhere(
    server: ApiServer, spec: Body, field: str
) -> None:
    odd = job_object("x", **spec)
    with pytest.raises(ApiError, match="strict decoding error: unknown field") as refused:
        server.request("POST", f"{JOBS}?fieldValidation=Strict&dryRun=All", odd)
    assert field in str(refused.value)
    stored = server.request("POST", f"{JOBS}?fieldValidation=Ignore&dryRun=All", odd)
    assert field.rsplit(".", 1)[1] not in json.dumps(stored["spec"])


def test_the_overlay_is_kept_as_it_is(server: ApiServer) -> None:
    template = {"spec": {"anything": [{"goes": None}], "n": 1.5}}
    stored = server.request("POST", f"{JOBS}?dryRun=All", job_object("overlay", template=template))
    assert stored["spec"]["template"] == template


def test_who_writes_the_spec_cannot_write_the_status_and_vice_versa(server: ApiServer) -> None:
    stored = server.request(
        "POST", JOBS, {**job_object("status"), "status": {"state": "Succeeded"}}
    )
    assert "status" not in stored
    assert stored["metadata"]["generation"] == 1
    changed = {**stored, "spec": {**stored["spec"], "nnodes": 7}, "status": {"state": "Running"}}
    stored = server.request("PUT", f"{JOBS}/status/status", changed)
    assert stored["spec"]["nnodes"] == 1
    assert stored["status"]["state"] == "Running"
    assert stored["metadata"]["generation"] == 1
    changed = {**stored, "spec": {**stored["spec"], "suspend": True}, "status": {"state": "Failed"}}
    stored = server.request("PUT", f"{JOBS}/status", changed)
    assert stored["spec"]["suspend"] is True
    assert stored["status"]["state"] == "Running"
    assert stored["metadata"]["generation"] == 2


def test_a_status_that_the_schema_does_not_know_is_refused(server: ApiServer) -> None:
    stored = server.request("POST", JOBS, job_object("strange"))
    with pytest.raises(ApiError, match=r"422.*status.state.*Unsupported value"):
        status = {"state": "Confused"}
        server.request("PUT", f"{JOBS}/strange/status", {**stored, "status": status})
