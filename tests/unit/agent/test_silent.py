"""Nodes that do not hear each other any more: agents as processes, stopped and let go on."""

import math
import re
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import pytest

from tests import agentpod
from tests.agentpod import Pod, Pods, archive_with
from tests.trainer.rounds import Operator
from tests.unit.agent.scripts import script

TIMEOUT = 8  # a busy machine is late by seconds
# Trains until it is told how to end.
TRAIN = """
while not os.path.exists("end"):
    report(step=int(time.time() * 1000))
    time.sleep(0.02)
exec(open("end").read())
"""
PATIENT = archive_with({"WAIT_SECONDS = 30.0": "WAIT_SECONDS = 1000.0"})


def start(
    pods: Pods, nnodes: int = 2, timeout: int = TIMEOUT, *, apart: bool = True, **changes: str
) -> list[Pod]:
    """Pods whose scripts train, each for itself, in agents that do not wait in vain.

    `apart`: with nothing but heartbeats between them, as with restartStrategy Recreate.
    """
    path = script(pods, TRAIN)
    for rank in range(nnodes):
        ours = {"MASTER_ADDR": pods.address(0), "DDPJOB_NODE_TIMEOUT": str(timeout)}
        ours["DDPJOB_RESTART"] = "Recreate" if apart else "InPlace"
        pods.start(
            *("command", "--", "python3", path),
            rank=rank,
            nnodes=nnodes,
            archive=PATIENT,
            changes={**ours, "PATH": agentpod.python_path(), **changes},
        )
    for pod in pods.started:
        pod.until(partial(trains, pod, 0))
    if timeout:
        for pod in pods.started[1:]:
            pod.until(partial(is_heard_twice, pod, [math.inf]))
    return pods.started


def trains(pod: Pod, number: int) -> bool:
    """Whether a script has made a step in a round."""
    page = pod.progress()
    return "step" in page and page["round"] == number


def is_heard_twice(pod: Pod, ages: list[float]) -> bool:
    """Whether rank 0 has been heard again: then it has heard this pod too."""
    ages.append(pod.progress().get("unheard_seconds", math.inf))
    return ages[-1] < ages[-2] < math.inf


def end(pod: Pod, text: str) -> None:
    """Have a script end so."""
    (pod.folder / "act").write_text(text)
    (pod.folder / "act").rename(pod.folder / "end")


def send(pod: Pod, number: int) -> None:
    """Send a signal to all of a pod: the agent, and what it has started."""
    agent = psutil.Process(pod.process.pid)
    for process in [agent, *agent.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def unheard(page: dict[str, Any]) -> dict[int, float]:
    """By node rank, for how many seconds."""
    return {each["node_rank"]: each["seconds"] for each in page["unheard"]}


def lives(pod: Pod) -> bool:
    """Whether a pod's script makes a further step."""
    before = pod.progress().get("step", 0)
    pod.until(lambda: pod.progress().get("step", 0) > before)
    return True


LOST = r"node rank 0 has not been heard for ([4-9]|\d\d+) s"
ALL_LOST = r"neither another node nor the operator has been heard for ([4-9]|\d\d+) s"


def assert_silent(pod: Pod, message: str) -> None:
    assert pod.wait() == 78, pod.log
    told = pod.summary
    assert (told["reason"], told["peer"], told["suspect"]) == ("NodeSilent", True, False)
    assert re.fullmatch(message, told["message"])
    assert pod.log.count(f"ddpjob-agent: NodeSilent: {told['message']}\n") == 1


def test_a_node_that_is_stopped_is_missed_and_ends_when_it_goes_on(pods: Pods) -> None:
    first, second, third = start(pods, 3)
    operator = Operator(first)
    assert operator.ask(0)["unheard"] == []
    send(second, signal.SIGSTOP)
    page = operator.until(unheard)
    assert unheard(page).keys() == {1} and unheard(page)[1] >= 2
    page = operator.until(lambda page: unheard(page)[1] > TIMEOUT)
    assert second.process.poll() is None
    send(second, signal.SIGCONT)
    assert_silent(second, LOST)
    assert lives(first) and lives(third)
    assert unheard(operator.ask(0)).keys() == {1}, "it is not heard again"


def test_where_rank_0_is_stopped_the_others_end_and_so_does_it(pods: Pods) -> None:
    first, second, third = start(pods, 3)
    Operator(first).ask(0)
    send(first, signal.SIGSTOP)
    assert_silent(second, LOST)
    assert_silent(third, LOST)
    send(first, signal.SIGCONT)
    assert_silent(first, ALL_LOST)


@pytest.mark.parametrize("leaver", [0, 1])
def test_who_ends_in_order_is_not_missed(pods: Pods, leaver: int) -> None:
    started = start(pods)
    end(started[leaver], "sys.exit(3)")
    assert started[leaver].wait() == 1
    stays = started[1 - leaver]
    if leaver == 1:
        assert Operator(stays).ask(0)["unheard"] == []
    else:
        stays.until(lambda: "unheard_seconds" not in stays.progress())
    end(stays, f"time.sleep({1.5 * TIMEOUT})")
    assert stays.wait() == 0


def test_with_restarts_in_place_a_failed_node_still_waits(pods: Pods) -> None:
    first, second = start(pods, apart=False)
    operator = Operator(first)
    end(second, "sys.exit(3)")
    operator.until(lambda page: page["failures"])
    time.sleep(1.5 * TIMEOUT)  # it is heard meanwhile
    (second.folder / "end").unlink()
    operator.go_on()
    for pod in (first, second):
        pod.until(partial(trains, pod, 1))


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_that_waits_with_a_failure_keeps_its_verdict(pods: Pods, number: int) -> None:
    started = start(pods, apart=False)
    waits, other = started[number], started[1 - number]
    end(waits, "sys.exit(3)")
    Operator(started[0]).until(lambda page: page["failures"])
    send(other, signal.SIGSTOP)
    assert waits.wait() == 1, "it does not wait for its time to be over"
    assert (waits.summary["reason"], waits.summary["exit_code"]) == ("ExitCode", 3)


def test_a_node_that_is_clean_ends_too(pods: Pods) -> None:
    """Of three nodes one is never clean, so that the others wait for it."""
    first, second, third = start(pods, 3, apart=False)
    operator = Operator(first)
    end(second, "sys.exit(3)")
    operator.until(lambda page: page["failures"])
    third.process.send_signal(signal.SIGSTOP)
    left = second.folder / "run" / "exit-left.json"
    left.touch()
    operator.go_on()
    first.until(lambda: not psutil.Process(first.process.pid).children())
    second.until(lambda: not left.exists())  # what is of the round before goes
    send(first, signal.SIGSTOP)
    assert_silent(second, LOST)
    assert second.summary["round"] == 1


def test_without_a_timeout_nobody_is_missed(pods: Pods) -> None:
    first, second = start(pods, timeout=0, apart=False)
    for pod in (first, second):
        assert "unheard_seconds" not in pod.progress()
        assert psutil.Process(pod.process.pid).net_connections("udp") == []
    assert not {"stamp", "unheard"} & Operator(first).ask(0).keys()
