"""A group that goes on with fewer nodes: real agents on a real API server."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs
from tests.api.processes import jobs, script
from tests.api.test_replacement import delete, uids
from tests.api.test_rounds import IN_PLACE, end_well, is_in

__all__ = ["jobs"]  # a fixture

# Each rank writes a line as it begins, and for each of its steps. If there is a file that says
# `stubborn`, it ends no sooner than its agent kills it.
TRAIN = """
    import os, signal, sys, time, torch, torch.distributed as dist
    folder = sys.argv[1]
    def on_term(*_):
        if not os.path.exists(os.path.join(folder, "stubborn")):
            sys.exit(1)
    signal.signal(signal.SIGTERM, on_term)
    number, rank = os.environ["DDPJOB_ROUND"], os.environ["RANK"]
    end = os.path.join(folder, "end")
    file = open(os.path.join(folder, f"steps-{number}-{rank}-{os.getpid()}"), "a", buffering=1)
    print(time.time(), file=file)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    is_over = torch.zeros(1)
    while not is_over:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        print(time.time(), file=file)
        time.sleep(0.02)
        is_over[0] = os.path.exists(end)
        dist.all_reduce(is_over, dist.ReduceOp.MAX)
"""

AT_ONCE = {"minNodes": 2, "replaceSeconds": 0}


async def begin(jobs: Jobs, folder: Path, nnodes: int, elastic: Body, **spec: Any) -> None:
    """A job that trains with as many nodes as it may have."""
    spec = {"failurePolicy": IN_PLACE, "terminationGracePeriodSeconds": 10, **spec}
    args = [script(folder, TRAIN), str(folder)]
    await jobs.create(args=args, nnodes=nnodes, elastic=elastic, **spec)


def steps(folder: Path) -> dict[tuple[int, int], list[list[float]]]:
    """By round and rank, of each process the times of its beginning and of its steps."""
    found = defaultdict(list)
    for path in folder.glob("steps-*"):
        number, rank = map(int, path.name.split("-")[1:3])
        found[number, rank].append([float(line) for line in path.read_text().splitlines()])
    return found


async def trains(jobs: Jobs, folder: Path, number: int, nnodes: int) -> dict[str, Any]:
    """Wait until all ranks of a round make steps; the status once it says so."""

    def all_do(_: Body) -> bool:
        found = steps(folder)
        return all(any(len(its) > 1 for its in found[number, rank]) for rank in range(nnodes))

    await jobs.until(all_do)
    return await is_in(jobs, 0, number)


def rounds(folder: Path) -> list[tuple[int, int]]:
    """The rounds with their sizes: each rank once, and none before all of the last one are dead."""
    found, sizes = steps(folder), dict[int, int]()
    for (number, rank), processes in sorted(found.items()):
        assert len(processes) == 1, (number, rank)
        sizes[number] = sizes.get(number, 0) + 1
        ends = [each[-1] for (n, _), its in found.items() for each in its if n < number]
        assert processes[0][0] > max(ends, default=0.0), (number, rank)
    assert {*found} == {(number, rank) for number in sizes for rank in range(sizes[number])}
    return sorted(sizes.items())


async def set_quota(jobs: Jobs, pods: int) -> None:
    """Let the namespace have so many pods."""
    path = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
    body = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(pods)}}}
    await jobs.client.request("POST", path, body)
    async with asyncio.timeout(60):
        while True:
            found = await jobs.client.request("GET", f"{path}/few")
            if found.get("status", {}).get("hard", {}).get("pods") == str(pods):
                return
            await asyncio.sleep(0.1)


@pytest.mark.deep
@pytest.mark.parametrize("rank", [1, 0])
async def test_no_rank_begins_while_a_lost_pod_takes_its_time(
    jobs: Jobs, tmp_path: Path, rank: int
) -> None:
    """Nor does any end sooner, though the pod takes longer than nodes may be silent for."""
    spec = {"launcher": "python", "nodeTimeoutSeconds": 8, "terminationGracePeriodSeconds": 15}
    await begin(jobs, tmp_path, 3, AT_ONCE, **spec)
    await trains(jobs, tmp_path, 0, 3)
    (tmp_path / "stubborn").touch()
    await delete(jobs, names.pod_name("digits", 0, rank))
    status = await trains(jobs, tmp_path, 1, 2)
    assert status["nodes"]["desired"] == 2
    assert rounds(tmp_path) == [(0, 3), (1, 2)]
    assert not [log for log in tmp_path.glob("*/logs/*.log") if "NodeSilent" in log.read_text()]
    await end_well(jobs, tmp_path)


@pytest.mark.deep
async def test_two_pods_are_lost_one_after_the_other(jobs: Jobs, tmp_path: Path) -> None:
    await begin(jobs, tmp_path, 4, AT_ONCE)
    await trains(jobs, tmp_path, 0, 4)
    (tmp_path / "stubborn").touch()
    await delete(jobs, names.pod_name("digits", 0, 3))
    await jobs.until(lambda job: job["status"]["round"] == 1)
    await delete(jobs, names.pod_name("digits", 0, 0))
    status = await trains(jobs, tmp_path, 2, 2)
    assert (status["nodes"]["desired"], status["budget"]["charged"]) == (2, 0)
    assert rounds(tmp_path) == [(0, 4), (2, 2)]
    await end_well(jobs, tmp_path)


async def test_of_two_nodes_one_goes_on(jobs: Jobs, tmp_path: Path) -> None:
    await begin(jobs, tmp_path, 2, {**AT_ONCE, "minNodes": 1})
    await trains(jobs, tmp_path, 0, 2)
    before = await uids(jobs)
    await delete(jobs, "digits-0-0")
    await trains(jobs, tmp_path, 1, 1)
    assert (await uids(jobs))["digits-0-1"] == before["digits-0-1"]
    assert rounds(tmp_path) == [(0, 2), (1, 1)]
    await end_well(jobs, tmp_path)


@pytest.mark.deep
async def test_an_attempt_begins_with_a_part(jobs: Jobs, tmp_path: Path) -> None:
    """Whichever pods these are; none goes on without the other one."""
    await set_quota(jobs, 2)
    await begin(jobs, tmp_path, 4, {"minNodes": 2, "replaceSeconds": 3})
    status = await trains(jobs, tmp_path, 1, 2)
    assert status["nodes"]["desired"] == 2 and rounds(tmp_path) == [(1, 2)]
    await end_well(jobs, tmp_path)


@pytest.mark.deep
async def test_a_loss_is_borne_where_no_pod_may_be_made(jobs: Jobs, tmp_path: Path) -> None:
    await begin(jobs, tmp_path, 3, {"minNodes": 2, "replaceSeconds": 20})
    await trains(jobs, tmp_path, 0, 3)
    await set_quota(jobs, 2)
    await delete(jobs, "digits-0-1")
    await jobs.until(lambda job: "quota" in str(job["status"]["conditions"]))
    await trains(jobs, tmp_path, 2, 2)
    assert rounds(tmp_path) == [(0, 3), (2, 2)]
    await end_well(jobs, tmp_path)
