"""New jobs by the SDK's client on a real API server."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ddpjob import AsyncClient, Client
from ddpjob.code.archive import CodeArchive
from ddpjob.errors import AlreadyExists, Forbidden, Refused, Unavailable
from tests.api.reading import client as client  # noqa: PLC0414
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.rights import account
from tests.logproxy import Proxy
from tests.terminal import Running, environment
from tests.waiting import wait_for


def test_a_rerun_is_a_new_job_with_the_next_free_name(client: Client) -> None:
    job = client.submit(job_object("digits", nnodes=2))
    client.submit(job_object("digits-3"))
    second = job.rerun(nnodes=4, failurePolicy={"maxRestarts": 0})
    assert (second.name, second.body["spec"]["nnodes"]) == ("digits-2", 4)
    assert second.body["spec"]["failurePolicy"]["maxRestarts"] == 0
    assert second.user == "admin"
    third = second.rerun(script_args=["--lr", "1"])
    assert (third.name, third.body["spec"]["args"]) == ("digits-4", ["train.py", "--lr", "1"])
    assert job.rerun(name="other").name == "other"
    with pytest.raises(AlreadyExists):
        job.rerun(name="other")
    with pytest.raises(Refused, match="nnodes"):
        job.rerun(nnodes=0)


def test_a_field_that_the_cluster_does_not_know_is_refused(client: Client) -> None:
    with pytest.raises(Refused, match='unknown field "spec.coda"') as refused:
        client.submit(job_object("digits", coda={}))
    assert "older" in refused.value.advice
    assert client.jobs() == []


CODE = CodeArchive(b"x", ("a.py",), 1)
JOBS, MAPS = r"POST .*/ddpjobs\?", r"POST .*/configmaps"
RESUMED = r"PATCH .*/ddpjobs/"


def unnamed() -> Any:
    """A job whose name is made of its beginning."""
    return {**job_object(), "metadata": {"generateName": "train-"}}


def left(client: Client) -> list[str]:
    """The names of the jobs that there are, once whatever is under way has come to its end."""
    for _ in range(20):
        if not (found := [job.name for job in client.jobs()]):
            break
        time.sleep(0.1)
    return found


async def test_a_submission_that_is_cancelled_leaves_no_job(
    client: Client, proxy: Proxy, proxied: Path
) -> None:
    proxy.held = MAPS
    async with AsyncClient(kubeconfig=proxied) as other:
        task = asyncio.create_task(other.submit(unnamed(), code=CODE))
        assert await asyncio.to_thread(proxy.holds.wait, 30)
        assert len(client.jobs()) == 1, "it exists, and nobody knows it"
        task.cancel()
        await asyncio.sleep(0)
        proxy.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.jobs() == [], "it is gone before the caller goes on"


async def test_closing_the_client_leaves_no_job_of_a_submission_under_way(
    client: Client, proxy: Proxy, proxied: Path
) -> None:
    proxy.held = JOBS
    async with AsyncClient(kubeconfig=proxied) as other:
        task = asyncio.create_task(other.submit(unnamed()))
        assert await asyncio.to_thread(proxy.holds.wait, 30)
    proxy.goes_on.set()
    with pytest.raises(Unavailable, match="the connection was closed"):
        await task
    assert client.jobs() == []


def test_ctrl_c_while_a_job_is_submitted_says_what_is_true(
    client: Client, proxy: Proxy, proxied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    proxy.held = MAPS
    words = ["submit", "train.py", "--image", "i", "--detach"]
    with Running(*words, env=environment(proxied)) as running:
        assert proxy.holds.wait(60), running.err
        assert len(client.jobs()) == 1
        running.process.send_signal(signal.SIGINT)
        ended = running.end()
    assert ended.code == 130 and ended.err.endswith("\nstopped: no job was created\n"), ended.err
    assert left(client) == []


def test_ctrl_c_before_the_request_has_come_names_the_job_that_may_follow(
    client: Client, proxy: Proxy, proxied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    proxy.held, proxy.is_slow = JOBS, True
    words = ["submit", "train.py", "--image", "i", "--code", "none", "--detach"]
    with Running(*words, env=environment(proxied)) as running:
        assert proxy.holds.wait(60), running.err
        running.process.send_signal(signal.SIGINT)
        ended = running.end()
    assert ended.code == 130 and client.jobs() == []
    proxy.goes_on.set()
    (job,) = wait_for(client.jobs)
    assert f"stopped: {job.name} may be created still: ddpjob get" in ended.err


def test_what_may_not_be_deleted_again_is_named(
    client: Client, proxy: Proxy, api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    rules = ("ddpjob.dev", "ddpjobs", ["create", "get", "list"])
    token = account(api_server, namespace, "creator", rules)
    path = tmp_path / "creator"
    api_server.write_kubeconfig(path, token=token, namespace=namespace, url=proxy.url)
    with pytest.raises(Forbidden, match="configmaps") as refused:
        Client(kubeconfig=path).submit(unnamed(), code=CODE)
    (job,) = client.jobs()
    advice = f"{job.name} may be left behind: ddpjob delete {job.name} -n {namespace}"
    assert refused.value.advice == advice


def test_a_job_whose_creation_was_not_answered_is_deleted_and_no_other_of_its_name(
    client: Client, proxy: Proxy, proxied: Path
) -> None:
    proxy.held, proxy.cuts = JOBS, True
    other = Client(kubeconfig=proxied)
    for body in (unnamed(), job_object("digits")):
        with pytest.raises(Unavailable) as lost:
            other.submit(body)
        assert client.jobs() == [] and "may be" not in lost.value.advice
    mine = client.submit(job_object("digits"))
    with pytest.raises(Unavailable) as lost:
        other.submit(job_object("digits"))
    assert client.job("digits").uid == mine.uid, "another one's, whose name was taken"
    with pytest.raises(Unavailable) as lost:
        other.submit(job_object("x", nnodes=-1))
    assert lost.value.advice.startswith("x may be created still: ddpjob get x")
