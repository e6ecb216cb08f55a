"""Restarts in place: agents as processes, asked on as the operator asks them."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests import agentpod
from tests.agentpod import TOKEN, Pod, Pods
from tests.cluster.processes import free_ports
from tests.cluster.tiers import ROOT
from tests.trainer.training import (
    RESULT,
    StartRanks,
    accuracies,
    assert_same_training,
    losses,
    saved,
)
from tests.trainer.warm_pods import fork_servers, script

# Trains for ever; each rank says what it is and each of its steps.
TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("begins", os.environ["DDPJOB_ROUND"], rank, os.environ["MASTER_PORT"], flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    said = " ".join(map(str, ("step", os.environ["DDPJOB_ROUND"], rank, os.getpid(), time.time())))
    os.write(1, said.encode() + b"\\n")  # in one piece
    time.sleep(0.02)
"""

# Trains on the digits; in each of the first rounds a rank dies, after so many of its steps.
DEATHS = {0: 37, 1: 25}
OPTIONS = ("--max-steps=92", "--checkpoint-every=10", "--checkpoint-dir")
DIGITS = f"""
import os, signal, sys
from ddptrain import native

number, rank, world = (int(os.environ[name]) for name in ("DDPJOB_ROUND", "RANK", "WORLD_SIZE"))
victim = 0 if number else world - 1
left, train_step = iter(range({DEATHS}.get(number, 1000))), native.train_step

def dies(*arguments, **options):
    if rank == victim and next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(*arguments, **options)

native.train_step = dies
sys.exit(native.main([*{OPTIONS}, os.environ["DDPJOB_CHECKPOINT_DIR"]]))
"""


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with agentpod.pods(tmp_path) as group:
        yield group


class Operator:
    """Asks rank 0's agent as the operator does."""

    def __init__(self, head: Pod) -> None:
        self.head, self.round, self.serial = head, 0, 0

    def ask(self, hold: int = 20, *, ends: bool = False) -> dict[str, Any]:
        """The answer to one request; it is of the round that was ordered."""
        query = f"round={self.round}&after={self.serial}&hold={hold}&ends={int(ends)}"
        page: dict[str, Any] = json.loads(self.head.get(f"/group?{query}", TOKEN))
        self.serial = page["serial"]
        assert page["round"] == self.round
        return page

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + agentpod.DEADLINE
        while not holds(page := self.ask(2)):
            assert time.monotonic() < deadline, page
        return page

    def begin_next(self) -> None:
        """Wait for a failure, and have the next round begun."""
        self.until(lambda page: page["failures"])
        self.round += 1
        self.until(lambda page: page["running"])


def start(pods: Pods, text: str, *, nnodes: int = 1, nproc: int = 1, **changes: str) -> Operator:
    (port,) = free_ports(1)
    path = script(pods, text)
    for rank in range(nnodes):
        master = {"MASTER_ADDR": pods.address(0), "PET_MASTER_ADDR": pods.address(0)}
        env = {"DDPJOB_RESTART": "InPlace", **master, **changes}
        pods.start(
            *("torchrun", "--", path),
            rank=rank,
            nnodes=nnodes,
            nproc=nproc,
            port=port,
            changes=env,
        )
    head = pods.started[0]
    head.until(lambda: head.progress())
    return Operator(head)


def steps(pod: Pod, number: int) -> dict[int, list[tuple[int, float]]]:
    """Pid and time of the steps of a round, by rank."""
    found: dict[int, list[tuple[int, float]]] = {}
    for words in map(str.split, pod.log.splitlines()):
        if words[:2] == ["step", str(number)] and len(words) == 5:
            found.setdefault(int(words[2]), []).append((int(words[3]), float(words[4])))
    return found


def has_steps(pod: Pod, number: int, ranks: int) -> bool:
    return len(steps(pod, number)) == ranks


def all_step(pods: Pods, number: int, ranks: int) -> float:
    """Wait until all ranks have made a step of a round; the time of the last first one."""
    for pod in pods.started:
        pod.until(partial(has_steps, pod, number, ranks // len(pods.started)))
    first = [made[0][1] for pod in pods.started for made in steps(pod, number).values()]
    return max(first)


@pytest.mark.parametrize(("nnodes", "nproc"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_killed_rank_trains_again_in_the_same_pods(pods: Pods, nnodes: int, nproc: int) -> None:
    operator = start(pods, TRAIN, nnodes=nnodes, nproc=nproc)
    world, last = nnodes * nproc, pods.started[-1]
    for number in range(3):
        all_step(pods, number, world)
        operator.until(lambda page: page["running"])
        pid = steps(last, number)[world - 1][0][0]
        killed_at = time.time()
        os.kill(pid, signal.SIGKILL)
        page = operator.until(lambda page: page["failures"])
        told = page["failures"][0]
        assert (told["node_rank"], told["message"]["signal"]) == (nnodes - 1, "SIGKILL")
        assert (told["message"]["rank"], told["message"]["round"]) == (world - 1, number)
        operator.round = number + 1
        operator.ask(0)
        trains_at = all_step(pods, number + 1, world)
        print(f"again after {trains_at - killed_at:.2f} s")
    for pod in pods.started:
        assert all(len({pid for pid, _ in made}) == 1 for made in steps(pod, 3).values())
        assert len(fork_servers(pod)) == 2  # the agent's, and the launcher's


@pytest.mark.parametrize(("nnodes", "nproc"), [(2, 1), (1, 3)])
def test_a_training_over_three_rounds_equals_one_that_nothing_disturbed(
    pods: Pods, nnodes: int, nproc: int, tmp_path: Path, start_ranks: StartRanks
) -> None:
    """Weights, optimizer, random numbers and every evaluation, to the last bit."""
    whole, folder = tmp_path / "whole", tmp_path / "checkpoints"
    trained = {"DDPJOB_CHECKPOINT_DIR": str(folder), "PYTHONPATH": str(ROOT / "images/trainer")}
    operator = start(pods, DIGITS, nnodes=nnodes, nproc=nproc, **trained)
    for _ in DEATHS:
        operator.begin_next()
    assert [pod.wait() for pod in pods.started] == [0] * nnodes, pods.started[0].log

    ranks = start_ranks(nnodes * nproc, "-m", "ddptrain.native", *OPTIONS, str(whole))
    outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), outputs

    log, output = pods.started[0].log, outputs[0]
    resumed = re.findall(r"resuming from \S+/(\S+)", log)
    assert resumed == ["step-00000030-attempt-0.pt", "step-00000050-attempt-0-round-1.pt"]
    assert_same_training(saved(folder, 92), saved(whole, 92))
    claim = json.loads((folder / "claim.json").read_text())
    assert (claim["job"], claim["attempt"], claim["round"]) == ("uid", 0, 2)
    assert len(accuracies(output)) == 5  # four epochs, and the last line
    assert accuracies(log) == accuracies(output)
    assert losses(log)[-1] == losses(output)[-1], "of the epoch that one round has seen whole"
    assert result(log) == result(output)


def result(output: str) -> tuple[str, ...]:
    """Correct of 360, steps and world size, of the last line."""
    (found,) = filter(None, map(RESULT.match, output.splitlines()))
    return found.groups()
