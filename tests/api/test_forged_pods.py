"""Pods that somebody else has made for a job: they decide nothing, whatever they are named."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs, conditions
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.kubelet import Played
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End, Life

FINALIZER = "example.com/held"
FORGED = "example.com/forged"  # annotation: how the pod ends, as an exit code, or `runs`


@pytest.fixture
async def elsewhere(client: Client, api_server: ApiServer, namespace: str) -> AsyncIterator[str]:
    """Another tenant's namespace; its pods lose their finalizers in the end."""
    name = f"{namespace}-b"
    api_server.create_namespace(name)
    yield name
    for where in (name, namespace):
        path = f"/api/v1/namespaces/{where}/pods"
        for pod in (await client.request("GET", path))["items"]:
            body = {"metadata": {"finalizers": None}}
            name = pod["metadata"]["name"]
            await client.request("PATCH", f"{path}/{name}", body, content_type=MERGE)
        api_server.request("DELETE", f"/api/v1/namespaces/{where}")


def life(pod: Body) -> Life:
    end = (pod["metadata"].get("annotations") or {}).get(FORGED, "runs")
    if end == "runs":
        return Life()
    message = "ValueError: forged" if end != "0" else ""
    return Life(run_seconds=0.0, end=End(int(end), message))


class Forger:
    """Makes pods that say they are the job `digits`'s, in its namespace or in another."""

    def __init__(self, client: Client, jobs: Jobs, namespace: str) -> None:
        self.client, self.jobs, self.namespace = client, jobs, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    async def own(self, name: str) -> Body:
        """The pod of this name in the job's namespace."""
        return await self.client.request("GET", f"{self.path}/{name}")

    async def pod(
        self,
        attempt: int,
        rank: int,
        end: str,
        *,
        namespace: str | None = None,
        copy: Body | None = None,
    ) -> Body:
        """A pod of this name on a node, with the job's labels, owner and a finalizer.

        `copy` is a pod whose labels and annotations it has too.
        """
        job = (await self.jobs.get())["metadata"]
        labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.JOB_UID_LABEL: job["uid"]}
        meta = copy["metadata"] if copy else {}
        owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "controller": True}
        body = {
            "metadata": {
                "name": names.pod_name(job["name"], attempt, rank),
                "labels": {**labels, **(meta.get("labels") or {})},
                "annotations": {**(meta.get("annotations") or {}), FORGED: end},
                "ownerReferences": [{**owner, "name": job["name"], "uid": job["uid"]}],
                "finalizers": [FINALIZER],
            },
            "spec": {
                "nodeName": "node-a",
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [{"name": names.TRAINER_CONTAINER, "image": "forged:1"}],
            },
        }
        path = f"/api/v1/namespaces/{namespace or self.namespace}/pods"
        return await self.client.request("POST", path, body)

    async def ended(self, pod: Body) -> None:
        """Until its kubelet has said how it ended, or somebody has begun to delete it.

        One that is to run on is not waited for.
        """
        meta = pod["metadata"]
        if meta["annotations"][FORGED] == "runs":
            return
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        async with asyncio.timeout(200):
            while True:
                pod = await self.client.request("GET", path)
                is_deleted = "deletionTimestamp" in pod["metadata"]
                if is_deleted or pod["status"]["phase"] in ("Succeeded", "Failed"):
                    return
                await asyncio.sleep(0.05)


async def has_settled(jobs: Jobs, name: str = "settles") -> None:
    """Until another job has come to its end: what was seen before has been dealt with by then."""
    await jobs.create(name)
    await jobs.in_state("Running", name)
    await jobs.delete(name)


def untouched(job: Body) -> bool:
    status = job["status"]
    counters = (status["attempt"], status["restarts"], status["budget"]["charged"])
    return status["state"] == "Running" and counters == (0, 0, 0) and "failure" not in status


