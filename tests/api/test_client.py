"""The SDK's client against a real API server: requests, lists, watches, waiting, and rights."""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpjob import Client, DDPJob, names
from ddpjob.cluster import DDPJOBS
from ddpjob.documents import to_yaml
from ddpjob.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    InvalidJob,
    JobFailed,
    JobRefused,
    JobTimeout,
    LoginFailed,
    NotFound,
    NotInstalled,
    Refused,
    Unavailable,
)
from tests.api.reading import client as client  # noqa: PLC0414
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer

JOB: dict[str, Any] = job_object("digits", nnodes=2)


@pytest.fixture
def write_status(api_server: ApiServer, namespace: str) -> Callable[..., None]:
    """Write parts of a job's status, as an operator does."""

    def write(name: str = "digits", **status: Any) -> None:
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/status"
        api_server.request("PATCH", path, {"status": status}, kind="merge-patch+json")

    return write


def test_a_job_is_created_read_listed_and_deleted(client: Client, namespace: str) -> None:
    job = client.submit(JOB)
    assert (job.name, job.namespace, job.state, job.user) == (
        "digits",
        namespace,
        "Pending",
        "admin",
    )
    assert client.job("digits").uid == job.uid
    assert [each.name for each in client.jobs(mine=True)] == ["digits"]
    assert client.jobs(state="Running") == [] and len(client.jobs(state="running,PENDING")) == 1
    assert client.newest().uid == job.uid
    with pytest.raises(AlreadyExists):
        client.submit(JOB)
    job.delete()
    with pytest.raises(NotFound):
        job.refresh()


