"""The agent around real torchrun jobs on gloo, each pod with a loopback address of its own.

The training script knows nothing of ddpjob: no import, no `@record`.
"""

import pytest

from tests.agentpod import Pod, Pods
from tests.cluster.processes import free_ports

pytest.importorskip("torch")

SCRIPT = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind, victim = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
if kind == "outlive":
    time.sleep(1000 if rank == victim else 0)
    os._exit(0)

model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 26):
    optimizer.zero_grad()
    model(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    if kind == "progress" and rank == 0:
        report = {"step": step, "total_steps": 25, "loss": 0.5}
        path = os.environ["DDPJOB_PROGRESS_FILE"]
        with open(path + ".tmp", "w") as file:
            json.dump(report, file)
        os.replace(path + ".tmp", path)
    if step == 10 and rank == victim and kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


def train(
    pods: Pods,
    kind: str,
    victim: int = 1,
    *,
    nnodes: int = 1,
    success_policy: str | None = None,
) -> list[Pod]:
    """Start the pods of one job, whose rank `victim` fails in this way."""
    script = pods.root / "train.py"
    script.write_text(SCRIPT)
    (port,) = free_ports(1)
    arguments = ["torchrun", "--", str(script), kind, str(victim)]
    return [
        pods.start(
            *arguments,
            rank=rank,
            nnodes=nnodes,
            port=port,
            changes={"DDPJOB_SUCCESS_POLICY": success_policy},
        )
        for rank in range(nnodes)
    ]


def test_rank_0_waits_for_no_other_where_its_success_is_the_jobs(pods: Pods) -> None:
    first, second = train(pods, "outlive", nnodes=2, success_policy="Rank0")
    assert first.wait() == 0, first.log  # by itself torchrun waits for 300 s
    assert first.summary["reason"] == "Completed" and second.process.poll() is None


def test_a_killed_worker_is_the_cause_and_its_peers_abort_is_not(pods: Pods) -> None:
    job = train(pods, "kill", nnodes=2)
    codes = [pod.wait() for pod in job]
    assert codes[1] == 137
    assert (job[1].summary["reason"], job[1].summary["signal"]) == ("Signal", "SIGKILL")
    assert (job[1].summary["rank"], job[1].summary["peer"]) == (1, False)
    assert job[1].summary["progress"]["step"] == 10, "the last one, although it was killed then"
    assert job[0].summary["peer"] is True, job[0].summary


def test_success_shows_the_scripts_report_and_elsewhere_counted_steps(pods: Pods) -> None:
    job = train(pods, "progress", nnodes=2)
    assert [pod.wait() for pod in job] == [0, 0], job[0].log
    first, second = (pod.summary for pod in job)
    assert first["reason"] == second["reason"] == "Completed"
    assert (first["progress"]["source"], first["progress"]["total_steps"]) == ("file", 25)
    assert (first["progress"]["step"], first["progress"]["loss"]) == (25, 0.5)
    assert (second["progress"]["source"], second["progress"]["step"]) == ("counted", 25)


def test_a_group_that_never_forms_ends_with_the_address(pods: Pods) -> None:
    script = pods.root / "train.py"
    script.touch()
    arguments = ["torchrun", "--", str(script)]
    pod = pods.start(*arguments, nnodes=2, port=29512, changes={"DDPJOB_RENDEZVOUS_SECONDS": "2"})
    assert pod.wait() == 77
    assert pod.summary["reason"] == "Rendezvous"
    assert "127.0.0.1:29512" in pod.summary["message"]
    assert "waiting for the group of 2 nodes at 127.0.0.1:29512" in pod.log