async def assert_untouched(jobs: Jobs) -> None:
    """The job runs as before, and still does what its owner asks."""
    await has_settled(jobs)
    assert untouched(await jobs.get())
    await jobs.patch(suspend=True)
    await jobs.in_state("Suspended")


@pytest.fixture
async def forger(
    operator: OperatorProcess,
    jobs: Jobs,
    played: Played,
    client: Client,
    namespace: str,
    elsewhere: str,
) -> AsyncIterator[Forger]:
    """Somebody else, beside an operator and kubelets that play all pods."""
    async with played(life, bind=lambda pod: True):
        yield Forger(client, jobs, namespace)


@pytest.mark.deep
@pytest.mark.parametrize("end", ["0", "1", "runs"])
async def test_a_pod_in_another_namespace_does_nothing_to_the_job(
    forger: Forger, jobs: Jobs, elsewhere: str, end: str
) -> None:
    await jobs.create()
    await jobs.in_state("Running")
    for attempt, rank in itertools.product((0, 1, 7), (0, 1)):
        await forger.ended(await forger.pod(attempt, rank, end, namespace=elsewhere))
    await assert_untouched(jobs)


@pytest.mark.parametrize("end", ["0", "1", "runs"])
async def test_a_pod_that_the_operator_did_not_make_does_nothing_to_the_job(
    forger: Forger, jobs: Jobs, end: str
) -> None:
    await jobs.create()
    await jobs.in_state("Running")
    own = await forger.own("digits-0-0")
    for attempt, rank in ((1, 0), (7, 1), (0, 2)):
        await forger.ended(await forger.pod(attempt, rank, end, copy=own))
    await assert_untouched(jobs)


async def test_a_pod_that_takes_the_place_of_one_counts_for_nothing_after_a_restart_too(
    forger: Forger, operator: OperatorProcess, jobs: Jobs, client: Client
) -> None:
    """With all that a stranger can copy, while no operator is there to see it."""
    await jobs.create()
    await jobs.in_state("Running")
    await jobs.until(lambda job: len(job["status"]["pods"][0]["uids"]) == 12)
    operator.kill()
    for rank in (0, 1):
        own = await forger.own(f"digits-0-{rank}")
        await client.request("DELETE", f"{forger.path}/digits-0-{rank}", {"gracePeriodSeconds": 0})
        async with asyncio.timeout(200):
            while True:
                try:
                    forged = await forger.pod(0, rank, "0", copy=own)
                    break
                except ApiError as error:
                    assert error.code == 409
        await forger.ended(forged)
    operator.start()
    job = await jobs.until(
        lambda job: job["status"]["attempt"] == 1 and job["status"]["state"] == "Running"
    )
    status = job["status"]
    assert (status["restarts"], status["budget"]["charged"]) == (1, 0)
    assert status["failure"]["reason"] in ("ResultUnknown", "PodDeleted")


@pytest.mark.parametrize("end", ["0", "runs"])
async def test_a_name_that_somebody_takes_first_is_told_and_freed(
    forger: Forger, jobs: Jobs, client: Client, end: str
) -> None:
    await jobs.create(suspend=True)
    await jobs.in_state("Suspended")
    forged = await forger.pod(0, 1, end)
    await jobs.patch(suspend=False)
    job = await jobs.until(lambda job: conditions(job).get("Accepted") == ("False", "NameTaken"))
    assert job["status"].get("succeededRanks", "") == ""
    (accepted,) = [c for c in job["status"]["conditions"] if c["type"] == "Accepted"]
    assert "digits-0-1" in accepted["message"]
    async with asyncio.timeout(200):
        while "deletionTimestamp" not in (await forger.own("digits-0-1"))["metadata"]:
            await asyncio.sleep(0.05)
    body = {"metadata": {"finalizers": None}}
    await client.request("PATCH", f"{forger.path}/digits-0-1", body, content_type=MERGE)
    job = await jobs.in_state("Running")
    assert job["status"]["restarts"] == 0
    own = await forger.own("digits-0-1")
    assert own["metadata"]["uid"] != forged["metadata"]["uid"]
