"""One job cannot slow another: two operators in turn, of which one has jobs that cannot work."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import median, quantiles

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.builders import job_object
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.operator import OperatorProcess

pytestmark = pytest.mark.deep

ROUNDS, NODES = 40, 3
EACH = 10  # jobs of each kind that cannot work
PATIENCE = 200.0  # s, for one job's pods


def jobs_path(namespace: str, name: str = "") -> str:
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
    return f"{path}/{name}" if name else path


async def seconds_to_pods(client: Client, namespace: str, name: str) -> float:
    """From the job's creation until its pods are there."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    version = (await client.request("GET", path))["metadata"]["resourceVersion"]
    begin, seen = time.monotonic(), 0
    await client.request("POST", jobs_path(namespace), job_object(name, nnodes=NODES))
    async with asyncio.timeout(PATIENCE):
        async for kind, pod in client.watch(path, version):
            labels = pod["metadata"].get("labels") or {}
            seen += kind == "ADDED" and labels.get(names.JOB_LABEL) == name
            if seen == NODES:
                break
    return time.monotonic() - begin


async def poison(client: Client, namespace: str) -> None:
    """Jobs that the operator refuses, that the API server refuses, whose name is taken."""
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    body = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await client.request("POST", quotas, body)
    services = f"/api/v1/namespaces/{namespace}/services"
    for number in range(EACH):
        root = job_object(f"root-{number}", template={"spec": {"hostNetwork": True}})
        body = {"metadata": {"name": f"taken-{number}"}, "spec": {"clusterIP": "None"}}
        await client.request("POST", services, body)
        for job in (root, job_object(f"many-{number}", nnodes=9), job_object(f"taken-{number}")):
            await client.request("POST", jobs_path(namespace), job)


@asynccontextmanager
async def restless(client: Client, namespace: str) -> AsyncIterator[list[int]]:
    """A block during which somebody changes one of them all the time; how often, at its end."""
    changes = [0]

    async def change() -> None:
        path = jobs_path(namespace, "root-0")
        while True:
            with suppress(ApiError):
                body = {"metadata": {"annotations": {"example.com/turn": str(changes[0])}}}
                await client.request("PATCH", path, body, content_type=MERGE)
                changes[0] += 1
            await asyncio.sleep(0.01)

    task = asyncio.create_task(change())
    try:
        yield changes
    finally:
        task.cancel()
        await asyncio.wait([task])


async def told(client: Client, namespace: str) -> list[Body]:
    """The jobs, once they say why they do not run, all but the one that is changed all the time.

    Its status is written under the version that was read, which is never the last one there. A name
    that is taken is asked for six times, in 8 to 16 s, before that is said.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await client.request("GET", jobs_path(namespace)))["items"]
            others = [job for job in found if job["metadata"]["name"] != "root-0"]
            if all("status" in job for job in others):
                return others
            await asyncio.sleep(0.5)


@pytest.mark.timeout(300)
async def test_jobs_that_cannot_work_do_not_slow_the_others(
    api_server: ApiServer, crd: None, client: Client, namespace: str, tmp_path: Path
) -> None:
    """In turn, so that the machine's load is the same for both; the poison in a third namespace."""
    calm, busy, ill = (f"{namespace}-{name}" for name in ("calm", "busy", "ill"))
    async with AsyncExitStack() as stack:
        for name in (calm, busy, ill):
            api_server.create_namespace(name)
            stack.callback(api_server.request, "DELETE", f"/api/v1/namespaces/{name}")
        for number, watched in enumerate(((calm,), (busy, ill))):
            folder = tmp_path / str(number)
            folder.mkdir()
            options = [word for name in watched for word in ("--namespace", name)]
            operator = stack.enter_context(OperatorProcess(api_server, folder, *options))
            await asyncio.to_thread(operator.wait_until_ready)
        await poison(client, ill)
        taken: dict[str, list[float]] = {calm: [], busy: []}
        async with restless(client, ill) as changes:
            for number in range(ROUNDS):
                for name, times in taken.items():
                    times.append(await seconds_to_pods(client, name, f"job-{number}"))
            others = await told(client, ill)
    assert len(others) == 3 * EACH - 1 and changes[0] > 100
    assert {job["status"]["state"] for job in others} <= {"Pending", "Starting"}
    alone, beside = taken[calm], taken[busy]
    print(f"{changes[0]} changes; p90 {p90(alone):.3f} s, {p90(beside):.3f} s beside the poison")
    print(f"median {median(alone):.3f} s, {median(beside):.3f} s beside the poison")
    assert median(beside) < 2 * median(alone)  # p90 is told only: what else runs here decides it


def p90(times: list[float]) -> float:
    return quantiles(times, n=10)[-1]
