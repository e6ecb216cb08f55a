"""What tests of restarts in place share: a script, its pods, and an operator that asks them on."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ddpjob.pods.program import print_of
from ddpjob_agent.config import FIRST_PROGRAM
from tests import agentpod
from tests.agentpod import TOKEN, Pod, Pods
from tests.cluster.processes import free_ports
from tests.trainer.warm_pods import script

# Trains for ever; each rank says what it is and each of its steps, and does what it is told to in
# a file `act-ROUND-RANK` in its folder.
TRAIN = """
import os, signal, subprocess, sys, threading, time
round, begun = os.environ["DDPJOB_ROUND"], time.time()
import torch
import torch.distributed as dist

def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")  # in one piece

dist.init_process_group("gloo")
rank = dist.get_rank()
say("begins", round, rank, begun, os.environ["MASTER_PORT"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    if os.path.exists(f"act-{round}-{rank}"):
        exec(open(f"act-{round}-{rank}").read())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    say("step", round, rank, os.getpid(), time.time())
    time.sleep(0.02)
"""


# An agent that overlooks processes PID with a file `left-PID` in its folder. Ours overlooks none;
# what is seen then is the next guard, as it would hold for a process that nobody can kill.
_REST = "        return [pid for pid in children() if pid != self.server_pid"
OVERLOOKS = {f"{_REST}]": f'{_REST} and not os.path.exists(f"left-{{pid}}")]'}


class Operator:
    """Asks rank 0's agent as the operator does."""

    def __init__(self, head: Pod) -> None:
        self.head, self.round, self.serial = head, 0, 0
        self.heard = ""  # the last page's timestamp, where nodes are watched
        self.program = ""  # the print of what ranks run, where it is not what they began with

    def ask(self, hold: int = 20, *, ends: bool = False) -> dict[str, Any]:
        """The answer to one request; it is of the round that was ordered."""
        query = f"round={self.round}&after={self.serial}&hold={hold}&ends={int(ends)}{self.heard}"
        query += f"&program={self.program}" if self.program else ""
        page: dict[str, Any] = json.loads(self.head.get(f"/group?{query}", TOKEN))
        self.serial = page["serial"]
        self.heard = f"&heard={page['stamp']!r}" if "stamp" in page else ""
        assert page["round"] == self.round
        return page

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + agentpod.DEADLINE
        while not holds(page := self.ask(2)):
            assert time.monotonic() < deadline, (page, self.head.log)
        return page

    def until_failed(self, failures: int = 1) -> list[dict[str, Any]]:
        """The failures of this round once there are so many."""
        page = self.until(lambda page: len(page["failures"]) >= failures)
        found: list[dict[str, Any]] = page["failures"]
        return found

    def bring(self, content: bytes) -> None:
        """Have the ranks run this from the next round on."""
        self.head.get("/program", TOKEN, content)
        self.program = print_of(content.partition(b"\n")[0])

    def go_on(self) -> int:
        """Order the next round; its number."""
        self.round += 1
        self.ask(0)
        return self.round


def start(
    pods: Pods,
    text: str = TRAIN,
    *,
    nnodes: int = 1,
    nproc: int = 1,
    command: Callable[[str, int], list[str]] | None = None,
    archive: bytes | None = None,
    **changes: str | None,
) -> Operator:
    """Start the pods of a job that runs this script; `command` makes another one than torchrun."""
    (port,) = free_ports(1)
    path = script(pods, text)
    for rank in range(nnodes):
        master = {"MASTER_ADDR": pods.address(0), "PET_MASTER_ADDR": pods.address(0)}
        words = ["torchrun", "--", path] if command is None else command(path, port)
        pods.start(
            *words,
            rank=rank,
            nnodes=nnodes,
            nproc=nproc,
            port=port,
            archive=archive,
            changes={
                "DDPJOB_RESTART": "InPlace",
                "DDPJOB_PROGRAM": FIRST_PROGRAM,
                **master,
                **changes,
            },
        )
    head = pods.started[0]
    head.until(lambda: head.progress())
    return Operator(head)


def train(pods: Pods, *, nnodes: int = 1, nproc: int = 1, **more: Any) -> Operator:
    """Start a job of TRAIN and wait until all its ranks make steps."""
    operator = start(pods, nnodes=nnodes, nproc=nproc, **more)
    all_step(pods, 0, nnodes * nproc)
    operator.until(lambda page: page["running"])
    return operator


def act(pods: Pods, number: int, rank: int, text: str) -> None:
    """Have a rank run this in a round."""
    folder = pods.started[-1 if rank else 0].folder
    (folder / "act").write_text(text)
    (folder / "act").rename(folder / f"act-{number}-{rank}")


def said(pod: Pod, word: str, number: int) -> list[list[str]]:
    """The lines of a round that begin with a word, as words after the round."""
    lines = map(str.split, pod.lines)
    return [words[2:] for words in lines if words[:2] == [word, str(number)]]


def steps(pod: Pod, number: int) -> dict[int, list[tuple[int, float]]]:
    """Pid and time of the steps of a round, by rank."""
    found: dict[int, list[tuple[int, float]]] = {}
    for words in said(pod, "step", number):
        if len(words) == 3:
            found.setdefault(int(words[0]), []).append((int(words[1]), float(words[2])))
    return found


def pid_of(pod: Pod, number: int, rank: int) -> int:
    """The process of a rank that makes steps."""
    return steps(pod, number)[rank][0][0]


def has_steps(pod: Pod, number: int, ranks: int) -> bool:
    return len(steps(pod, number)) == ranks


def all_step(pods: Pods, number: int, ranks: int) -> float:
    """Wait until all ranks have made a step of a round; the time of the last first one."""
    for pod in pods.started:
        pod.until(partial(has_steps, pod, number, ranks // len(pods.started)))
    first = [made[0][1] for pod in pods.started for made in steps(pod, number).values()]
    return max(first)


# ---- Commands of other launchers than torchrun


def python(path: str, port: int) -> list[str]:
    return ["python", "--", "python3", "-u", path]


def shell(path: str, port: int) -> list[str]:
    return ["command", "--", "sh", "-c", f"python3 -u {path}; exit $?"]


def accelerate(path: str, port: int) -> list[str]:
    pytest.importorskip("accelerate")
    launch = ["python", "--", "python3", "-u", "-m", "accelerate.commands.launch"]
    launch += ["--num_machines", "1", "--num_processes", "2", "--multi_gpu", "--machine_rank", "0"]
    launch += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    launch += ["--rdzv_backend", "static", "--mixed_precision", "no", "--dynamo_backend", "no"]
    return [*launch, path]
