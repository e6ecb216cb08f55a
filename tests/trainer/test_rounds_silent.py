"""Nodes that are not heard any more, with torchrun and a group of ranks."""

import signal
import time
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.agentpod import Pod, Pods, archive_with
from tests.trainer.rounds import TRAIN, steps, train
from tests.waiting import wait_for

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
    brief = archive_with(
        {"WAIT_SECONDS = 30.0": "WAIT_SECONDS = 2.0", "HEAD_SECONDS = 120.0": "HEAD_SECONDS = 4.0"}
    )
    operator = train(pods, text=slow, nnodes=2, nproc=2, archive=brief, **TIMEOUT)
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
