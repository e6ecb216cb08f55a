"""What people do by hand, on real kubelets: own code without an image, and a failure at 3 am."""

import json
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.e2e.install import Job, wait_until
from tests.terminal import Ended, ddpjob, environment
from tests.transcripts import missing, sessions

pytestmark = pytest.mark.usefixtures("installed")

TRAIN = """
import argparse, json, os, pathlib
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from parts.model import make

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int)
steps = options.parse_args().steps
config = json.loads(pathlib.Path("config.json").read_text())
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(make(config["width"]))
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
for step in range(1, steps + 1):
    loss = model(torch.ones(4, config["width"])).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} of {steps} width {config['width']}", flush=True)
dist.destroy_process_group()
"""
PARTS = """
import torch


def make(width):
    return torch.nn.Linear(width, 1)
"""
# Rank 5 fails at step 10, and from 20 on without end; what was done before counts as resumed.
UNRELIABLE = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

attempt, round = int(os.environ["DDPJOB_ATTEMPT"]), int(os.environ["DDPJOB_ROUND"])
begin = 20 if attempt else 10 * min(round, 2)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(f"resumed from step {begin}", flush=True)
for step in range(begin + 1, 1000):
    if rank == 5 and step > max(20, begin) or rank == 5 and step == begin + 11:
        raise RuntimeError("CUDA error: uncorrectable ECC")
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        path = os.environ["DDPJOB_PROGRESS_FILE"]
        with open(path + ".tmp", "w") as file:
            file.write(f'{{"step": {step}, "total_steps": 1000, "loss": {10 / step}}}')
        os.rename(path + ".tmp", path)
    print(f"step {step}", flush=True)
    time.sleep(0.1)
"""


class Hands:
    """Somebody with a folder, a kubeconfig and the command line."""

    def __init__(self, folder: Path, cluster: KindCluster, namespace: str) -> None:
        self.folder, self.namespace = folder, namespace
        self.env: Mapping[str, str] = environment(cluster.kubeconfig)

    def do(self, *words: str, seconds: float = 240) -> Ended:
        """Run the command in the folder and the namespace."""
        verb, *rest = words
        at = ("-n", self.namespace)
        return ddpjob(verb, *at, *rest, env=self.env, cwd=self.folder, seconds=seconds)


@pytest.fixture
def hands(tmp_path: Path, kind_cluster: KindCluster, namespace: str) -> Hands:
    return Hands(tmp_path, kind_cluster, namespace)


def test_own_code_trains_in_three_commands(
    hands: Hands, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    (hands.folder / "parts").mkdir()
    for name, text in {"train.py": TRAIN, "parts/model.py": PARTS}.items():
        (hands.folder / name).write_text(text)
    (hands.folder / "config.json").write_text(json.dumps({"width": 8, "lr": 0.1}))
    checked = hands.do("doctor")
    assert checked.code == 0, checked
    sent = hands.do(
        *("submit", "train.py", "--nnodes", "2", "--image", foreign_image, "--name", "own"),
        *("--cpu", "500m", "--memory", "1Gi", "--detach", "--", "--steps", "40"),
    )
    assert sent.code == 0, sent
    assert re.search(r"code +3 files", sent.err + sent.out), sent
    followed = hands.do("logs", "-f", "own")
    assert followed.code == 0, followed
    steps = re.findall(r"^a0 r0 +\| step (\d+) of 40 width 8$", followed.out, re.MULTILINE)
    assert steps == [str(number) for number in range(1, 41)], followed
    maps = partial(kind_cluster.get, "configmaps", "-n", namespace, "-l", "ddpjob.dev/code")
    assert len(maps()["items"]) == 1
    again = hands.do("rerun", "own", "--set", 'args=["train.py", "--steps", "3"]', "--wait")
    assert again.code == 0, again
    assert len(maps()["items"]) == 1  # both jobs have it
    assert hands.do("delete", "own", "own-2", "-y", "--wait").code == 0
    wait_until(lambda: not maps()["items"], 60, "end of the ConfigMap")


def test_the_first_cause_is_found_in_three_commands(
    hands: Hands, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    (hands.folder / "train.py").write_text(UNRELIABLE)
    sent = hands.do(
        *("submit", "train.py", "--nnodes", "4", "--nproc-per-node", "2", "--name", "llama"),
        *("--image", foreign_image, "--memory", "1Gi", "--max-restarts", "1", "--detach"),
    )
    assert sent.code == 0, sent
    job = Job(kind_cluster, namespace, "llama")
    status = job.in_state("Failed", 400)
    cause = status["failure"]
    assert (cause["rank"], cause["reason"]) == (5, "Exception")
    assert "uncorrectable ECC" in cause["message"] and "train.py" in cause["traceback"]
    shown = hands.do("get", "llama")
    assert shown.code == 0 and "uncorrectable ECC" in shown.out, shown
    described = hands.do("describe", "llama")
    assert described.code == 0, described
    assert "rank 5" in described.out and cause["node"] in described.out
    assert "raise RuntimeError" in described.out
    table = [line.split() for line in described.out.splitlines()]
    attempts = [row for row in table if row and row[0][:1].isdigit() and "Exception" in row]
    assert len(attempts) >= 3, described.out
    printed = hands.do("logs", "llama")
    lines = printed.out.splitlines()
    assert 0 < len(lines) <= 51 and all(" r5 " in line or " n2 " in line for line in lines)
    assert "RuntimeError: CUDA error: uncorrectable ECC" in printed.out
    found = json.loads(hands.do("describe", "llama", "-o", "json").out)
    assert found["cause"]["rank"] == 5
    replaced = {namespace: "team-a", cause["node"]: "gpu-17"}
    for session in sessions(ROOT / "docs" / "on-call.md"):
        assert session.name == "failed-job"
        for step in session.steps:
            _, *words = shlex.split(step.command)
            shown_now = hands.do(*words).out
            for old, new in replaced.items():
                shown_now = shown_now.replace(old, new)
            line = missing(step.shown, shown_now.splitlines())
            assert line is None, f"{session}: {line!r} is not in\n{shown_now}"
