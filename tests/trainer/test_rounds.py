"""Restarts in place: agents as processes, asked on as the operator asks them."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.agentpod import Pods, python_path
from tests.trainer.rounds import (
    accelerate,
    act,
    all_step,
    pid_of,
    python,
    said,
    shell,
    steps,
    train,
)
from tests.trainer.warm_pods import fork_servers

COLD = {"DDPJOB_WARM_START": "0"}


@pytest.mark.parametrize(
    ("nnodes", "nproc"),
    [(2, 1), *(pytest.param(*world, marks=pytest.mark.deep) for world in ((1, 1), (1, 2), (2, 2)))],
)
def test_a_killed_rank_trains_again_in_the_same_pods(pods: Pods, nnodes: int, nproc: int) -> None:
    operator = train(pods, nnodes=nnodes, nproc=nproc)
    world, last = nnodes * nproc, pods.started[-1]
    for number in range(3):
        killed_at = time.time()
        os.kill(pid_of(last, number, world - 1), signal.SIGKILL)
        told = operator.until_failed()[0]
        assert (told["node_rank"], told["message"]["signal"]) == (nnodes - 1, "SIGKILL")
        assert (told["message"]["rank"], told["message"]["round"]) == (world - 1, number)
        operator.go_on()
        trains_at = all_step(pods, number + 1, world)
        operator.until(lambda page: page["running"])
        print(f"again after {trains_at - killed_at:.2f} s")
    for pod in pods.started:
        assert all(len({pid for pid, _ in made}) == 1 for made in steps(pod, 3).values())
        assert len(fork_servers(pod)) == 2  # the agent's, and the launcher's


@pytest.mark.deep
@pytest.mark.parametrize(
    ("text", "expected", "warm"),
    [
        ("raise ValueError('boom')", ("Exception", "ValueError: boom", 1), {}),
        ("sys.exit(3)", ("ExitCode", "exited with code 3", 1), COLD),
        ("os.kill(os.getpid(), 11)", ("Signal", "killed by SIGSEGV", 139), {}),
    ],
    ids=["exception", "exit-cold", "signal"],
)
def test_both_nodes_fail_and_the_first_cause_is_told_first(
    pods: Pods, text: str, expected: tuple[str, str, int], warm: dict[str, Any]
) -> None:
    operator = train(pods, nnodes=2, **warm)
    act(pods, 0, 1, text)
    failures = operator.until_failed(2)
    first, second = (each["message"] for each in failures)
    assert [each["node_rank"] for each in failures] == [1, 0]
    found = first["reason"], first["message"], failures[0]["exit_code"]
    assert (found, first["rank"], first["peer"]) == (expected, 1, False)
    assert second["peer"] and second["round"] == 0
    operator.go_on()
    all_step(pods, 1, 2)
    log = pods.started[1].log
    assert log.count(f"ddpjob-agent: {expected[0]}: rank 1: ") == 1
    assert log.count("ddpjob-agent: round 1 of attempt 0 begins\n") == 1


@pytest.mark.deep
@pytest.mark.parametrize(
    ("command", "nnodes", "nproc"), [(python, 2, 1), (shell, 1, 1), (accelerate, 1, 2)]
)
def test_other_launchers_go_on_too(
    pods: Pods, command: Callable[[str, int], list[str]], nnodes: int, nproc: int
) -> None:
    changes = {"PATH": python_path(), "ACCELERATE_USE_CPU": "true"}
    operator = train(pods, nnodes=nnodes, nproc=nproc, command=command, **changes)
    last = pods.started[-1]
    ports = []
    for number in range(2):
        ports += [{words[2] for words in said(pod, "begins", number)} for pod in pods.started]
        act(pods, number, 1 if nnodes * nproc > 1 else 0, "raise ValueError('boom')")
        told = operator.until_failed()[0]
        assert told["message"]["message"] == "ValueError: boom", last.log
        assert told["message"]["round"] == number
        operator.go_on()
        all_step(pods, number + 1, nnodes * nproc)
        operator.until(lambda page: page["running"])
    assert len(ports) == 2 * nnodes and all(len(found) == 1 for found in ports)
    assert len(set.union(*ports)) == 2, "each round has a port of its own"
