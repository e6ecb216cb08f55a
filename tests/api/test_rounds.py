"""Restarts in place by real agents on a real API server."""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import Jobs
from tests.api.processes import jobs, script
from tests.cluster.operator import OperatorProcess

__all__ = ["jobs"]  # a fixture

# Each rank says who it is in a file, and trains until there is one that says `end`.
TRAIN = """
    import os, sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, end = dist.get_rank(), os.path.join(sys.argv[1], "end")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    place = os.environ["DDPJOB_ATTEMPT"] + "-" + os.environ["DDPJOB_ROUND"]
    is_over = torch.zeros(1)
    while not is_over:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        path = os.path.join(sys.argv[1], f"{place}-{rank}")
        if not os.path.exists(path):
            with open(path + ".tmp", "w") as file:
                told = [os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")]
                file.write(" ".join([str(os.getpid()), *told, os.environ["DDPJOB_WORLD_SIZE"]]))
            os.rename(path + ".tmp", path)
        time.sleep(0.02)
        is_over[0] = os.path.exists(end)
        dist.all_reduce(is_over, dist.ReduceOp.MAX)
"""
IN_PLACE: dict[str, Any] = {
    "restartStrategy": "InPlace",
    "maxRestarts": 100,
    "backoffSeconds": {"first": 1, "cap": 1},
}
KILLS = int(os.environ.get("DDPJOB_OPERATOR_KILLS", "6"))


async def begin(jobs: Jobs, folder: Path, nnodes: int = 2, **spec: Any) -> None:
    """A job that trains."""
    args = [script(folder, TRAIN), str(folder)]
    await jobs.create(args=args, nnodes=nnodes, failurePolicy=IN_PLACE, **spec)
    await trains(jobs, folder, 0, 0, nnodes)
    await jobs.in_state("Running")


async def trains(jobs: Jobs, folder: Path, attempt: int, number: int, nnodes: int = 2) -> list[int]:
    """Wait until all ranks make steps in this round; their pids."""
    files = [folder / f"{attempt}-{number}-{rank}" for rank in range(nnodes)]
    await jobs.until(lambda job: all(file.exists() for file in files))
    return [int(file.read_text().split()[0]) for file in files]


def restart_counts(folder: Path) -> dict[str, str]:
    """How often its job has been started again, as each rank of each round was told."""
    found = sorted(folder.glob("[0-9]*-*-[01]"))
    return {path.name: path.read_text().split()[1] for path in found}


async def is_in(jobs: Jobs, attempt: int, number: int) -> dict[str, Any]:
    """Wait until the job runs in this round; its status."""

    def runs(job: dict[str, Any]) -> bool:
        status = job["status"]
        place = status["attempt"], status["round"], status["state"]
        return place == (attempt, number, "Running")

    status: dict[str, Any] = (await jobs.until(runs))["status"]
    return status


async def end_well(jobs: Jobs, folder: Path) -> dict[str, Any]:
    (folder / "end").touch()
    status: dict[str, Any] = (await jobs.in_state("Succeeded"))["status"]
    return status


async def test_a_killed_rank_costs_a_round_and_no_pod(jobs: Jobs, tmp_path: Path) -> None:
    await begin(jobs, tmp_path)
    pods = [pod["metadata"]["uid"] for pod in await jobs.pods_as_they_are()]
    for number in range(3):
        pids = await trains(jobs, tmp_path, 0, number)
        os.kill(pids[number % 2], signal.SIGKILL)
        await trains(jobs, tmp_path, 0, number + 1)
        status = await is_in(jobs, 0, number + 1)
        failure = status["failure"]
        assert (failure["rank"], failure["signal"]) == (number % 2, "SIGKILL")
        assert (failure["attempt"], failure["round"]) == (0, number)
    assert [pod["metadata"]["uid"] for pod in await jobs.pods_as_they_are()] == pods
    status = await end_well(jobs, tmp_path)
    assert (status["restarts"], status["budget"]["charged"]) == (3, 3)
    history = [(past["attempt"], past["round"], past["reason"]) for past in status["history"]]
    assert history == [(0, number, "Signal") for number in range(3)] + [(0, 3, "Succeeded")]
    assert restart_counts(tmp_path) == {
        f"0-{n}-{rank}": f"{n}" for n in range(4) for rank in (0, 1)
    }


@pytest.mark.deep
@pytest.mark.gate
async def test_the_operator_dies_in_the_same_moment(
    jobs: Jobs, tmp_path: Path, operator: OperatorProcess
) -> None:
    """Again and again, at any moment of a restart in place: each failure is charged once."""
    await begin(jobs, tmp_path)
    pause = random.Random(5)
    for number in range(KILLS):
        pids = await trains(jobs, tmp_path, 0, number)
        os.kill(pids[1], signal.SIGKILL)
        await asyncio.sleep(pause.uniform(0, 0.4))
        operator.kill()
        operator.start()
        await trains(jobs, tmp_path, 0, number + 1)
        await is_in(jobs, 0, number + 1)
    status = await end_well(jobs, tmp_path)
    assert (status["restarts"], status["budget"]["charged"]) == (KILLS, KILLS)
    ranks = sorted(file.name for file in tmp_path.glob("[0-9]-*-[0-9]"))
    assert ranks == sorted(f"0-{n}-{rank}" for n in range(KILLS + 1) for rank in range(2))
