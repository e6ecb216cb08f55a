"""The SDK on a real API server: launch, the live display, the asynchronous client, and rights."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob import (
    AsyncClient,
    AsyncJob,
    Client,
    DDPJobError,
    Forbidden,
    JobFailed,
    JobTimeout,
    NotFound,
    launch,
)
from ddpjob.client.display import Display, follow
from tests.api.jobs import Jobs
from tests.api.processes import jobs
from tests.api.reading import Cluster, condition
from tests.builders import job_object
from tests.cells import Notebook
from tests.cluster.apiserver import ApiServer
from tests.cluster.rights import account
from tests.cluster.tiers import ROOT
from tests.logproxy import PodLog, Proxy
from tests.waiting import wait_for

__all__ = ["jobs"]  # a fixture


@pytest.fixture
def kubeconfig(proxy: Proxy, proxied: Path) -> Path:
    """That of an administrator, in the test's namespace, through a proxy that knows logs."""
    proxy.logs["digits-0-0"] = PodLog()
    return proxied


def no_thread_is_left(but: int = 0) -> bool:
    """Wait until all threads of the SDK but so many have ended."""
    return wait_for(lambda: sum(each.name == "ddpjob" for each in threading.enumerate()) <= but)


@pytest.fixture
def user(
    api_server: ApiServer, crd: None, namespace: str, tmp_path: Path
) -> Callable[[str], Client]:
    """A user who has the role `edit` in the test's namespace, as the chart extends it."""
    for document in yaml.safe_load_all((ROOT / "manifests/install.yaml").read_text()):
        labels = document["metadata"].get("labels") or {}
        if any(label.startswith("rbac.authorization.k8s.io/aggregate-to") for label in labels):
            with contextlib.suppress(Exception):  # it is there already
                path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
                api_server.request("POST", path, document)
    token = account(api_server, namespace, "ana", cluster_roles=["edit"])
    config = api_server.write_kubeconfig(tmp_path / "ana", token=token, namespace=namespace)

    def may_list() -> bool:
        with contextlib.suppress(Forbidden), Client(kubeconfig=config) as client:
            client.jobs()
            return True
        return False

    wait_for(may_list)  # the controller adds our rules to the role
    return lambda where: Client(where, kubeconfig=config)


TRAIN = """
import os, time

def train(lr):
    from helper import FACTOR
    assert os.getcwd().endswith("source") or os.environ["DDPJOB_CODE_DIR"]
    if os.environ["DDPJOB_ATTEMPT"] == os.environ["DDPJOB_ROUND"] == "0":
        raise ValueError("not yet")
    return {"lr": lr * FACTOR, "world": int(os.environ["WORLD_SIZE"])}
"""


