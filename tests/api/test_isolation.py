"""One job cannot slow another: two operators in turn, of which one has jobs that cost much."""

import asyncio
import os
import random
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import median, quantiles

import pytest

from ddpjob import names
from ddpjob.controller.agenthttp import MAX_BYTES
from ddpjob.controller.shares import PART
from ddpjob.json_depth import Body
from tests.builders import job_object
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import OperatorProcess

pytestmark = pytest.mark.deep

ROUNDS, NODES = 40, 3
EACH = 10  # jobs of each kind that cannot work
DEAR, DEAR_BYTES = 110, MAX_BYTES  # jobs of somebody's agents, and of each answer
PATIENCE = 200.0  # s, for one job's pods
# How many times later pods may come. On a full machine a busy process waits longer for its turn
# than a calm one, whoever fills it: 2.1 was seen. Where nothing was bounded, it was 40.
SLOWER = 4


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


@asynccontextmanager
async def taking_turns(
    api_server: ApiServer, folder: Path, namespace: str
) -> AsyncIterator[tuple[dict[str, str], list[OperatorProcess]]]:
    """Two operators: of a namespace that stays calm, and of one that is busy beside an ill one."""
    operators = []
    names_of = {name: f"{namespace}-{name}" for name in ("calm", "busy", "ill")}
    with ExitStack() as stack:
        for name in names_of.values():
            api_server.create_namespace(name)
            stack.callback(api_server.request, "DELETE", f"/api/v1/namespaces/{name}")
        for watched in (("calm",), ("busy", "ill")):
            own = folder / watched[0]
            own.mkdir()
            options = [word for name in watched for word in ("--namespace", names_of[name])]
            operator = stack.enter_context(OperatorProcess(api_server, own, *options))
            await asyncio.to_thread(operator.wait_until_ready)
            assert operator.process is not None
            with suppress(PermissionError):  # neither waits for its turn behind other tests
                os.setpriority(os.PRIO_PROCESS, operator.process.pid, -15)
            operators.append(operator)
        yield names_of, operators


async def compare(client: Client, calm: str, busy: str) -> None:
    """A job's pods come as soon in the busy namespace; in turn, as the load is then the same."""
    taken: dict[str, list[float]] = {calm: [], busy: []}
    for number in range(ROUNDS):
        for name, times in taken.items():
            times.append(await seconds_to_pods(client, name, f"job-{number}"))
    alone, beside = taken[calm], taken[busy]
    print(f"p90 {p90(alone):.3f} s, {p90(beside):.3f} s beside the others")
    print(f"median {median(alone):.3f} s, {median(beside):.3f} s beside the others")
    assert median(beside) < SLOWER * median(alone)  # p90 is told only


@pytest.mark.timeout(1500)
async def test_jobs_that_cannot_work_do_not_slow_the_others(
    api_server: ApiServer, crd: None, client: Client, namespace: str, tmp_path: Path
) -> None:
    async with taking_turns(api_server, tmp_path, namespace) as (of, _):
        await poison(client, of["ill"])
        async with restless(client, of["ill"]) as changes:
            await compare(client, of["calm"], of["busy"])
            others = await told(client, of["ill"])
    assert len(others) == 3 * EACH - 1 and changes[0] > 100
    assert {job["status"]["state"] for job in others} <= {"Pending", "Starting"}


@asynccontextmanager
async def answering_dearly(client: Client, namespace: str) -> AsyncIterator[Callable[[], int]]:
    """Running jobs whose agents cost the operator as much as they can; how often they answered."""
    address = f"127.{random.randrange(64, 128)}.{random.randrange(256)}.{random.randrange(1, 255)}"
    program = [sys.executable, "-m", "tests.cluster.dear_agents", address, str(DEAR_BYTES)]

    def count() -> int:
        url = f"http://{address}:{names.AGENT_PORT}/count"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.read())

    process = await asyncio.create_subprocess_exec(*program)
    try:
        async with (
            fake_nodes(client, f"{namespace}-node") as nodes,
            ScriptedKubelet(
                client,
                list(nodes),
                bind=lambda pod: pod["metadata"]["namespace"] == namespace,
                address=lambda pod: address,
            ),
        ):
            for number in range(DEAR):
                await client.request("POST", jobs_path(namespace), job_object(f"dear-{number}"))
            async with asyncio.timeout(PATIENCE):
                while True:
                    with suppress(OSError):
                        if await asyncio.to_thread(count) > DEAR:
                            break
                    await asyncio.sleep(0.1)
            yield count
    finally:
        process.kill()
        await process.wait()


@pytest.mark.timeout(1500)
async def test_agents_that_answer_dearly_do_not_slow_the_others(
    api_server: ApiServer, crd: None, client: Client, namespace: str, tmp_path: Path
) -> None:
    async with (
        taking_turns(api_server, tmp_path, namespace) as (of, operators),
        answering_dearly(client, of["ill"]) as count,
    ):
        before, begin = await asyncio.to_thread(count), time.monotonic()
        spent = [loop_seconds(operator) for operator in operators]
        await compare(client, of["calm"], of["busy"])
        calm, busy = (
            loop_seconds(each) - so_far for each, so_far in zip(operators, spent, strict=True)
        )
        seconds = time.monotonic() - begin
        answers = await asyncio.to_thread(count) - before
        print(f"{answers / seconds:.0f} dear answers a second")
        print(f"{calm / seconds:.0%} of a core, {busy / seconds:.0%} beside the others")
    assert answers > DEAR
    assert busy - calm < (PART + 0.2) * seconds  # what is not counted as theirs: sockets, the pods


def loop_seconds(operator: OperatorProcess) -> float:
    """Processor time of its event loop so far (proc_pid_schedstat(5), of the first thread)."""
    assert operator.process is not None
    text = Path(f"/proc/{operator.process.pid}/schedstat").read_text()
    return int(text.split()[0]) / 1e9


def p90(times: list[float]) -> float:
    return quantiles(times, n=10)[-1]
