"""Nodes whose ranks have failed and that are not asked on end by themselves, as without rounds."""

import json
import os
import signal
from contextlib import suppress
from functools import partial

import psutil
import pytest

pytest.importorskip("torch")

from tests.agentpod import Pod, Pods, archive_with
from tests.trainer.rounds import Operator, act, all_step, pid_of, start, train
from tests.waiting import wait_for

pytestmark = pytest.mark.deep

WAIT = "WAIT_SECONDS = 30.0"
BRIEF, PATIENT = "WAIT_SECONDS = 2.0", "WAIT_SECONDS = 1000.0"
# Waits for nobody, and makes no group.
ALONE = """
import os, signal, sys, time
while True:
    if os.path.exists("act"):
        exec(open("act").read())
    os.write(1, f"step {os.environ['DDPJOB_ROUND']} {os.environ['RANK']} {os.getpid()} "
                f"{time.time()}\\n".encode())
    time.sleep(0.02)
"""


def waits(pod: Pod) -> bool:
    """Whether a pod waits with its failure: whoever reads its message now may have it."""
    return pod.termination_log.stat().st_size > 0


def is_gone(pod: Pod) -> bool:
    return not pod.processes()


def has_no_ranks(pod: Pod) -> bool:
    """Whether there is nothing but the agent and its fork server."""
    for process in pod.processes()[1:]:
        with suppress(psutil.Error):  # it has ended just now
            words = process.cmdline()
            if "launch" in words or any(each.endswith("train.py") for each in words[-1:]):
                return False
    return True


def test_where_nobody_asks_a_node_on_it_ends_as_without_rounds(pods: Pods) -> None:
    train(pods, nnodes=2, archive=archive_with({WAIT: BRIEF}))
    act(pods, 0, 1, "raise ValueError('boom')")
    first, second = pods.started
    assert (first.wait(), second.wait()) == (1, 1)
    told = second.summary
    assert (told["reason"], told["message"]) == ("Exception", "ValueError: boom")
    assert (told["rank"], told["peer"], told["round"]) == (1, False, 0)
    assert told["progress"]["state"] == "finished" and "train.py" in told["traceback"]
    assert first.summary["peer"]
    for pod in pods.started:
        assert pod.log.count("ddpjob-agent: Exception: rank") == 1, "it is said once"
        wait_for(partial(is_gone, pod))


def test_a_node_that_is_told_to_end_does_so_at_once(pods: Pods) -> None:
    operator = train(pods, nnodes=2, archive=archive_with({WAIT: PATIENT}))
    act(pods, 0, 1, "sys.exit(3)")
    operator.until_failed(2)
    operator.ask(0, ends=True)
    first, second = pods.started
    assert (first.wait(), second.wait()) == (1, 1)
    told = second.summary
    assert (told["reason"], told["exit_code"], told["rank"]) == ("ExitCode", 3, 1)


def test_a_node_whose_ranks_saved_because_another_pod_goes_waits_for_the_next_round(
    pods: Pods,
) -> None:
    operator = start(pods, ALONE, nnodes=2, archive=archive_with({WAIT: PATIENT}))
    all_step(pods, 0, 2)
    for pod in pods.started:
        (pod.folder / "act").write_text("os.unlink('act'); sys.exit(75)")
    found = operator.until_failed(2)
    assert {each["message"]["reason"] for each in found} == {"Preempted"}
    operator.go_on()
    all_step(pods, 1, 2)


def test_sigterm_ends_a_node_that_waits_with_its_verdict(pods: Pods) -> None:
    train(pods, archive=archive_with({WAIT: PATIENT}))
    (pod,) = pods.started
    os.kill(pid_of(pod, 0, 0), signal.SIGKILL)
    pod.until(lambda: waits(pod))
    before = pod.summary
    assert (before["reason"], before["signal"], before["round"]) == ("Signal", "SIGKILL", 0)
    pod.terminate()
    assert pod.wait() == 137
    assert {**pod.summary, "progress": 0} == {**before, "progress": 0}