@pytest.mark.deep
async def test_who_may_edit_in_one_namespace_can_do_all_of_it_there_and_nothing_elsewhere(
    jobs: Jobs,
    user: Callable[[str], Client],
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("FACTOR = 10\n")
    train, spec = (
        Notebook()(TRAIN)["train"],
        {"launcher": "python", "warmStart": {"enabled": False}},
    )
    spec["failurePolicy"] = {"backoffSeconds": {"first": 0}}
    options: dict[str, Any] = {"nnodes": 2, "image": "any", "code": folder, "spec": spec}

    def all_of_it(client: Client) -> None:
        run = launch(train, 0.5, client=client, **options)
        assert run.result() == {"lr": 5.0, "world": 2}
        assert run.body["status"]["restarts"] == 1
        (listed,) = client.jobs(mine=True)
        assert (listed.uid, client.newest().uid) == (run.uid, run.uid)
        assert {event.reason for event in run.events()} >= {"Succeeded"}
        again = run.rerun(suspend=True)
        assert again.suspend().resume().wait(timeout=200).result() == run.result()
        for job in (again, run):
            job.delete()
        with pytest.raises(NotFound):
            run.refresh()

    def nothing(client: Client) -> None:
        for act in (
            client.jobs,
            lambda: client.job("digits"),
            lambda: client.submit(job_object("digits")),
            lambda: launch(train, 0.5, client=client, **options),
        ):
            with pytest.raises(Forbidden) as refused:
                act()
            assert (refused.value.namespace, refused.value.resource) == ("default", "ddpjobs")

    with user(namespace) as ours, user("default") as elsewhere:
        await asyncio.to_thread(all_of_it, ours)
        await asyncio.to_thread(nothing, elsewhere)
        with pytest.raises(Forbidden, match="at the cluster scope"):
            await asyncio.to_thread(ours.jobs, all_namespaces=True)


class Shown(Display):
    """A display that keeps what it is given."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.lines: list[str] = []
        self.notes: list[str] = []

    def until(self, state: str) -> None:
        """Wait until the job is shown in this state."""
        while self.states[-1:] != [state]:
            time.sleep(0.01)

    def job(self, job: Any) -> None:
        self.states.append(job.state)

    def line(self, line: Any) -> None:
        self.lines.append(line.text)

    def note(self, *lines: str) -> None:
        self.notes += lines


@pytest.mark.deep
def test_a_job_is_shown_until_it_is_finished(
    cluster: Cluster, kubeconfig: Path, api_server: ApiServer, later: Callable[..., None]
) -> None:
    job, shown = cluster.running("digits"), Shown()
    cluster.pod(job, 0)

    def go_on() -> None:
        shown.until("Running")
        api_server.restart_apiserver()
        cluster.status("digits", state="Restarting", restarts=1)
        shown.until("Restarting")
        cluster.status("digits", state="Succeeded")
        cluster.pod_state("digits-0-0", "ended")

    later(go_on)
    with Client(kubeconfig=kubeconfig) as client:
        found = client.job("digits")
        follow(found, found.news(), found.ways_back, None, shown)
    assert shown.states[0] == "Running" and shown.states[-2:] == ["Restarting", "Succeeded"]
    assert found.state == "Succeeded"
    assert no_thread_is_left()


def test_an_interrupt_detaches_and_says_how_to_come_back(
    cluster: Cluster, kubeconfig: Path, namespace: str, later: Callable[..., None]
) -> None:
    cluster.running("digits")
    shown = Shown()

    def interrupt() -> None:
        shown.until("Running")
        time.sleep(1.0)  # it is shown just before an interrupt is waited for
        os.kill(os.getpid(), signal.SIGINT)

    later(interrupt, 0.0)
    with Client(kubeconfig=kubeconfig) as client, pytest.raises(KeyboardInterrupt):
        job = client.job("digits")
        follow(job, job.news(), job.ways_back, None, shown)
    assert shown.notes[0] == "detached: digits runs on"
    way = shown.notes[1].split("   ")[0].strip()
    assert way == f'Client({namespace!r}, kubeconfig={str(kubeconfig)!r}).job("digits").follow()'
    assert eval(way.removesuffix(".follow()")).state == "Running"
    assert no_thread_is_left()


def test_looking_on_ends_in_time_and_with_the_job(
    cluster: Cluster, kubeconfig: Path, later: Callable[..., None]
) -> None:
    cluster.running("digits")
    with Client(kubeconfig=kubeconfig) as client:
        job = client.job("digits")
        with pytest.raises(JobTimeout, match="digits is Running after 0.5 s, not finished"):
            follow(job, job.news(), job.ways_back, 0.5, Shown())
        shown = Shown()

        def delete() -> None:
            shown.until("Running")
            cluster.delete("digits")

        later(delete, 0.0)
        with pytest.raises(NotFound, match="digits was deleted|not found"):
            follow(job, job.news(), job.ways_back, 30, shown)
    assert no_thread_is_left()


def test_without_the_right_to_read_logs_the_state_is_shown(
    api_server: ApiServer,
    cluster: Cluster,
    namespace: str,
    tmp_path: Path,
    later: Callable[..., None],
) -> None:
    readable = ("ddpjob.dev", "ddpjobs", ["get", "list", "watch"])
    token = account(api_server, namespace, "ben", readable)
    path = api_server.write_kubeconfig(tmp_path / "ben", token=token, namespace=namespace)
    job, shown = cluster.running("digits"), Shown()
    cluster.pod(job, 0)
    later(lambda: cluster.status("digits", state="Succeeded"), 2.0)
    with Client(kubeconfig=path) as client:
        found = client.job("digits")
        follow(found, found.news(), found.ways_back, 60, shown)
    assert shown.states[-1] == "Succeeded"
    assert any("no lines of rank 0" in line and "pods" in line for line in shown.notes)


async def test_the_asynchronous_client_has_the_same_answers(
    cluster: Cluster, kubeconfig: Path, namespace: str, later: Callable[..., None]
) -> None:
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        assert (await client.namespace, await client.user) == (namespace, "admin")
        job = await client.submit(job_object("digits", nnodes=2))
        assert isinstance(job, AsyncJob) and (await client.job("digits")).uid == job.uid
        (listed,) = await client.jobs(mine=True)
        assert "digits" in (await client.jobs())._repr_html_() and listed.uid == job.uid
        assert (await client.newest()).uid == job.uid
        assert (await job.suspend()).body["spec"]["suspend"] is True
        assert (await job.resume()).body["spec"]["suspend"] is False
        again = await job.rerun(nnodes=3, script_args=["-q"])
        assert (again.name, again.body["spec"]["args"][1:]) == ("digits-2", ["-q"])
        assert await job.events() == []
        later(lambda: cluster.status("digits", state="Succeeded", result=RESULT))
        assert await job.result(timeout=200) == {"loss": 0.5}
        await job.delete()
        with pytest.raises(NotFound):
            await job.refresh()
    assert no_thread_is_left()


RESULT = {"value": '{"loss":0.5}', "sizeBytes": 12}


async def test_a_hundred_may_wait_at_once_and_those_that_are_cancelled_end(
    cluster: Cluster, kubeconfig: Path
) -> None:
    cluster.running("digits")
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        job = await client.job("digits")
        waits = [asyncio.create_task(job.wait(check=False)) for _ in range(60)]
        await asyncio.sleep(2)
        assert not any(task.done() for task in waits)
        for task in waits[:30]:
            task.cancel()
        for task in waits[:30]:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert no_thread_is_left(but=30)
        failed = condition("Failed", "True", "MaxRestartsExceeded")
        cluster.status("digits", state="Failed", conditions=[failed])
        assert {job.state for job in await asyncio.gather(*waits[30:])} == {"Failed"}
        with pytest.raises(JobFailed, match="MaxRestartsExceeded"):
            (await job.refresh()).raise_if_failed()
        assert no_thread_is_left()


async def test_a_watch_is_read_over_a_restart_of_the_api_server_and_left_at_any_time(
    cluster: Cluster, kubeconfig: Path, api_server: ApiServer, later: Callable[..., None]
) -> None:
    cluster.running("digits")
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        job = await client.job("digits")
        async with contextlib.aclosing(job.watch()) as changes:
            assert (await anext(changes)).state == "Running"
            await asyncio.to_thread(api_server.restart_apiserver)
            cluster.status("digits", state="Restarting")
            async for each in changes:
                if each.state == "Restarting":
                    break
        assert no_thread_is_left()
        later(lambda: cluster.delete("digits"))
        with pytest.raises(NotFound, match="was deleted|not found"):
            async for _ in job.watch():
                pass
    assert no_thread_is_left()


async def test_errors_are_those_of_the_synchronous_client_and_closing_ends_all(
    cluster: Cluster, kubeconfig: Path
) -> None:
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        with pytest.raises(NotFound):
            await client.job("nobody")
        with pytest.raises(ValueError, match="must be finished"):
            await (await client.submit(job_object("digits"))).wait("soon")
        task = asyncio.create_task((await client.job("digits")).wait())
        await asyncio.sleep(1)
    for waiting in (task, client.jobs()):
        with pytest.raises(DDPJobError, match="the connection was closed"):
            await waiting
