"""Whole pods, warm and cold: how they end, what they say of it, and that nothing outlives them."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")

from tests import agentpod
from tests.agentpod import DEADLINE, Pod, Pods, python_path
from tests.cluster.processes import free_ports
from tests.cluster.tiers import ROOT

COLD = {"DDPJOB_WARM_START": "0"}
EVIDENCE = "import sys\nprint('is warm:', 'torch' in sys.modules)\n"
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
"""
)
WAIT = (
    EVIDENCE
    + """
import os, signal, subprocess, time
if "75" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open("begun", "w").close()
for _ in range(10000):
    time.sleep(0.1)
    if os.path.exists("end"):
        break
"""
)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """No process of these pods is left in the end: each has its pod's folder in its environment."""
    with agentpod.pods(tmp_path) as group:
        yield group
        for pod in group.started:
            if pod.process.poll() is not None:
                wait_for(lambda pod=pod: not processes(pod))  # type: ignore[misc]


def wait_for(condition: Any) -> None:
    """Wait for what must come."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def processes(pod: Pod) -> list[psutil.Process]:
    """All living processes of a pod, whoever their parents are."""
    found = []
    for process in psutil.process_iter():
        try:
            is_of_it = process.environ().get("DDPJOB_POD_IP") == pod.address
            if is_of_it and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def fork_server(pod: Pod) -> psutil.Process | None:
    """The agent's own fork server."""
    for process in psutil.Process(pod.process.pid).children():
        try:
            if "forkserver" in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def script(pods: Pods, text: str) -> str:
    """Path of a script, the same for all pods."""
    path = pods.root / "train.py"
    path.write_text(text)
    return str(path)


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


def plain(pod: Pod) -> list[str]:
    """The lines of a log that say nothing of the moment; in order, since ranks print as they can."""
    text = pod.log.replace(str(pod.folder), "POD").replace(pod.address, "ADDRESS")
    return sorted(
        line for line in text.splitlines() if "is warm:" not in line and "ddpjob-agent" not in line
    )


def summary(pod: Pod) -> dict[str, Any]:
    """The termination message without what no two pods have in common."""
    text = json.dumps(pod.summary).replace(str(pod.folder), "POD")
    content: dict[str, Any] = json.loads(re.sub(r"pid \d+", "pid N", text))
    content.pop("time")
    for name in ("time", "updated_at", "started_at", "steps_per_second", "eta_seconds"):
        content["progress"].pop(name, None)
    return content


def assert_warm(pod: Pod, ranks: int = 1) -> None:
    assert pod.log.count("is warm: True") == ranks and "is warm: False" not in pod.log, pod.log


def assert_cold(pod: Pod, ranks: int = 1) -> None:
    assert pod.log.count("is warm: False") == ranks and "is warm: True" not in pod.log, pod.log


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


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [
        ("end", 0, "Completed"),
        ("exception", 1, "Exception"),
        ("words", 1, "ExitCode"),
        ("kill", 137, "Signal"),
    ],
)
def test_a_pod_of_python_ends_the_same(pods: Pods, kind: str, code: int, reason: str) -> None:
    path = script(pods, EVIDENCE + ENDINGS)
    warm, cold = start_both(pods, "python", "--", "python3", path, kind)
    assert (warm.wait(), cold.wait()) == (code, code), warm.log + cold.log
    assert_warm(warm)
    assert_cold(cold)
    assert plain(warm) == plain(cold)
    assert summary(warm) == summary(cold)
    assert cold.summary["reason"] == reason