def test_sigterm_ends_clean_nodes_each_with_its_verdict(pods: Pods) -> None:
    """Of three nodes one is never clean, so that the others wait for it."""
    operator = start(pods, ALONE, nnodes=3, archive=archive_with({WAIT: PATIENT}))
    all_step(pods, 0, 3)
    first, second, third = pods.started
    (second.folder / "act").write_text("raise ValueError('boom')")
    operator.until_failed()
    third.process.send_signal(signal.SIGSTOP)
    operator.go_on()
    for pod in (first, second):
        pod.until(partial(has_no_ranks, pod))
    for pod in (first, second):
        pod.terminate()
    assert (first.wait(), second.wait()) == (143, 1)
    assert (first.summary["reason"], first.summary["signal"]) == ("Signal", "SIGTERM")
    assert second.summary["message"] == "ValueError: boom"
    for pod in (first, second):
        assert "round 1 of" not in pod.log


def test_where_not_all_nodes_are_ready_the_pods_end(pods: Pods) -> None:
    operator = start(pods, ALONE, nnodes=2, archive=archive_with({WAIT: BRIEF}))
    all_step(pods, 0, 2)
    first, second = pods.started
    progress = {"step": 7, "total_steps": 9}
    (first.folder / "run/progress.json").write_text(json.dumps(progress))
    first.until(lambda: first.progress().get("step") == 7)
    (first.folder / "act").write_text("raise ValueError('boom')")
    operator.until_failed()
    second.process.send_signal(signal.SIGSTOP)
    operator.go_on()
    assert first.wait() == 77
    told = first.summary
    assert (told["reason"], told["round"]) == ("Rendezvous", 1)
    assert told["message"] == "not all of 2 nodes were ready for round 1 in time"
    assert "step" not in told["progress"], "that round has made none"


@pytest.mark.parametrize("is_clean", [False, True], ids=["failed", "clean"])
def test_a_node_does_not_wait_for_ever_for_a_rank_0_that_is_gone(
    pods: Pods, is_clean: bool
) -> None:
    brief = archive_with({WAIT: BRIEF, "HEAD_SECONDS = 120.0": "HEAD_SECONDS = 4.0"})
    operator = start(pods, ALONE, nnodes=3, archive=brief)
    all_step(pods, 0, 3)
    first, second, third = pods.started
    (second.folder / "act").write_text("sys.exit(3)")
    operator.until_failed()
    if is_clean:
        third.process.send_signal(signal.SIGSTOP)
        operator.go_on()
        first.until(lambda: has_no_ranks(first))
    first.kill()
    assert second.wait() == (77 if is_clean else 1)
    assert second.summary["reason"] == ("Rendezvous" if is_clean else "ExitCode")


def test_a_node_that_never_reached_rank_0_does_not_wait_for_it(pods: Pods) -> None:
    start(pods, ALONE, nnodes=2, archive=archive_with({WAIT: PATIENT}), DDPJOB_POD_IP="127.0.0.9")
    first, second = pods.started
    all_step(pods, 0, 2)
    (second.folder / "act").write_text("sys.exit(3)")
    assert second.wait() == 1 and second.summary["exit_code"] == 3


def test_a_kept_pod_whose_ranks_end_at_once_waits_for_rank_0_to_come(pods: Pods) -> None:
    changes = {"DDPJOB_RESTART": "InPlace", "DDPJOB_KEEP_SECONDS": "600"}
    changes["MASTER_ADDR"] = changes["PET_MASTER_ADDR"] = pods.address(1)
    pod = pods.start("command", "--", "true", rank=1, nnodes=2, changes=changes)
    pod.until(lambda: waits(pod))
    head = pods.start("command", "--", "true", nnodes=2, changes=changes)
    head.until(head.progress)
    assert Operator(head).until(lambda page: page.get("over"))
    assert pod.process.poll() is None, "it can run what is next"
