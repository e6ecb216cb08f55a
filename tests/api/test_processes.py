"""Real torchrun, with processes for pods, on a real API server: all but images and nodes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import Jobs, conditions
from tests.api.processes import jobs, script

__all__ = ["jobs"]  # a fixture


def column(job: dict[str, Any], name: str) -> str:
    return str(job.get("status", {}).get("summary", {}).get(name, ""))


@pytest.mark.deep
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
