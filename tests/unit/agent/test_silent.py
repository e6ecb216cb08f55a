"""Nodes that do not hear each other any more: agents as processes, stopped and let go on."""

import json
import math
import re
import signal
import time
import urllib.error
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import pytest

from ddpjob_agent.config import OWN_RANK
from ddpjob_agent.nodes.group import print_of
from tests import agentpod
from tests.agentpod import TOKEN, Pod, Pods, archive_with
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


def test_rank_0_ends_with_its_failure_where_it_hears_nobody(pods: Pods) -> None:
    first, second = start(pods, apart=False)
    end(first, "sys.exit(3)")
    Operator(first).until(lambda page: page["failures"])
    send(second, signal.SIGSTOP)
    assert first.wait() == 1, "it does not wait for its time to be over"
    assert (first.summary["reason"], first.summary["exit_code"]) == ("ExitCode", 3)


def replace(pods: Pods, rank: int, script: str, nnodes: int = 2) -> Pod:
    """A pod in the place of another one, from round 1 on."""
    changes = {"MASTER_ADDR": pods.address(0), "DDPJOB_NODE_TIMEOUT": str(TIMEOUT)}
    changes |= {"DDPJOB_RESTART": "InPlace", "DDPJOB_ROUND": "1", "PATH": agentpod.python_path()}
    words = ("command", "--", "python3", script)
    pods.start(*words, rank=rank, nnodes=nnodes, archive=PATIENT, changes=changes)
    return pods.started[-1]


def pods_of(rank: int, pod: Pod) -> str:
    return f"&pods={rank}:{print_of(f'uid-{pod.address}')}"


def test_who_has_lost_rank_0_waits_for_another_one_and_goes_on_with_that(pods: Pods) -> None:
    """Its ranks are dead by then. Rank 0 itself, which was only cut off, does not come back."""
    first, second = start(pods, apart=False)
    Operator(first).ask(0)
    send(first, signal.SIGSTOP)
    second.until(lambda: "NodeSilent" in second.log)
    assert not psutil.Process(second.process.pid).children()
    third = replace(pods, 0, str(pods.root / "script-0.py"))
    third.until(third.progress)
    with pytest.raises(urllib.error.HTTPError):
        second.get(f"/head?{third.address}")
    second.get(f"/head?{third.address}", TOKEN)
    assert not trains(third, 1)
    json.loads(third.get(f"/group?round=1{pods_of(0, third)}", TOKEN))
    for pod in (second, third):
        pod.until(partial(trains, pod, 1))
    send(first, signal.SIGCONT)
    assert_silent(first, ALL_LOST)
    assert lives(second) and lives(third)


def test_a_pod_that_has_been_replaced_ends_and_the_others_go_on_without_it(pods: Pods) -> None:
    first, second = start(pods, apart=False)
    operator = Operator(first)
    operator.ask(0)
    third = replace(pods, 1, str(pods.root / "script-0.py"))
    third.until(third.progress)
    json.loads(first.get(f"/group?round=1{pods_of(1, third)}", TOKEN))
    for pod in (first, third):
        pod.until(partial(trains, pod, 1))
    assert second.wait() == 77
    assert "another pod" in second.summary["message"]


def spare(pods: Pods) -> Pod:
    """A pod that waits for a rank, whose script is told that rank."""
    changes = {"MASTER_ADDR": pods.address(0), "DDPJOB_NODE_TIMEOUT": str(TIMEOUT)}
    changes |= {"DDPJOB_RESTART": "InPlace", "PATH": agentpod.python_path(), "TOLD": OWN_RANK}
    changes |= dict.fromkeys(("DDPJOB_NODE_RANK", "RANK", "PET_NODE_RANK"), OWN_RANK)
    words = ("command", "--", "python3", str(pods.root / "script-0.py"), f"--rank={OWN_RANK}")
    found = pods.start(*words, nnodes=2, archive=PATIENT, changes=changes)
    found.until(lambda: "waits for a node rank" in found.log)
    return found


def assert_has_rank(pod: Pod, rank: int) -> None:
    pod.until(partial(trains, pod, 1))
    assert pod.progress()["node_rank"] == rank
    (process,) = psutil.Process(pod.process.pid).children()
    env = process.environ()
    assert {env[name] for name in ("RANK", "PET_NODE_RANK", "DDPJOB_NODE_RANK", "TOLD")} == {
        str(rank)
    }
    assert process.cmdline()[-1] == f"--rank={rank}"


def test_a_spare_gets_the_rank_of_a_lost_pod_by_what_rank_0s_agent_says(pods: Pods) -> None:
    first, second = start(pods, apart=False)
    Operator(first).ask(0)
    third = spare(pods)
    json.loads(first.get(f"/group?round=0{pods_of(1, third)}&since=1", TOKEN))
    third.until(lambda: "gets node rank 1" in third.log)
    assert not trains(third, 1), "the round has not been ordered"
    json.loads(first.get(f"/group?round=1{pods_of(1, third)}&since=1", TOKEN))
    assert_has_rank(third, 1)
    first.until(partial(trains, first, 1))
    assert second.wait() == 77


def test_a_spare_gets_rank_0_by_the_operators_word(pods: Pods) -> None:
    first, second = start(pods, apart=False)
    Operator(first).ask(0)
    third = spare(pods)
    send(first, signal.SIGSTOP)
    second.until(lambda: "NodeSilent" in second.log)
    second.get(f"/head?{third.address}", TOKEN)
    page = json.loads(third.get(f"/group?round=1{pods_of(0, third)}&since=1", TOKEN))
    assert (page["node_rank"], page["progress"]["node_rank"]) == (0, 0)
    assert_has_rank(third, 0)
    second.until(partial(trains, second, 1))
    send(first, signal.SIGCONT)
    assert_silent(first, ALL_LOST)


def test_a_spare_ends_by_sigterm_and_without_a_word(pods: Pods) -> None:
    start(pods, apart=False)
    third = spare(pods)
    third.terminate()
    assert third.wait() == 143 and third.summary["signal"] == "SIGTERM"


def test_without_a_timeout_nobody_is_missed(pods: Pods) -> None:
    first, second = start(pods, timeout=0, apart=False)
    for pod in (first, second):
        assert "unheard_seconds" not in pod.progress()
        assert psutil.Process(pod.process.pid).net_connections("udp") == []
    assert not {"stamp", "unheard"} & Operator(first).ask(0).keys()
