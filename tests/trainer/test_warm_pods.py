"""Trainings in whole pods, warm and cold: they come to the same."""

import re
import shutil
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from tests.agentpod import Pod, Pods, python_path
from tests.cluster.processes import free_ports
from tests.trainer.rounds import accelerate, python
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


def torchrun(path: str, port: int) -> list[str]:
    return ["torchrun", "--", path]


def losses(pod: Pod) -> list[str]:
    """What a training has printed of its numbers."""
    return re.findall(r"((?:loss|gradient) .*)", pod.log)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("text", "command", "nproc", "count"),
    [(TRAIN, torchrun, 2, 8), (COMPILED, python, 1, 1), (ACCELERATED, accelerate, 2, 4)],
    ids=["torchrun", "torch.compile", "accelerate"],
)
def test_a_training_is_the_same_to_the_last_bit(
    pods: Pods, text: str, command: Callable[[str, int], list[str]], nproc: int, count: int
) -> None:
    if text is COMPILED:
        assert shutil.which("cc") or shutil.which("gcc"), "torch.compile needs a C compiler"
    path = script(pods, text)
    changes = {"PATH": python_path(), "PYTHONUNBUFFERED": "1", "ACCELERATE_USE_CPU": "true"}
    warm, cold = (
        pods.start(*command(path, port), nproc=nproc, port=port, changes={**changes, **kind})
        for port, kind in zip(free_ports(2), ({}, COLD), strict=True)
    )
    assert (warm.wait(), cold.wait()) == (0, 0), warm.log + cold.log
    assert_warm(warm, nproc)
    assert_cold(cold, nproc)
    assert losses(warm) == losses(cold) and len(losses(cold)) == count
