"""A pod is lost, and the others stay: real agents on a real API server."""

import asyncio
import random
from pathlib import Path

import pytest

from ddpjob import names
from ddpjob.cluster import PODS
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs
from tests.api.processes import jobs
from tests.api.test_rounds import begin, end_well, is_in, trains
from tests.cluster.operator import OperatorProcess

__all__ = ["jobs"]  # a fixture


async def delete(jobs: Jobs, name: str) -> None:
    await jobs.client.request("DELETE", f"{PODS.path(jobs.namespace)}/{name}")


async def uids(jobs: Jobs) -> dict[str, str]:
    """Of the pods, by name."""
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in await jobs.pods_as_they_are()}


@pytest.mark.deep
@pytest.mark.parametrize("rank", [1, 0])
async def test_a_deleted_pod_is_replaced_and_the_other_one_stays(
    jobs: Jobs, tmp_path: Path, rank: int
) -> None:
    await begin(jobs, tmp_path)
    before, name = await uids(jobs), names.pod_name("digits", 0, rank)
    for number in range(3):
        await delete(jobs, name)
        await trains(jobs, tmp_path, 0, number + 1)
        status = await is_in(jobs, 0, number + 1)
        assert status["failure"]["reason"] == "PodDeleted"
        name = names.pod_name("digits", 0, rank, number + 1)
        other = names.pod_name("digits", 0, 1 - rank)
        after = await uids(jobs)
        assert after.keys() == {name, other} and after[other] == before[other]
    status = await end_well(jobs, tmp_path)
    assert (status["attempt"], status["restarts"], status["budget"]["charged"]) == (0, 3, 0)


@pytest.mark.deep
@pytest.mark.parametrize("rank", [1, 0])
async def test_a_spare_gets_the_rank_of_a_deleted_pod(
    jobs: Jobs, tmp_path: Path, rank: int
) -> None:
    await begin(jobs, tmp_path, spares=1)
    await jobs.until(lambda job: job["status"]["summary"]["nodes"] == "2/2+1")
    before = await uids(jobs)
    await delete(jobs, names.pod_name("digits", 0, rank))
    await trains(jobs, tmp_path, 0, 1)
    status = await is_in(jobs, 0, 1)
    assert status["failure"]["reason"] == "PodDeleted"
    other, spare = names.pod_name("digits", 0, 1 - rank), "digits-0-s1"
    after = await uids(jobs)
    assert after == {other: before[other], spare: before[spare]}
    status = await end_well(jobs, tmp_path)
    assert (status["attempt"], status["restarts"]) == (0, 1)
    assert status["progress"]["round"] == 1


@pytest.mark.deep
@pytest.mark.parametrize("rank", [0, 1, 2])
async def test_a_smaller_group_goes_on_and_gets_larger_again(
    jobs: Jobs, tmp_path: Path, rank: int
) -> None:
    elastic = {"minNodes": 2, "replaceSeconds": 0, "growSeconds": 2}
    await begin(jobs, tmp_path, nnodes=3, elastic=elastic)
    before = await uids(jobs)
    await delete(jobs, names.pod_name("digits", 0, rank))
    await trains(jobs, tmp_path, 0, 1)
    await trains(jobs, tmp_path, 0, 2, nnodes=3)
    status = await is_in(jobs, 0, 2)
    reasons = [past["reason"] for past in status["history"]]
    assert reasons == ["PodDeleted", "GroupResized"]
    stay = {names.pod_name("digits", 0, other) for other in {0, 1, 2} - {rank}}
    after = await uids(jobs)
    assert after.keys() == stay | {"digits-0-s1"}
    assert {after[name] for name in stay} == {before[name] for name in stay}
    told = {path.name: path.read_text().split()[2:] for path in tmp_path.glob("[0-9]-*-*")}
    sizes = {0: "3", 1: "2", 2: "3"}
    assert told == {
        f"0-{number}-{its}": [size, size]
        for number, size in sizes.items()
        for its in range(int(size))
    }
    status = await end_well(jobs, tmp_path)
    assert (status["attempt"], status["budget"]["charged"], status["worldSize"]) == (0, 0, 3)


@pytest.mark.deep
@pytest.mark.gate
async def test_the_operator_dies_while_a_pod_is_replaced(
    jobs: Jobs, tmp_path: Path, operator: OperatorProcess
) -> None:
    await begin(jobs, tmp_path)
    pause, last = random.Random(7), {0: "digits-0-0", 1: "digits-0-1"}
    number = 0
    for turn in range(6):
        rank = turn % 2
        await delete(jobs, last[rank])
        await asyncio.sleep(pause.uniform(0, 1.0))
        operator.kill()
        operator.start()
        before = number

        def runs_on(job: Body, before: int = before) -> bool:
            return job["status"]["state"] == "Running" and place(job) > (0, before)

        attempt, number = place(await jobs.until(runs_on))
        if attempt:  # nobody saw how it had ended
            break
        pods = await uids(jobs)
        last = {found[1]: name for name in pods if (found := names.place(name))}
    await end_well(jobs, tmp_path)


@pytest.mark.deep
async def test_two_pods_are_lost_at_once(jobs: Jobs, tmp_path: Path) -> None:
    await begin(jobs, tmp_path, nnodes=3, spares=1)
    await jobs.until(lambda job: job["status"]["summary"]["nodes"] == "3/3+1")
    before = await uids(jobs)
    await asyncio.gather(delete(jobs, "digits-0-0"), delete(jobs, "digits-0-1"))
    status = await jobs.until(
        lambda job: job["status"]["state"] == "Running" and place(job) > (0, 0)
    )
    number = status["status"]["round"]  # 2 if one was seen before the other
    await trains(jobs, tmp_path, 0, number, nnodes=3)
    after = await uids(jobs)
    stay = {"digits-0-2", "digits-0-s1"}
    assert {name: after[name] for name in stay} == {name: before[name] for name in stay}
    (new,) = after.keys() - before.keys()
    assert new in {names.pod_name("digits", 0, 1, n) for n in (1, 2)}
    status = await end_well(jobs, tmp_path)
    assert (status["attempt"], status["budget"]["charged"]) == (0, 0)


@pytest.mark.deep
async def test_where_rank_0_alone_has_the_checkpoint_its_pod_is_replaced(
    jobs: Jobs, tmp_path: Path
) -> None:
    checkpoint = {"mountOn": "Rank0", "volume": {"emptyDir": {}}}
    await begin(jobs, tmp_path, spares=1, checkpoint=checkpoint)
    await jobs.until(lambda job: job["status"]["summary"]["nodes"] == "2/2+1")
    before = await uids(jobs)
    for rank, name in ((0, "digits-0-0-r1"), (1, "digits-0-s1")):
        await delete(jobs, names.pod_name("digits", 0, rank))
        await trains(jobs, tmp_path, 0, rank + 1)
        await is_in(jobs, 0, rank + 1)
        assert name in await uids(jobs)
    assert (await uids(jobs))["digits-0-s1"] == before["digits-0-s1"]
    status = await end_well(jobs, tmp_path)
    assert (status["attempt"], status["budget"]["charged"]) == (0, 0)


def place(job: Body) -> tuple[int, int]:
    return job["status"]["attempt"], job["status"]["round"]
