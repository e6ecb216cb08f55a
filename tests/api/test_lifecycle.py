"""Deadlines, lost nodes and clean-up against a real API server and its controllers."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from ddpjob.cluster import PODS
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs, conditions, rank
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import Played
from tests.cluster.nodes import fake_nodes, set_node_ready
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End, Life


@pytest.fixture(scope="module")
def operator(
    api_server: ApiServer, crd: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """Its clock is an hour behind: what these tests wait for goes by the API server's."""
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(api_server, folder, clock=-3600.0) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def jobs(operator: OperatorProcess, client: Client, namespace: str) -> Jobs:
    return Jobs(client, namespace)


@pytest.fixture
async def nodes(client: Client) -> AsyncIterator[list[str]]:
    async with fake_nodes(client, "node-a", "node-b", "node-c") as names:
        yield list(names)


async def gone(jobs: Jobs, name: str = "digits") -> None:
    async with asyncio.timeout(200):
        while True:
            try:
                await jobs.get(name)
            except ApiError as error:
                assert error.code == 404
                return
            await asyncio.sleep(0.1)


async def test_the_deadline_keeps_pods_and_gives_them_their_grace(
    jobs: Jobs, played: Played
) -> None:
    saves = Life(run_seconds=None, stop_seconds=1.0, stop_end=End(exit_code=75))
    async with played(lambda pod: saves):
        await jobs.create()
        await jobs.in_state("Running")
        await jobs.patch(activeDeadlineSeconds=1)
        job = await jobs.in_state("Failed")
        assert conditions(job)["Failed"] == ("True", "DeadlineExceeded")
        async with asyncio.timeout(200):
            while any(not ended(pod) for pod in await jobs.children(PODS)):
                await asyncio.sleep(0.1)
        pods = await jobs.children(PODS)
    assert len(pods) == 2 and all(
        pod["status"]["reason"] == "DeadlineExceeded" and "deletionTimestamp" not in pod["metadata"]
        for pod in pods
    )
    codes = {
        status["state"]["terminated"]["exitCode"]
        for pod in pods
        for status in pod["status"]["containerStatuses"]
    }
    assert codes == {75} and job["status"]["restarts"] == 0


def ended(pod: Body) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


async def test_a_finished_job_goes_when_its_time_is_over(jobs: Jobs, played: Played) -> None:
    async with played(lambda pod: Life(run_seconds=0.2)):
        await jobs.create(ttlSecondsAfterFinished=1)
        await gone(jobs)
        # The garbage collector learns of a new kind, as DDPJob is here, within 30 s.
        async with asyncio.timeout(200):
            while await jobs.pods():
                await asyncio.sleep(0.1)


async def test_a_lost_node_costs_an_uncounted_restart_elsewhere(
    jobs: Jobs, played: Played, client: Client
) -> None:
    async with played() as kubelet:
        await jobs.create(failurePolicy={"maxRestarts": 0})
        await jobs.in_state("Running")
        lost = next(pod for pod in await jobs.children(PODS) if rank(pod) == (0, 1))
        node = lost["spec"]["nodeName"]
        kubelet.mute(node)
        await set_node_ready(client, node, ready=False)
        job = await jobs.until(
            lambda job: (job["status"]["attempt"], job["status"]["state"]) == (1, "Running")
        )
        pods = await jobs.children(PODS)
        kubelet.unmute(node)
    failure = job["status"]["failure"]
    assert (failure["reason"], failure["node"]) == ("NodeLost", node)
    assert job["status"]["budget"]["charged"] == 0 and job["status"]["restarts"] == 1
    assert {rank(pod) for pod in pods} == {(1, 0), (1, 1)}, "the lost pod was deleted by force"
    assert node not in {pod["spec"]["nodeName"] for pod in pods}


async def test_an_avoided_node_gets_no_further_pod(jobs: Jobs, played: Played) -> None:
    def fails_once(pod: Body) -> Life:
        if rank(pod) == (0, 1):
            return Life(run_seconds=0.5, end=End(exit_code=9, message="bad memory"))
        return Life(run_seconds=None)

    rules = [{"onExitCodes": [9], "action": "Restart", "avoidNode": True}]
    async with played(fails_once):
        await jobs.create(nnodes=6, failurePolicy={"rules": rules})
        job = await jobs.until(lambda job: job.get("status", {}).get("attempt") == 1)
        (avoided,) = job["status"]["avoidedNodes"]
        await jobs.until(lambda job: job["status"]["state"] == "Running")
        later = [pod for pod in await jobs.children(PODS) if rank(pod)[0] == 1]
    assert len(later) == 6 and avoided not in {pod["spec"]["nodeName"] for pod in later}
    assert job["status"]["failure"]["node"] == avoided
