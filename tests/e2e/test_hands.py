"""What people do by hand, on real kubelets: own code without an image, and a failure at 3 am."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.e2e.hands import Hands
from tests.e2e.install import Job, signal_rank
from tests.terminal import Running

pytestmark = pytest.mark.usefixtures("installed")

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


@pytest.fixture
def hands(tmp_path: Path, kind_cluster: KindCluster, namespace: str) -> Hands:
    return Hands(tmp_path, kind_cluster, namespace)


def test_the_first_cause_is_found_in_three_commands(
    hands: Hands, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    (hands.folder / "train.py").write_text(UNRELIABLE)
    hands.submit(
        *("--nnodes", "4", "--nproc-per-node", "2", "--name", "llama"),
        *("--image", foreign_image, "--memory", "1Gi", "--max-restarts", "1"),
    )
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
    hands.read("docs/on-call.md", "failed-job", {namespace: "team-a", cause["node"]: "gpu-17"})


# Rank 0 prints 10,000 lines a second for two seconds, and ends well in the fourth round.
LINES = """
import os, time

attempt, round = os.environ["DDPJOB_ATTEMPT"], os.environ["DDPJOB_ROUND"]
for number in range(1, 20_001):
    if os.environ["RANK"] == "0":
        print(f"line {number} of {attempt}.{round}")
    if number % 1000 == 0:
        time.sleep(0.1)
if round != "3":
    time.sleep(600)
"""


def test_logs_are_followed_over_three_restarts_with_the_laptop_gone(
    hands: Hands, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    """In place, beside a new pod, and with the pod that is read replaced: all lines, none twice."""
    (hands.folder / "train.py").write_text(LINES)
    hands.submit("--nnodes", "2", "--image", foreign_image, "--name", "far", "--memory", "1Gi")
    shutil.rmtree(hands.folder)
    job, delete = Job(kind_cluster, namespace, "far"), ("delete", "pod", "-n", namespace)
    with Running("logs", "-f", "far", env=hands.env) as following:
        following.until("line 5000 of 0.0")
        signal_rank(job, "far-0-0", "KILL", "train.py")
        following.until("line 5000 of 0.1")
        kind_cluster.kubectl(*delete, "far-0-1", "--wait=false")
        following.until("line 5000 of 0.2")
        kind_cluster.kubectl(*delete, "far-0-0", "--wait=false")
        ended = following.end()
    assert ended.code == 0, ended.err
    found: dict[str, list[int]] = {}
    for number, group in re.findall(r"r0 +\| line (\d+) of (\d\.\d)$", ended.out, re.MULTILINE):
        found.setdefault(group, []).append(int(number))
    assert list(found) == ["0.0", "0.1", "0.2", "0.3"]
    for group, numbers in found.items():
        assert numbers == list(range(1, len(numbers) + 1)), group
    assert len(found["0.3"]) == 20_000
    assert job.status["restarts"] == 3
    assert ended.out.count("is in /src: 1 files") == 4, "the code came from the cluster each time"


def test_the_quick_start_on_a_cluster_is_what_happens(
    hands: Hands, kind_cluster: KindCluster, namespace: str, trainer_image: str
) -> None:
    shutil.copytree(ROOT / "examples" / "project", hands.folder, dirs_exist_ok=True)
    context = kind_cluster.kubectl("config", "current-context").strip()
    replaced = {namespace: "team-a", f'"{context}"': '"team-a"', "kubernetes-admin": "ana@corp"}
    assert trainer_image == "ddpjob/trainer:0.1.0", "as the page has it"
    hands.read("docs/quickstart-cluster.md", "cluster", replaced, until="epoch 2/40")


# Rank 3 of four stands in its data set after 20 steps, and the others wait for it.
STANDS = """
import json, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, number):
        if rank == 3 and number == 20:
            time.sleep(600)
        return torch.ones(4)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, rows in enumerate(torch.utils.data.DataLoader(Rows()), start=1):
    loss = model(rows).sum()
    loss.backward()
    optimizer.step()
    if rank == 0:
        path = os.environ["DDPJOB_PROGRESS_FILE"]
        with open(path + ".tmp", "w") as file:
            json.dump({"step": step, "total_steps": 1000, "loss": 3 / step}, file)
        os.rename(path + ".tmp", path)
    time.sleep(0.2)
"""


def test_a_job_that_stands_is_seen_in_top_and_stacks(
    hands: Hands, kind_cluster: KindCluster, namespace: str, foreign_image: str
) -> None:
    (hands.folder / "train.py").write_text(STANDS)
    hands.submit(
        *("--nnodes", "2", "--nproc-per-node", "2", "--name", "llama"),
        *("--image", foreign_image, "--memory", "1Gi"),
    )
    job = Job(kind_cluster, namespace, "llama")
    job.until(lambda status: (status.get("progress") or {}).get("step") == 20, 120, "step 20")
    pods = job.pods()
    nodes = [pods[f"llama-0-{rank}"]["spec"]["nodeName"] for rank in range(2)]
    replaced = dict(zip(nodes, ("gpu-03", "gpu-04"), strict=True))
    hands.read("docs/submit.md", "stands", {namespace: "team-a", **replaced})
