"""Real torchrun, with processes for pods, on a real API server: all but images and nodes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import Jobs, conditions
from tests.api.processes import jobs, script

__all__ = ["jobs"]  # a fixture
pytestmark = pytest.mark.timeout(400)


def column(job: dict[str, Any], name: str) -> str:
    return str(job.get("status", {}).get("summary", {}).get(name, ""))


async def test_digits_train_and_their_progress_is_seen(jobs: Jobs) -> None:
    await jobs.create(args=["-m", "ddptrain.native", "--epochs", "60"])
    seen = await jobs.until(lambda job: "/" in column(job, "step"))
    assert seen["status"]["progress"]["source"] == "file"
    job = await jobs.in_state("Succeeded")
    progress = job["status"]["progress"]
    assert progress["step"] == progress["totalSteps"] > 0 and progress["percent"] == 100
    metrics = {metric["name"]: float(metric["value"]) for metric in progress["metrics"]}
    assert max(value for name, value in metrics.items() if "accuracy" in name) >= 0.97


@pytest.mark.deep
async def test_a_script_that_knows_nothing_of_us(jobs: Jobs, tmp_path: Path) -> None:
    """Its steps are counted, and its own exception on rank 1 is named, not its peers' noise."""
    source = """
        import os, sys, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.05)
            if os.path.exists(sys.argv[1]) and dist.get_rank() == 1:
                raise KeyError("no such sample")
    """
    seen_file = tmp_path / "seen"
    args = [script(tmp_path, source), str(seen_file)]
    await jobs.create(args=args, nnodes=3, failurePolicy={"maxRestarts": 0})
    seen = await jobs.until(lambda job: column(job, "step"))
    assert (
        seen["status"]["progress"]["source"] == "counted"
        and "loss" not in seen["status"]["summary"]
    )
    seen_file.touch()
    job = await jobs.in_state("Failed")
    failure = job["status"]["failure"]
    assert (failure["rank"], failure["exception"], failure["exitCode"]) == (1, "KeyError", 1)
    assert "no such sample" in failure["message"]


async def test_a_workers_own_exit_code_is_told(jobs: Jobs, tmp_path: Path) -> None:
    args = [script(tmp_path, "import os, sys; sys.exit(3 if os.environ['RANK'] == '1' else 0)")]
    await jobs.create(args=args, nprocPerNode=2, nnodes=1, failurePolicy={"maxRestarts": 0})
    failure = (await jobs.in_state("Failed"))["status"]["failure"]
    assert (failure["exitCode"], failure["rank"], failure["reason"]) == (3, 1, "ExitCode")


@pytest.mark.deep
async def test_a_hang_is_named_and_the_next_round_goes_on(jobs: Jobs, tmp_path: Path) -> None:
    """Rank 1 stops outside a collective, in the first round; it knows nothing of us."""
    source = """
        import os, signal, sys, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(160):  # longer than two polls of the progress
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.05)
            if step == 40 and dist.get_rank() == 1 and os.environ["DDPJOB_ROUND"] == "0":
                os.kill(os.getpid(), signal.SIGSTOP)
    """
    # On a busy machine a rank that is done may take more than 10 s to end.
    await jobs.create(args=[script(tmp_path, source)], nnodes=2, hangTimeoutSeconds=30)
    job = await jobs.until(lambda job: conditions(job).get("Stalled") == ("True", "Hang"))
    failure = job["status"]["failure"]
    assert (failure["reason"], failure["rank"]) == ("Hang", 1)
    assert "is stopped (SIGSTOP)" in failure["message"]
    job = await jobs.in_state("Succeeded")
    assert job["status"]["restarts"] == 1, json.dumps(job["status"]["history"], indent=1)
    assert job["status"]["budget"]["charged"] == 1
    assert conditions(job)["Stalled"] == ("False", "Progress")


@pytest.mark.deep
async def test_launcher_python_is_env_and_one_process_a_pod(jobs: Jobs, tmp_path: Path) -> None:
    source = """
        import os, torch, torch.distributed as dist
        assert "TORCHELASTIC_RUN_ID" not in os.environ  # no torchrun
        dist.init_process_group("gloo", init_method="env://")
        total = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(total)
        assert total.item() == 3.0 and os.environ["LOCAL_RANK"] == "0", total
        if os.environ["DDPJOB_ROUND"] == "0" and dist.get_rank() == 1:
            raise LookupError("first try")
        dist.barrier()
    """
    await jobs.create(launcher="python", args=[script(tmp_path, source)])
    job = await jobs.in_state("Succeeded")
    failure = job["status"]["failure"]
    assert (failure["rank"], failure["exception"]) == (1, "LookupError"), failure
    # On a busy machine the process that has raised sometimes ends by a signal all the same.
    assert failure.get("exitCode") == 1 or failure.get("signal"), failure
    assert job["status"]["restarts"] == 1


LAUNCH = ["python3", "-m", "torch.distributed.launch"]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("spec", "module"),
    [
        ({"launcher": "python"}, "ddptrain.native"),
        ({"launcher": "accelerate"}, "ddptrain.accelerated"),
        ({"command": [*LAUNCH, "-m", "ddptrain.native", "--epochs", "2"]}, ""),
    ],
    ids=["python", "accelerate", "torch.distributed.launch"],
)
async def test_other_launchers_run_the_trainers(
    jobs: Jobs, spec: dict[str, Any], module: str
) -> None:
    args = [] if "command" in spec else ["-m", module, "--epochs", "2"]
    await jobs.create(**spec, args=args)
    status = (await jobs.in_state("Succeeded"))["status"]
    assert status["summary"]["step"] == "46/46" and status["worldSize"] == 2


@pytest.mark.deep
async def test_a_script_that_starts_its_own_processes(jobs: Jobs, tmp_path: Path) -> None:
    """mp.spawn, two processes in each of two pods: ranks follow from the pods' RANK."""
    source = """
        import os, torch, torch.distributed as dist, torch.multiprocessing as mp

        def work(local_rank, node, nodes, each):
            rank, world = node * each + local_rank, nodes * each
            dist.init_process_group("gloo", rank=rank, world_size=world)
            total = torch.tensor([float(rank)])
            dist.all_reduce(total)
            assert (world, total.item()) == (4, 6.0), (world, total)

        if __name__ == "__main__":
            node, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            mp.spawn(work, args=(node, nodes, 2), nprocs=2)
    """
    await jobs.create(launcher="python", args=[script(tmp_path, source)])
    await jobs.in_state("Succeeded")


@pytest.mark.deep
async def test_rank_0_has_its_own_resources_and_overlay(jobs: Jobs, tmp_path: Path) -> None:
    source = """
        import os
        own = os.environ["RANK"] == "0"
        assert os.environ["OMP_NUM_THREADS"] == ("2" if own else "1")
        assert os.environ.get("ROLE", "worker") == ("master" if own else "worker")
    """
    role = {"name": "trainer", "env": [{"name": "ROLE", "value": "master"}]}
    await jobs.create(
        args=[script(tmp_path, source)],
        resources={"limits": {"cpu": "1"}},
        master={
            "resources": {"limits": {"cpu": "2"}},
            "template": {"spec": {"containers": [role]}},
        },
    )
    await jobs.in_state("Succeeded")
