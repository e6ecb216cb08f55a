"""The agent around real torchrun jobs on gloo, each pod with a loopback address of its own.

The training script knows nothing of ddpjob: no import, no `@record`.
"""

import pytest

from tests.agentpod import Pod, Pods, python_path
from tests.cluster.processes import free_ports

pytest.importorskip("torch")

SCRIPT = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

kind, victim = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))


class Rows(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, i):
        if kind == "loader" and rank == victim and i >= 20:
            raise KeyError("missing row")
        return torch.ones(4)


if kind == "outlive":
    time.sleep(1000 if rank == victim else 0)
    os._exit(0)

loader = DataLoader(Rows(), batch_size=4, num_workers=1 if kind == "loader" else 0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, rows in enumerate(loader, 1):
    optimizer.zero_grad()
    try:
        model(rows).sum().backward()
    except RuntimeError:
        if kind != "outstay" or rank != 2:
            raise  # gloo's ring: rank 0 reads from 1, 3 from 0 and 2 from 3, so no one waits for 2
        while not told:
            time.sleep(0.02)
        os._exit(1)
    optimizer.step()
    if kind == "progress" and rank == 0:
        report = {"step": step, "total_steps": 25, "loss": 0.5}
        path = os.environ["DDPJOB_PROGRESS_FILE"]
        with open(path + ".tmp", "w") as file:
            json.dump(report, file)
        os.replace(path + ".tmp", path)
    if step == 10 and rank == victim:
        if kind == "exception":
            raise ValueError("boom")
        if kind == "exit":
            sys.exit(3)
        if kind in ("kill", "outstay"):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "sleep":
            time.sleep(1000)
        if kind == "barrier":
            dist.barrier()
    while kind == "wait" and step == 10:
        votes = torch.tensor([float(len(told))])  # a copy: told between here and `if` must wait
        dist.all_reduce(votes)
        if votes:
            sys.exit(75)
        time.sleep(0.02)
dist.destroy_process_group()
"""


def train(
    pods: Pods,
    kind: str,
    victim: int = 1,
    *,
    nnodes: int = 1,
    nproc: int = 1,
    hang_seconds: str | None = None,
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
            nproc=nproc,
            port=port,
            changes={
                "DDPJOB_HANG_SECONDS": hang_seconds,
                "DDPJOB_SUCCESS_POLICY": success_policy,
            },
        )
        for rank in range(nnodes)
    ]


def test_rank_0_waits_for_no_other_where_its_success_is_the_jobs(pods: Pods) -> None:
    first, second = train(pods, "outlive", nnodes=2, success_policy="Rank0")
    assert first.wait() == 0, first.log  # by itself torchrun waits for 300 s
    assert first.summary["reason"] == "Completed" and second.process.poll() is None


@pytest.mark.deep
def test_an_exception_is_told_from_the_noise_it_makes_in_the_other_pods(pods: Pods) -> None:
    job = train(pods, "exception", nnodes=3)
    assert [pod.wait() for pod in job] == [1, 1, 1], job[1].log
    cause = job[1].summary
    assert (cause["reason"], cause["rank"], cause["peer"]) == ("Exception", 1, False)
    assert (cause["exception"], cause["message"]) == ("ValueError", "ValueError: boom")
    assert "train.py" in cause["traceback"]
    for pod in (job[0], job[2]):
        assert pod.summary["peer"] is True, pod.summary
        assert pod.summary["exception"] == "RuntimeError"
        assert pod.summary["time"] > cause["time"]


def test_a_killed_worker_is_the_cause_and_its_peers_abort_is_not(pods: Pods) -> None:
    job = train(pods, "kill", nnodes=2)
    codes = [pod.wait() for pod in job]
    assert codes[1] == 137
    assert (job[1].summary["reason"], job[1].summary["signal"]) == ("Signal", "SIGKILL")
    assert (job[1].summary["rank"], job[1].summary["peer"]) == (1, False)
    assert job[1].summary["progress"]["step"] == 10, "the last one, although it was killed then"
    assert job[0].summary["peer"] is True, job[0].summary


@pytest.mark.deep
def test_a_worker_that_torchrun_stopped_is_no_cause_however_it_ends(pods: Pods) -> None:
    first, second = train(pods, "outstay", nnodes=2, nproc=2)
    assert (first.wait(), second.wait()) == (137, 1), second.log
    assert (first.summary["rank"], first.summary["signal"]) == (1, "SIGKILL")
    told = second.summary
    assert (told["rank"], told["peer"]) == (3, True), told


@pytest.mark.deep
def test_a_workers_exit_code_is_seen_through_torchruns_1(pods: Pods) -> None:
    (pod,) = train(pods, "exit", nproc=2)
    assert pod.wait() == 1
    summary = pod.summary
    assert (summary["reason"], summary["exit_code"], summary["peer"]) == ("ExitCode", 3, False)
    assert (summary["rank"], summary["local_rank"]) == (1, 1)


@pytest.mark.deep
def test_an_exception_in_a_loaders_worker_is_told_by_its_own_line(pods: Pods) -> None:
    (pod,) = train(pods, "loader", nproc=2)
    assert pod.wait() == 1
    assert (pod.summary["rank"], pod.summary["exception"]) == (1, "KeyError")
    assert pod.summary["message"] == "KeyError: 'missing row'"


@pytest.mark.deep
def test_the_rank_that_the_others_wait_for_is_named_across_pods(pods: Pods) -> None:
    job = train(pods, "sleep", nnodes=3, hang_seconds="4")
    assert [pod.wait() for pod in job][1] == 76, job[1].log
    cause = job[1].summary
    assert (cause["reason"], cause["rank"], cause["peer"]) == ("Hang", 1, False)
    assert "waits for no other rank: it is in <module>" in cause["message"]
    assert "after step 10;" in cause["message"]
    for pod in (job[0], job[2]):
        told = pod.summary
        assert told["peer"] is True, told
        # One whose agent comes late loses its connection to rank 1 before it has judged.
        assert told["reason"] in ("Hang", "Exception"), told
        if told["reason"] == "Hang":
            assert "waits for other ranks, in _engine_run_backward" in told["message"]


@pytest.mark.deep
def test_a_stopped_rank_beside_one_that_waits_for_it_is_named(pods: Pods) -> None:
    (pod,) = train(pods, "stop", nproc=2, hang_seconds="4")
    assert pod.wait() == 76
    assert (pod.summary["rank"], pod.summary["local_rank"]) == (1, 1)
    assert "rank 1 (pid " in pod.summary["message"] and "is stopped" in pod.summary["message"]
    assert "--- rank 0 (pid " in pod.log and "--- rank 1 (pid " in pod.log


@pytest.mark.deep
def test_ranks_in_different_collectives_all_wait(pods: Pods) -> None:
    (pod,) = train(pods, "barrier", nproc=2, hang_seconds="4")
    assert pod.wait() == 76
    assert "waits for other ranks" in pod.summary["message"]
    assert "in barrier" in pod.log and "in _engine_run_backward" in pod.log


def test_success_shows_the_scripts_report_and_elsewhere_counted_steps(pods: Pods) -> None:
    job = train(pods, "progress", nnodes=2)
    assert [pod.wait() for pod in job] == [0, 0], job[0].log
    first, second = (pod.summary for pod in job)
    assert first["reason"] == second["reason"] == "Completed"
    assert (first["progress"]["source"], first["progress"]["total_steps"]) == ("file", 25)
    assert (first["progress"]["step"], first["progress"]["loss"]) == (25, 0.5)
    assert (second["progress"]["source"], second["progress"]["step"]) == ("counted", 25)


@pytest.mark.deep
def test_sigterm_reaches_the_workers_and_their_75_comes_back(pods: Pods) -> None:
    job = train(pods, "wait", nnodes=2)
    for pod in job:
        pod.until(lambda pod=pod: pod.progress().get("step"))  # type: ignore[misc]
        assert pod.progress()["state"] == "running"
    job[1].terminate()  # one pod is evicted, and all of them save at the same step
    assert [pod.wait() for pod in job] == [75, 75], job[0].log + job[1].log
    for rank, pod in enumerate(job):
        assert (pod.summary["reason"], pod.summary["rank"]) == ("Preempted", rank)
        assert pod.summary["exit_code"] == 75


def test_a_group_that_never_forms_ends_with_the_address(pods: Pods) -> None:
    script = pods.root / "train.py"
    script.touch()
    arguments = ["torchrun", "--", str(script)]
    pod = pods.start(*arguments, nnodes=2, port=29512, changes={"DDPJOB_RENDEZVOUS_SECONDS": "2"})
    assert pod.wait() == 77
    assert pod.summary["reason"] == "Rendezvous"
    assert "127.0.0.1:29512" in pod.summary["message"]
    assert "waiting for the group of 2 nodes at 127.0.0.1:29512" in pod.log


@pytest.mark.deep
def test_what_torchrun_cannot_run_is_named(pods: Pods) -> None:
    wrong = (["missing.py"], ["-m", "missing.module"], ["--no-such-flag", "x.py"])
    started = [pods.start("torchrun", "--", *arguments) for arguments in wrong]
    assert [pod.wait() for pod in started] == [1, 1, 1]
    for pod, text in zip(started, ("missing.py", "missing.module", "--no-such-flag"), strict=True):
        assert pod.summary["reason"] == "LaunchFailed"
        assert text in pod.summary["message"]


@pytest.mark.deep
def test_torchrun_in_the_users_own_command_is_understood_too(pods: Pods) -> None:
    script = pods.root / "train.py"
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    raise ValueError('boom')\n")
    options = ["--standalone", "--nproc-per-node", "2"]
    command = ["python", "-m", "torch.distributed.run", *options, str(script)]
    pod = pods.start("command", "--", *command, nproc=2, changes={"PATH": python_path()})
    assert pod.wait() == 1
    assert (pod.summary["rank"], pod.summary["message"]) == (1, "ValueError: boom")


@pytest.mark.deep
def test_the_counter_shows_the_optimizer_that_stepped_most(pods: Pods) -> None:
    script = pods.root / "train.py"
    script.write_text(
        "import torch\n"
        "def optimizer():\n"
        "    weight = torch.nn.Parameter(torch.ones(1))\n"
        "    weight.grad = torch.ones(1)\n"
        "    return torch.optim.SGD([weight], lr=0.1)\n"
        "generator, critic = optimizer(), optimizer()\n"
        "for _ in range(7):\n"
        "    generator.step()\n"
        "    for _ in range(5):\n"
        "        critic.step()\n"
    )
    pod = pods.start("command", "--", "python", str(script), changes={"PATH": python_path()})
    assert pod.wait() == 0, pod.log
    assert pod.summary["progress"]["step"] == 35
