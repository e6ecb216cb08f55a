"""Restarts in place: agents as processes, asked on as the operator asks them."""

import json
import os
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
