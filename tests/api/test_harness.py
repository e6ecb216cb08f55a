"""The control plane that the api tests rely on is a real one, and leaves nothing behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpjob.cluster import SERVICES
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import KubeCluster
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.podstatus import End, Life
from tests.cluster.tiers import ROOT

Pod = dict[str, Any]
Giving = AsyncIterator[Any]


def make_pod(name: str, **spec: Any) -> Pod:
    container = {"name": "main", "image": "nothing"}
    return {
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


async def wait_for_pod(client: Client, path: str, is_so: Callable[[Pod], bool]) -> Pod:
    async with asyncio.timeout(200):
        while not is_so(pod := await client.request("GET", path)):
            await asyncio.sleep(0.02)
    return pod


async def wait_for_phase(client: Client, path: str, phase: str) -> Pod:
    return await wait_for_pod(client, path, lambda pod: bool(pod["status"]["phase"] == phase))


@pytest.fixture
async def nodes(client: Client) -> AsyncIterator[list[str]]:
    async with fake_nodes(client, "alpha", "beta") as names:
        yield list(names)


async def test_the_scheduler_binds_pods_and_the_kubelet_plays_them_to_their_end(
    client: Client, namespace: str, nodes: list[str]
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    ends = {"good": End(message="fine"), "bad": End(exit_code=7, message="broke")}

    def script(pod: Pod) -> Life:
        return Life(run_seconds=0.1, end=ends[pod["metadata"]["name"]])

    async with ScriptedKubelet(client, nodes, script):
        for name in ends:
            await client.request("POST", pods, make_pod(name))
        for name, phase in (("good", "Succeeded"), ("bad", "Failed")):
            pod = await wait_for_phase(client, f"{pods}/{name}", phase)
            ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
            assert pod["spec"]["nodeName"] in nodes
            assert (ended["exitCode"], ended["message"]) == (
                ends[name].exit_code,
                ends[name].message,
            )


@pytest.mark.deep
async def test_data_and_the_kubelet_survive_a_restart_of_the_api_server(
    client: Client, api_server: ApiServer, namespace: str, nodes: list[str]
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/stayer"
    async with ScriptedKubelet(client, nodes) as kubelet:
        await client.request("POST", path.removesuffix("/stayer"), make_pod("stayer"))
        await wait_for_phase(client, path, "Running")
        await asyncio.to_thread(api_server.restart_apiserver)
        kubelet.finish(namespace, "stayer")
        await wait_for_phase(client, path, "Succeeded")


@asynccontextmanager
async def watch_of_the_tests(server: ApiServer) -> AsyncIterator[Giving]:
    async with Client(server) as client:
        yield client.watch("/api/v1/services", "0")


@asynccontextmanager
async def watch_of_the_operator(server: ApiServer) -> AsyncIterator[Giving]:
    kube = KubeCluster(Credentials(server.url, ca_file=str(server.ca_file), token=server.token))
    yield kube.watch(SERVICES, namespace=None, resource_version="0")
    await kube.close()


@asynccontextmanager
async def requests_of_the_tests(server: ApiServer) -> AsyncIterator[Giving]:
    async def answers() -> Giving:
        while True:
            yield await client.request("GET", "/api/v1/services")

    async with Client(server) as client:
        yield answers()


@pytest.mark.parametrize(
    "giving", [watch_of_the_tests, watch_of_the_operator, requests_of_the_tests]
)
def test_what_is_given_up_leaves_no_connection_open(
    api_server: ApiServer, giving: Callable[[ApiServer], AbstractAsyncContextManager[Giving]]
) -> None:
    server = psutil.Process(api_server.components["kube-apiserver"].pid)

    async def look() -> None:
        async with giving(api_server) as given:
            following = asyncio.create_task(follow(given))
            await asyncio.sleep(0.2)
            server.suspend()  # so that it answers no goodbye in time
            await asyncio.sleep(0.2)
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def follow(given: Giving) -> None:
        async for _ in given:
            pass

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            asyncio.run(look())
        finally:
            server.resume()
        gc.collect()
    assert [str(warning.message) for warning in told] == []


@pytest.mark.usefixtures("api_server")  # skips where there is none
def test_nothing_is_left_when_the_tests_are_killed(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.cluster.apiserver import ApiServer
from tests.cluster.operator import OperatorProcess
from benchmarks.player import playing
import time
with (
    ApiServer() as server,
    OperatorProcess(server, Path({str(tmp_path)!r})) as operator,
    playing(server) as played,
):
    started = *server.components.values(), operator.process, played.process
    print(server.folder, *(one.pid for one in started), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        folder, *pids = tests.stdout.readline().split()
        assert len(pids) == 6 and all(psutil.pid_exists(int(pid)) for pid in pids)
        tests.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 200
    while Path(folder).exists() or any(psutil.pid_exists(int(pid)) for pid in pids):
        assert time.monotonic() < deadline, f"left: {folder} or one of {pids}"
        time.sleep(0.05)


@pytest.mark.parametrize(("require", "outcome"), [("", "1 skipped"), ("api", "1 error")])
def test_a_machine_without_the_programs_skips_with_a_remedy_or_fails_if_required(
    tmp_path: Path, require: str, outcome: str
) -> None:
    test = f"{__file__}::test_data_and_the_kubelet_survive_a_restart_of_the_api_server"
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        cwd=ROOT,
        env={**os.environ, "KUBEBUILDER_ASSETS": str(tmp_path), "DDPJOB_REQUIRE": require},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert outcome in ended.stdout.splitlines()[-1], ended.stdout
    assert f"KUBEBUILDER_ASSETS={tmp_path} has no etcd" in ended.stdout
    assert "or unset it and have Go" in ended.stdout
    assert ended.returncode == (1 if require else 0)
