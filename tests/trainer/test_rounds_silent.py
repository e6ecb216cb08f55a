"""Nodes that are not heard any more, with torchrun and a group of ranks."""

import os
import signal
import time
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")

from tests.agentpod import Pod, Pods
from tests.trainer.rounds import TRAIN, act, all_step, pid_of, start, steps, train
from tests.trainer.warm_pods import wait_for

pytestmark = pytest.mark.deep

TIMEOUT: dict[str, Any] = {"DDPJOB_NODE_TIMEOUT": "5"}


def send(pod: Pod, number: int) -> None:
    """Send a signal to every process of a pod."""
    found = pod.processes()
    for process in sorted(found, key=lambda each: each.pid != pod.process.pid):
        process.send_signal(number)


def is_unheard(page: dict[str, object], rank: int) -> bool:
    unheard = page["unheard"]
    assert isinstance(unheard, list)
    return [each["node_rank"] for each in unheard if each["seconds"] > 5] == [rank]


def test_a_node_that_was_stopped_ends_its_ranks_before_they_go_on(pods: Pods) -> None:
    slow = TRAIN.replace("time.sleep(0.02)", "time.sleep(1)")
    assert slow != TRAIN
    operator = train(pods, text=slow, nnodes=2, nproc=2, **TIMEOUT)
    first, second = pods.started
    second.until(lambda: "unheard_seconds" in second.progress())
    send(second, signal.SIGSTOP)
    operator.until(lambda page: is_unheard(page, 1))
    assert first.process.poll() is None
    goes_on = time.time()
    send(second, signal.SIGCONT)
    assert second.wait() == 78
    told = second.summary
    assert (told["reason"], told["peer"], told["rank"]) == ("NodeSilent", True, None)
    assert told["progress"]["state"] == "finished" and told["progress"]["step"] > 0
    wait_for(lambda: not second.processes())
    # Each of them has one step under way at most.
    assert all(sum(at > goes_on for _, at in made) <= 2 for made in steps(second, 0).values())


def test_ranks_whose_rank_0_is_stopped_end_with_all_that_they_have_started(pods: Pods) -> None:
    train(pods, nnodes=2, **TIMEOUT)
    first, second = pods.started
    second.until(lambda: "unheard_seconds" in second.progress())
    send(first, signal.SIGSTOP)
    assert second.wait() == 78
    wait_for(lambda: not second.processes())
    send(first, signal.SIGCONT)
    assert first.wait() == 78
    words = "neither another node nor the operator has been heard for "
    assert first.summary["message"].startswith(words)


def test_restarts_in_place_go_on_with_heartbeats(pods: Pods) -> None:
    operator = train(pods, nnodes=2, **TIMEOUT)
    for number in range(2):
        os.kill(pid_of(pods.started[1], number, 1), signal.SIGKILL)
        assert operator.until_failed()[0]["message"]["signal"] == "SIGKILL"
        time.sleep(6)  # longer than the timeout: who waits is heard
        operator.go_on()
        all_step(pods, number + 1, 2)
    assert operator.ask(0)["unheard"] == []


def test_with_new_pods_a_failed_node_ends_at_once_and_is_not_missed(pods: Pods) -> None:
    start(pods, nnodes=2, **TIMEOUT, DDPJOB_RESTART="Recreate")
    all_step(pods, 0, 2)
    act(pods, 0, 1, "raise ValueError('boom')")
    first, second = pods.started
    assert (second.wait(), first.wait()) == (1, 1)
    assert second.summary["message"] == "ValueError: boom" and first.summary["peer"]
    assert not any("not been heard" in pod.log for pod in pods.started)
    assert not psutil.pid_exists(second.process.pid)
