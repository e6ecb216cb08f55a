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
from tests.cluster.tiers import ROOT

Giving = AsyncIterator[Any]


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
    test = f"{__file__}::test_nothing_is_left_when_the_tests_are_killed"
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
