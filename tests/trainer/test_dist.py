import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from ddpjob_agent.config import Config
from ddpjob_agent.start import of_round
from ddptrain.dist import Launch, LaunchError, World, barrier, process_group, read_environment
from tests.agentpod import environment

RANK_1_OF_2 = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "digits-0-0.digits",
    "MASTER_PORT": "29500",
}


def test_without_a_launcher_it_is_one_process_on_the_cpu() -> None:
    assert read_environment({}, gpus=0) == Launch(0, 1, 0, "gloo", "", 0, launched=False)


def test_the_launchers_and_the_jobs_variables_are_read() -> None:
    job = {"DDPJOB_WORLD_SIZE": "2", "DDPJOB_ATTEMPT": "3", "PET_RDZV_ID": "0f1e-77-3"}
    launch = read_environment(RANK_1_OF_2 | job, gpus=0)
    assert launch == Launch(1, 2, 1, "gloo", job="0f1e-77", attempt=3, launched=True, round=0)


@pytest.mark.parametrize("number", [0, 1, 3, 77])
def test_the_rounds_of_an_attempt_are_of_one_job(number: int, tmp_path: Path) -> None:
    """The agent gives each a rendezvous of its own, in whose id the job's is."""
    job = {"DDPJOB_ATTEMPT": "3", "PET_RDZV_ID": "0f1e-77-3"}
    pod = environment(tmp_path, "127.0.0.1") | job
    launch = read_environment(of_round(Config(pod).of_round(number), pod), gpus=0)
    assert (launch.job, launch.attempt, launch.round) == ("0f1e-77", 3, number)


@pytest.mark.parametrize(
    ("gpus", "asked", "backend"),
    [(0, "", "gloo"), (2, "", "nccl"), (2, "gloo", "gloo"), (2, "nccl", "nccl")],
)
def test_gpus_mean_nccl_unless_the_job_says_otherwise(gpus: int, asked: str, backend: str) -> None:
    assert read_environment(RANK_1_OF_2 | {"DDPJOB_BACKEND": asked}, gpus=gpus).backend == backend


@pytest.mark.parametrize(
    ("environment", "gpus", "message"),
    [
        ({"RANK": "one"}, 0, "RANK must be a number of 0 or more, got 'one'"),
        ({"RANK": "2"}, 0, "RANK is 2, but must be below WORLD_SIZE, which is 2"),
        ({"MASTER_ADDR": ""}, 0, "RANK is set but MASTER_ADDR is not: use torchrun"),
        ({"DDPJOB_BACKEND": "mpi"}, 0, "DDPJOB_BACKEND must be nccl or gloo, got 'mpi'"),
        ({}, 1, "LOCAL_RANK is 1, but this process sees 1 GPUs"),
        ({"DDPJOB_BACKEND": "nccl"}, 0, "LOCAL_RANK is 1, but this process sees 0 GPUs"),
        (
            {"DDPJOB_WORLD_SIZE": "4"},
            0,
            r"WORLD_SIZE=2, but the job expects DDPJOB_WORLD_SIZE=4: the launcher was given fewer",
        ),
        ({"DDPJOB_WORLD_SIZE": "1"}, 0, "DDPJOB_WORLD_SIZE=1: the launcher was given more nodes"),
    ],
)
def test_an_environment_that_cannot_work_is_explained(
    environment: dict[str, str], gpus: int, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        read_environment(RANK_1_OF_2 | environment, gpus=gpus)


def test_a_lone_process_of_a_larger_job_does_not_train_alone() -> None:
    with pytest.raises(LaunchError, match="was started without a launcher: use torchrun"):
        read_environment({"DDPJOB_WORLD_SIZE": "2"}, gpus=0)


def test_a_process_without_a_launcher_gets_a_group_of_one(world: World) -> None:
    assert (world.rank, world.size, world.is_main) == (0, 1, True)
    assert world.device.type == "cpu"


def test_on_cpus_no_group_is_bound_to_a_device(world: World) -> None:
    """Bound to a GPU, NCCL connects at once; for gloo, torch refuses a device without an index."""
    default = dist.group.WORLD
    assert default is not None
    assert [group.bound_device_id for group in (default, world.control, world.disk)] == [None] * 3
    barrier(world.control)
    barrier(world.disk)


# What a rank that fails has running: NCCL's threads, say. The interpreter would wait for them.
FAILS = """
import atexit, sys, threading, time
from datetime import timedelta
from pathlib import Path
from torch.distributed.elastic.multiprocessing.errors import record
from ddptrain.dist import process_group

@record
def main():
    with process_group(timeout=timedelta(seconds=60)):
        atexit.register(lambda: print("exit functions have run"))
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        raise RuntimeError("boom")

print("begun", flush=True)
main()
"""


def test_a_rank_that_fails_leaves_at_once(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    rank = start("-c", FAILS, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    output, _ = rank.communicate(timeout=280)
    assert rank.returncode == 1
    assert "RuntimeError: boom" in output and "exit functions have run" in output
    assert "boom" in (tmp_path / "error.json").read_text()


CALLED_LATE = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from ddptrain.dist import leave, process_group

class Slow:
    def __del__(self):  # in the interpreter's own end: the other rank answers meanwhile
        open({file!r}, "w").close()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            time.sleep(0.01)

with process_group(timeout=timedelta(seconds=60)) as world:
    deadline = time.monotonic() + {patience}
    while world.rank == 0 and not os.path.exists({file!r}) and time.monotonic() < deadline:
        time.sleep(0.01)
    work = dist.all_reduce(torch.zeros(1), group=world.control, async_op=True)
    work.get_future().then(lambda _: None)
    if world.rank == 0:
        work.wait()
        time.sleep(3)
sys.modules["slow"] = Slow()
print("ends", end="")
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "patience"), [("leave(75)", 75, 1), ("sys.exit(75)", -signal.SIGABRT, 60)]
)
def test_a_late_answer_of_gloo_does_not_abort_who_leaves(
    start_ranks: Callable[..., "list[subprocess.Popen[str]]"],
    tmp_path: Path,
    end: str,
    code: int,
    patience: int,
) -> None:
    file = str(tmp_path / "begins to end")
    text = CALLED_LATE.format(end=end, file=file, patience=patience)
    ranks = start_ranks(2, "-c", text)
    output, _ = ranks[1].communicate(timeout=280)
    assert (ranks[1].returncode, output.startswith("ends")) == (code, True), output


def test_at_a_prompt_an_error_ends_no_session(
    alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(RuntimeError) as raised, process_group(timeout=timedelta(seconds=60)):
        raise RuntimeError("boom")
    sys.excepthook(RuntimeError, raised.value, None)
    assert "boom" in capsys.readouterr().err
