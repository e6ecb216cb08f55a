"""What a table of jobs says while pods wait: a real scheduler's words, and a played kubelet's."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddpjob.cluster import PODS
from ddpjob.json_depth import Body
from ddpjob.times import written
from tests.api.jobs import Jobs, conditions
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import STRATEGIC, Client
from tests.cluster.kubelet import Played
from tests.cluster.operator import OperatorProcess

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture(scope="module")
def operator(
    api_server: ApiServer, crd: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with OperatorProcess(api_server, tmp_path_factory.mktemp("operator")) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def jobs(operator: OperatorProcess, client: Client, namespace: str) -> Jobs:
    return Jobs(client, namespace)


async def row(jobs: Jobs, name: str, holds: Callable[[Body], Any]) -> Body:
    """The job's row of the table by the names of its columns, once this holds of it."""
    async with asyncio.timeout(200):
        while True:
            table = await jobs.client.request("GET", f"{jobs.path}/{name}", accept=TABLE)
            titles = [column["name"] for column in table["columnDefinitions"]]
            found = dict(zip(titles, table["rows"][0]["cells"], strict=True))
            if holds(found):
                return found
            await asyncio.sleep(0.05)


async def test_a_job_without_room_has_the_schedulers_words_and_one_event(
    jobs: Jobs, nodes: list[str]
) -> None:
    await jobs.create("wide", nnodes=3, resources={"requests": {"cpu": "999k"}})
    found = await row(jobs, "wide", lambda row: row["Reason"])
    assert found["Reason"].startswith("Unschedulable: 0/2 nodes are available: 2 Insufficient cpu")
    assert len(found["Reason"]) <= 128 and found["State"] == "Starting"
    assert found["Attempt"] == "0.0" and found["Pod"].startswith("wide-0-")
    assert found["Image"] == "trainer:1"
    async with asyncio.timeout(200):
        while not (events := await jobs.events()):
            await asyncio.sleep(0.05)
    assert [event["reason"] for event in events] == ["Unschedulable"]


async def test_a_pull_is_told_with_its_image_and_ends(
    jobs: Jobs, client: Client, played: Played, nodes: list[str]
) -> None:
    await jobs.create("pulls")
    pods = await bound(jobs, 2)
    for pod in pods:
        await take(client, pod, seconds_ago=60)
    found = await row(jobs, "pulls", lambda row: row["Reason"])
    assert found["Reason"] == f"Pulling: image trainer:1, pod {found['Pod']}"
    assert found["Node"] in nodes and found["State"] == "Starting"
    said = conditions(await jobs.get("pulls"))
    assert said["Running"] == ("False", "Pulling")
    async with played():
        found = await row(jobs, "pulls", lambda row: row["State"] == "Running")
    assert (found["Reason"], found["Pod"]) == (None, "pulls-0-0") and found["Node"] in nodes


async def bound(jobs: Jobs, count: int) -> list[Body]:
    """The pods once the scheduler has found nodes for so many."""
    async with asyncio.timeout(200):
        while True:
            pods = [pod for pod in await jobs.children(PODS) if pod["spec"].get("nodeName")]
            if len(pods) == count:
                return pods
            await asyncio.sleep(0.05)


async def take(client: Client, pod: Body, *, seconds_ago: float) -> None:
    """What a kubelet writes of a pod that has all but its image."""
    now = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    waiting = {"name": "trainer", "image": "trainer:1", "imageID": "", "ready": False}
    waiting |= {"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    ready = {"type": "PodReadyToStartContainers", "status": "True"}
    status = {"startTime": written(now), "conditions": [ready], "containerStatuses": [waiting]}
    path = f"{PODS.path(pod['metadata']['namespace'], pod['metadata']['name'])}/status"
    await client.request("PATCH", path, {"status": status}, content_type=STRATEGIC)
