"""Whole pods, warm and cold: how they end, what they say of it, and that nothing outlives them."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests import agentpod
from tests.agentpod import Pod, Pods, python_path
from tests.cluster.processes import free_ports
from tests.trainer.warm_pods import EVIDENCE, assert_cold, assert_warm, script

COLD = {"DDPJOB_WARM_START": "0"}
TRAIN = (
    EVIDENCE
    + """
import os, random
import numpy, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(5)
rows = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = DistributedSampler(rows, shuffle=True)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(rows, 8, sampler=sampler):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print("loss", loss.item().hex())
dist.destroy_process_group()
"""
)
COMPILED = (
    EVIDENCE
    + """
import torch
@torch.compile
def f(x):
    return (x.sin() + x.cos()).sum()
x = torch.linspace(0, 1, 64, requires_grad=True)
f(x).backward()
print("gradient", x.grad.sum().item().hex())
"""
)
ACCELERATED = (
    EVIDENCE
    + """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(5)
rows = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), 8)
net = torch.nn.Linear(8, 1)
model, optimizer, rows = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), rows)
for x, y in rows:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print("loss", loss.item().hex(), accelerator.num_processes)
accelerator.end_training()
# On a busy machine torch's own end may abort: "terminate called without an active exception".
import os, sys
sys.stdout.flush()
os._exit(0)
"""
)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Pods of which nothing is left when they have ended."""
    with agentpod.pods(tmp_path) as group:
        yield group
        for pod in group.started:
            assert not pod.processes()


def start_both(
    pods: Pods, *arguments: str, nproc: int = 1, **changes: str | None
) -> tuple[Pod, Pod]:
    """A warm pod and a cold one."""
    warm, cold = (
        pods.start(
            *arguments,
            nproc=nproc,
            port=port,
            changes={"PATH": python_path(), "PYTHONUNBUFFERED": "1", **changes, **more},
        )
        for port, more in zip(free_ports(2), ({}, COLD), strict=True)
    )
    return warm, cold


def summary(pod: Pod) -> dict[str, Any]:
    """The termination message without what no two pods have in common."""
    text = json.dumps(pod.summary).replace(str(pod.folder), "POD")
    content: dict[str, Any] = json.loads(re.sub(r"pid \d+", "pid N", text))
    content.pop("time")
    for name in ("time", "updated_at", "started_at", "steps_per_second", "eta_seconds"):
        content["progress"].pop(name, None)
    return content


ENDINGS = """
import os, signal
kind = sys.argv[1]
if kind == "exception":
    raise ValueError("boom")
if kind == "exit":
    sys.exit(3)
if kind == "words":
    sys.exit("no GPU is free")
if kind == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.deep
def test_a_worker_of_torchrun_ends_the_same(pods: Pods) -> None:
    path = script(pods, EVIDENCE + ENDINGS)
    warm, cold = start_both(pods, "torchrun", "--", path, "exception")
    assert (warm.wait(), cold.wait()) == (1, 1), warm.log + cold.log
    assert_warm(warm)
    assert_cold(cold)
    assert summary(warm) == summary(cold)
    assert cold.summary["message"] == "ValueError: boom"
    traces = [re.findall(r"Traceback.*?boom\n", pod.log, re.S) for pod in (warm, cold)]
    assert traces[0] == traces[1] and "ddpjob" not in traces[0][0]


# ---- Trainings


def losses(pod: Pod) -> list[str]:
    """What a training has printed of its numbers."""
    return re.findall(r"((?:loss|gradient) .*)", pod.log)


@pytest.mark.deep
def test_a_ddp_training_is_the_same_to_the_last_bit(pods: Pods) -> None:
    warm, cold = start_both(pods, "torchrun", "--", script(pods, TRAIN), nproc=2)
    assert (warm.wait(), cold.wait()) == (0, 0), warm.log + cold.log
    assert_warm(warm, 2)
    assert_cold(cold, 2)
    assert losses(warm) == losses(cold) and len(losses(cold)) == 8


@pytest.mark.deep
def test_torch_compile_makes_the_same(pods: Pods) -> None:
    assert shutil.which("cc") or shutil.which("gcc"), "torch.compile needs a C compiler"
    warm, cold = start_both(pods, "python", "--", "python3", script(pods, COMPILED))
    assert (warm.wait(), cold.wait()) == (0, 0), warm.log + cold.log
    assert_warm(warm)
    assert_cold(cold)
    assert losses(warm) == losses(cold) and len(losses(cold)) == 1


def accelerate(pods: Pods, *words: str) -> tuple[Pod, Pod]:
    """Two processes by `accelerate launch` in each of both pods, as the operator starts them."""
    options = [
        *("--multi_gpu", "--num_machines", "1", "--num_processes", "2", "--machine_rank", "0"),
        *("--main_process_ip", "127.0.0.1", "--main_process_port"),
    ]
    more = ["--rdzv_backend", "static", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command = ["python", "--", "python3", "-u", "-m", "accelerate.commands.launch", *options]
    changes = {"PATH": python_path(), "PYTHONUNBUFFERED": "1", "ACCELERATE_USE_CPU": "true"}
    warm, cold = (
        pods.start(
            *[*command, str(port), *more, *words], nproc=2, port=port, changes={**changes, **kind}
        )
        for port, kind in zip(free_ports(2), ({}, COLD), strict=True)
    )
    return warm, cold


@pytest.mark.deep
def test_accelerate_launch_trains_the_same(pods: Pods) -> None:
    warm, cold = accelerate(pods, script(pods, ACCELERATED))
    assert (warm.wait(), cold.wait()) == (0, 0), warm.log + cold.log
    assert_warm(warm, 2)
    assert_cold(cold, 2)
    assert losses(warm) == losses(cold) and len(losses(cold)) == 4
