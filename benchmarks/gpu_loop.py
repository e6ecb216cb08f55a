"""What the training loop does on GPUs and cannot be seen without: for `benchmarks.gpu`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu_rank import BOOM
from tests.cluster.tiers import ROOT

# Percent of the time in which a level may wait for its batches: Accelerate's take lists and loops
# of Python's. One that waits for its GPU there shows the step's share.
MOST_WAITED = {"native": 10.0, "accelerated": 30.0}
TRAINING = ("--data", "synthetic", "--batch-size", "1024", "--epochs", "20")
MOST_LEAVING = 90.0  # s for a group of which one rank fails: torchrun's 30 s and both starts

Demand = tuple[str, str, bool]
"""What was asked, what was measured, and whether that is enough."""


def torchrun(
    processes: int, *arguments: str, backend: str = "nccl"
) -> "subprocess.CompletedProcess[str]":
    """Run one group on this machine to its end, with nothing of a job around this one."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("DDPJOB_")}
    if backend == "gloo":
        ours |= {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(processes), *arguments),
        ],
        env=ours | {"DDPJOB_BACKEND": backend},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )


def busy(level: str, gpus: int, *, backend: str = "nccl") -> Demand:
    """No step waits for the GPU, and that which is computed is not taken for loading."""
    asked = f"{level}: no step waits for the GPU; data_wait_percent at most {MOST_WAITED[level]:g}"
    with TemporaryDirectory() as folder:
        options = (*TRAINING, "--log-dir", folder)
        done = torchrun(gpus, "-m", "benchmarks.gpu_rank", "busy", level, *options, backend=backend)
        if done.returncode != 0:
            return asked, f"failed: {last_line(done.stdout)}", False
        lines = (Path(folder) / "history.jsonl").read_text().splitlines()
    waited = max(json.loads(line)["data_wait_percent"] for line in lines[len(lines) // 2 :])
    return asked, f"none waits; {waited:g} % at most", waited <= MOST_WAITED[level]


def leaving(processes: int, *, backend: str = "nccl") -> Demand:
    """A rank that fails ends its group soon, though the others wait for it on their GPUs."""
    asked = f"a group of which a rank fails ends within {MOST_LEAVING:g} s, with its error"
    began = time.monotonic()
    done = torchrun(
        *(processes, "-m", "benchmarks.gpu_rank", "fails", "native", *TRAINING), backend=backend
    )
    took = time.monotonic() - began
    met = done.returncode == 1 and BOOM in done.stdout and took <= MOST_LEAVING
    return asked, f"{took:.0f} s, exit code {done.returncode}", met


def moved(gpus: int) -> Demand:
    """A run that began on CPUs goes on on GPUs, with dropout masks that it has not had."""
    asked = "a checkpoint from CPUs is gone on with on GPUs, with new random states"
    with TemporaryDirectory() as folder:
        options = ("-m", "ddptrain.native", "--checkpoint-dir", folder, "--max-steps")
        before = torchrun(gpus, *options, "10", backend="gloo")
        after = torchrun(gpus, *options, "20")
    met = before.returncode == after.returncode == 0 and "new random states" in after.stdout
    return asked, last_line(after.stdout), met


def demands(gpus: int) -> list[Demand]:
    """All of it; with one GPU there is nobody to wait for a rank that fails."""
    several = [leaving(gpus)] if gpus > 1 else []
    return [*(busy(level, gpus) for level in MOST_WAITED), *several, moved(gpus)]


def last_line(output: str) -> str:
    """What a group has printed last."""
    return (output.strip().splitlines() or ["nothing printed"])[-1][:200]
