"""The lines of several ranks in one pod, under real launchers, warm and cold, round by round."""

import os
import re
import signal
from collections.abc import Callable

import psutil
import pytest

pytest.importorskip("torch")

from tests.agentpod import Pod, Pods, python_path
from tests.cluster.processes import free_ports
from tests.trainer.rounds import accelerate, act, all_step, pid_of, python, train
from tests.trainer.warm_pods import script

LINES = 500
# Python's own lines come in pieces, and those of C libraries pass it by.
SPEAKS = f"""
import ctypes, os, sys
print("is warm:", "torch" in sys.modules)
rank, libc = int(os.environ["RANK"]), ctypes.CDLL(None)
for n in range({LINES}):
    print("python", rank, n)
    os.write(2, b"system %d %d\\n" % (rank, n))
    libc.dprintf(1, b"C %d %d\\n", rank, n)
print("exits", rank, end="")
"""


def said(pod: Pod, rank: int) -> list[str]:
    """The lines of a rank."""
    prefix = f"[rank {rank}] "
    return [x.removeprefix(prefix) for x in pod.log.splitlines() if x.startswith(prefix)]


def speak(pods: Pods, *options: str, **changes: str) -> Pod:
    """A pod of two ranks that need no group."""
    words = ["torchrun", "--", *options, script(pods, SPEAKS)]
    return pods.start(*words, nproc=2, port=free_ports(1)[0], changes=changes)


def all_lines(rank: int) -> list[str]:
    found = [f"{how} {rank} {n}" for n in range(LINES) for how in ("python", "system", "C")]
    return [*found, f"exits {rank}"]


@pytest.mark.deep
def test_ranks_of_torchrun_are_told_apart_warm(pods: Pods) -> None:
    pod = speak(pods)
    assert pod.wait() == 0
    for rank in (0, 1):
        assert said(pod, rank) == ["is warm: True", *all_lines(rank)]


@pytest.mark.deep
def test_ranks_of_accelerate_and_of_a_torchrun_in_a_command_too(pods: Pods) -> None:
    (port,), path = free_ports(1), script(pods, SPEAKS)
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    shell = ["command", "--", "sh", "-c", " ".join([*torchrun, path])]
    changes = {"PATH": python_path(), "ACCELERATE_USE_CPU": "true"}
    for command in (accelerate(path, port), shell):
        pod = pods.start(*command, nproc=2, port=port, changes=changes)
        assert pod.wait() == 0, pod.log
        for rank in (0, 1):
            assert said(pod, rank)[1:] == all_lines(rank)


@pytest.mark.deep
def test_what_torchrun_itself_is_to_do_with_output_it_does(pods: Pods) -> None:
    folder = pods.root / "logs"
    pod = speak(pods, "--redirects", "1", "--log-dir", str(folder))
    assert pod.wait() == 0
    texts = {path.read_text() for path in folder.rglob("stdout.log")}
    assert len(texts) == 2 and all(text.count("python") == LINES for text in texts)
    assert said(pod, 0) == [f"system 0 {n}" for n in range(LINES)], "standard error stays ours"


def test_a_torchrun_that_is_killed_takes_no_line_with_it(pods: Pods) -> None:
    operator = train(pods, nproc=2)
    (pod,) = pods.started
    launcher = psutil.Process(pid_of(pod, 0, 0)).parent()
    assert launcher is not None
    act(pods, 0, 0, "say('farewell'); time.sleep(1000)")
    pod.until(lambda: "farewell" in pod.log)
    launcher.kill()
    operator.until_failed()
    assert pod.log.count("[rank 0] farewell\n") == 1


def begins(number: int) -> str:
    return f"ddpjob-agent: round {number} of attempt 0 begins"


def rounds_of(pod: Pod) -> list[list[str]]:
    """The log by its rounds, split as docs/progress.md says."""
    found: list[list[str]] = [[]]
    for line in pod.log.splitlines():
        if re.fullmatch(r"ddpjob-agent: round [0-9]+ of attempt [0-9]+ begins", line):
            assert line == begins(len(found))
            found.append([])
        found[-1].append(line)
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("nnodes", "nproc", "command"), [(1, 1, None), (2, 2, None), (2, 1, python)]
)
def test_a_line_of_the_agents_parts_the_rounds_of_a_log(
    pods: Pods, nnodes: int, nproc: int, command: Callable[[str, int], list[str]] | None
) -> None:
    """Rank 0 is ended in the middle of a line, after the last rank was killed."""
    changes = {"PATH": python_path()}
    operator = train(pods, nnodes=nnodes, nproc=nproc, command=command, **changes)
    for number in range(2):
        act(pods, number, 0, "os.write(1, b'half a line'); open('begun', 'w'); time.sleep(1000)")
        head = pods.started[0]
        head.until(lambda head=head: (head.folder / "begun").exists())  # type: ignore[misc]
        (head.folder / "begun").unlink()
        os.kill(pid_of(pods.started[-1], number, nnodes * nproc - 1), signal.SIGKILL)
        operator.until_failed()
        operator.go_on()
        all_step(pods, number + 1, nnodes * nproc)
    for pod in pods.started:
        parts = rounds_of(pod)
        assert len(parts) == 3
        for number, lines in enumerate(parts):
            words = [line.rpartition("] ")[2].split() for line in lines]
            told = {(w[0], w[1]) for w in words if w[:1] in (["step"], ["begins"]) and len(w) > 1}
            assert told == {("step", str(number)), ("begins", str(number))}