def test_a_job_is_submitted_as_a_file_and_as_a_model(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(to_yaml(job_object("digits", nnodes=2)))
    job = client.submit(file)
    assert (job.name, job.spec.nnodes, job.user) == ("digits", 2, "admin")
    assert client.submit(DDPJob.parse(job_object("faces", nnodes=3))).spec.nnodes == 3
    read = DDPJob.parse(job.body)  # with what the cluster has written into its metadata
    job.delete()
    assert client.submit(read).uid != job.uid
    file.write_text(to_yaml(job_object("digits", nnodes=0)))
    with pytest.raises(InvalidJob, match=r"spec\.nnodes: must be at least 1, got 0"):
        client.submit(file)


def test_a_dry_run_stores_nothing(client: Client) -> None:
    assert client.submit(JOB, dry_run=True).name == "digits"
    assert client.jobs() == []
    with pytest.raises(Refused, match="nnodes"):
        client.submit(job_object("digits", nnodes=0), dry_run=True)


def test_lists_of_many_pages_have_each_job_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        client.submit(job_object(f"job-{number}"))
    monkeypatch.setattr("ddpjob.cluster.connection.PAGE", 2)
    found = sorted(client.jobs(), key=lambda job: job.name)
    assert [job.name for job in found] == [f"job-{number}" for number in range(7)]
    whole = client.job("job-3")
    assert found[3].body == whole.body and found[3].spec == whole.spec
    assert found[3].suspend().body["spec"]["suspend"] is True
    assert found[3].body["spec"]["suspend"] is True, "it is up to date"


def test_wait_ends_with_the_job(
    client: Client, write_status: Callable[..., None], later: Callable[..., None]
) -> None:
    job = client.submit(JOB)
    later(lambda: write_status(state="Running", attempt=0))
    assert job.wait("running", timeout=200).state == "Running"
    later(lambda: write_status(progress={"attempt": 0, "round": 0, "step": 20}))
    assert job.wait("step=20", timeout=200).step == 20
    with pytest.raises(JobTimeout, match="digits is Running after 0.3 s, not finished") as ended:
        job.wait(timeout=0.3)
    assert ended.value.job is job
    failure = {"attempt": 0, "rank": 5, "node": "gpu-1", "exitCode": 3, "reason": "ExitCode"}
    condition = {
        **{"type": "Failed", "status": "True", "reason": "MaxRestartsExceeded", "message": "m"},
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    failure["message"] = "bad\x1b[31m"
    later(lambda: write_status(state="Failed", failure=failure, conditions=[condition]))
    with pytest.raises(JobFailed) as failed:
        job.wait(timeout=200)
    cause = failed.value
    assert (cause.rank, cause.node, cause.exit_code) == (5, "gpu-1", 3)
    assert "\x1b" not in str(cause) and "MaxRestartsExceeded" in str(cause)
    assert job.wait(check=False).state == "Failed"


REFUSED = {
    **{"type": "Accepted", "status": "False", "reason": "Invalid", "message": "policy.hostNetwork"},
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
ACCEPTED = {**REFUSED, "status": "True", "reason": "Accepted"}


def test_wait_ends_once_a_refusal_has_stood_for_so_long(
    client: Client, write_status: Callable[..., None], later: Callable[..., None]
) -> None:
    job, other = client.submit(JOB), client.submit(job_object("other"))
    write_status(state="Pending", conditions=[REFUSED])
    with pytest.raises(JobRefused, match="digits is Pending: Invalid: policy.hostNet") as refused:
        job.wait(refused_after=0.3)
    assert refused.value.advice == "ddpjob describe digits says what to change"
    with pytest.raises(JobRefused, match="digits is Pending"):
        list(client.changes([other, job.refresh()], refused_after=0.3))
    with pytest.raises(JobTimeout):
        job.wait(timeout=0.5, refused_after=None)
    later(lambda: write_status(state="Running", conditions=[ACCEPTED]))
    assert job.wait("running", timeout=200, refused_after=200).state == "Running"


def test_wait_for_a_job_that_is_deleted_does_not_hang(
    client: Client, later: Callable[..., None]
) -> None:
    job = client.submit(JOB)
    later(job.delete)
    with pytest.raises(NotFound, match="digits was deleted|not found"):  # perhaps before it looks
        job.wait(timeout=200)


def test_another_job_of_the_name_is_not_this_one(client: Client) -> None:
    job = client.submit(JOB)
    client.job("digits").delete()
    client.submit(JOB)
    for act in (job.refresh, job.wait):
        with pytest.raises(NotFound, match="another job has its name"):
            act()
    with pytest.raises(Conflict):
        job.suspend()
    with pytest.raises(Conflict):
        job.delete()


def test_a_watch_whose_history_has_expired_goes_on_from_a_list(
    client: Client, write_status: Callable[..., None]
) -> None:
    job = client.submit(JOB)
    body = {**job.body, "metadata": {**job.body["metadata"], "resourceVersion": "1"}}
    write_status(state="Running")
    deadline = time.monotonic() + 200
    watch = client.connection.watch(
        DDPJOBS, namespace=client.namespace, known=[body], deadline=deadline
    )
    assert next(watch).object["status"]["state"] == "Running"


def test_a_missing_right_is_named(
    api_server: ApiServer, crd: None, namespace: str, tmp_path: Path
) -> None:
    token = api_server.service_account_token(namespace, "nobody")
    path = api_server.write_kubeconfig(tmp_path / "config", token=token, namespace=namespace)
    with pytest.raises(Forbidden) as refused:
        Client(kubeconfig=path).jobs()
    error = refused.value
    assert (error.verb, error.resource, error.namespace) == ("list", "ddpjobs", namespace)
    assert error.user == f"system:serviceaccount:{namespace}:nobody"
    assert Client(kubeconfig=path).user == error.user


def test_wrong_credentials_are_told_from_missing_rights(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    path = api_server.write_kubeconfig(tmp_path / "config", token="wrong")
    with pytest.raises(LoginFailed, match=r"context tests, user tests \(401\)"):
        Client(kubeconfig=path).jobs()


def test_a_server_that_nobody_answers_is_named(api_server: ApiServer, tmp_path: Path) -> None:
    url = "https://127.0.0.1:9"
    path = api_server.write_kubeconfig(tmp_path / "config", token="t", url=url)
    with pytest.raises(Unavailable, match=f"{url}: Connection refused"):
        Client(kubeconfig=path).jobs()


def test_a_cluster_without_the_definition_says_so(api_server: ApiServer, namespace: str) -> None:
    connection = Client(namespace, kubeconfig=api_server.kubeconfig).connection
    with pytest.raises(NotInstalled, match="no DDPJob API"):
        connection.request("GET", f"/apis/{names.GROUP}/v9/namespaces/{namespace}/ddpjobs")
    with pytest.raises(NotFound) as absent:
        connection.get(DDPJOBS, "nobody")
    assert not isinstance(absent.value, NotInstalled)


def test_closing_ends_the_requests_under_way_and_leaves_other_connections_alone(
    client: Client,
) -> None:
    job = client.submit(JOB)
    apart = client.connection.apart()
    ended: list[Exception] = []

    def read() -> None:
        try:
            for event in apart.watch(DDPJOBS, namespace=client.namespace):
                seen.put(event.type)
        except Unavailable as error:
            ended.append(error)

    seen, thread = queue.Queue[str](), threading.Thread(target=read)
    thread.start()
    assert seen.get(timeout=200) == "ADDED"
    job.suspend()
    assert seen.get(timeout=200) == "MODIFIED"  # so it comes from the watch, in which it is now
    apart.close()
    thread.join(30)
    assert [getattr(error, "reason", "") for error in ended] == ["Closed"]
    with pytest.raises(Unavailable, match="the connection was closed"):
        apart.get(DDPJOBS, "digits")
    assert job.refresh().name == "digits"
    assert apart.user == client.user


def test_closing_ends_a_pause_between_two_tries(
    api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(f"ddpjob.cluster.connection.{name}", 3600.0)
    url = "https://127.0.0.1:9"
    path = api_server.write_kubeconfig(tmp_path / "config", token="t", url=url)
    noted = threading.Event()
    client = Client("any", kubeconfig=path, note=lambda line: noted.set())

    def close() -> None:
        noted.wait(30)
        client.connection.close()

    threading.Thread(target=close).start()
    with pytest.raises(Unavailable, match="the connection was closed"):
        list(client.connection.watch(DDPJOBS))
