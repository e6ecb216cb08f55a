"""A job's own code trains in pods: a script, a package of its own and a file with settings."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from ddpjob.code.archive import pack
from tests.agentpod import Pod, Pods, python_path
from tests.cluster.processes import free_ports
from tests.repositories import write
from tests.trainer.rounds import TRAIN, Operator, accelerate, act, all_step, said
from tests.trainer.warm_pods import assert_cold, assert_warm

COLD = {"DDPJOB_WARM_START": "0"}
# What a rank sees of its code, as the first thing that it does; then it leaves something behind.
SEES = """
import os, sys
print("is warm:", "torch" in sys.modules)
import models.net
ours = [path for path in sys.path if path == os.environ["DDPJOB_CODE_DIR"]]
print("sees", os.environ["DDPJOB_ROUND"], models.net.SIZE, open("config.yaml").read().strip(),
      os.getcwd() == os.environ["DDPJOB_CODE_DIR"], bool(ours), os.path.exists("left"))
open("left", "w").close()
open("config.yaml", "a").write("lr: 9")
open("models/net.py", "a").write("SIZE = 5")
"""
FILES = {
    "scripts/train.py": SEES + TRAIN.replace('f"act-', 'f"../act-'),
    "models/__init__.py": "",
    "models/net.py": "SIZE = 4\n",
    "config.yaml": "lr: 0.1\n",
}
SEEN = ["4", "lr:", "0.1", "True", "True", "False"]


def start(
    pods: Pods,
    command: Callable[[int], list[str]],
    *,
    nnodes: int = 1,
    nproc: int = 1,
    **changes: str,
) -> None:
    """Start the pods of a job that brings FILES, in two parts."""
    write(pods.root / "project", **FILES)
    archive = pack(pods.root / "project").data
    (port,) = free_ports(1)
    for rank in range(nnodes):
        root = pods.root / f"pod-{len(pods.started)}"
        (root / "src").mkdir(parents=True)
        parts = [root / f"ddpjob-code{suffix}/code.tar.gz" for suffix in ("", "-1")]
        for path, part in zip(parts, (archive[:99], archive[99:]), strict=True):
            path.parent.mkdir()
            path.write_bytes(part)
        code = {
            "DDPJOB_CODE_DIR": str(root / "src"),
            "DDPJOB_CODE_PARTS": ":".join(map(str, parts)),
            "DDPJOB_CODE_SHA256": hashlib.sha256(archive).hexdigest(),
        }
        master = {"MASTER_ADDR": pods.address(0), "PET_MASTER_ADDR": pods.address(0)}
        more = {"PATH": python_path(), "PYTHONUNBUFFERED": "1", "DDPJOB_RESTART": "InPlace"}
        pods.start(
            *command(port),
            rank=rank,
            nnodes=nnodes,
            nproc=nproc,
            port=port,
            changes={**more, **master, **code, **changes},
        )


def torchrun(port: int) -> list[str]:
    return ["torchrun", "--", "scripts/train.py"]


def module(port: int) -> list[str]:
    return ["torchrun", "--", "-m", "scripts.train"]


def launch(port: int) -> list[str]:
    return accelerate("scripts/train.py", port)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("command", "nnodes", "nproc", "is_warm"),
    [
        (torchrun, 2, 1, True),
        (torchrun, 1, 2, False),
        (module, 1, 1, True),
        (launch, 1, 2, True),
    ],
)
def test_code_trains_and_is_new_after_each_restart_in_place(
    pods: Pods, command: Callable[[int], list[str]], nnodes: int, nproc: int, is_warm: bool
) -> None:
    kind: dict[str, Any] = {} if is_warm else COLD
    start(pods, command, nnodes=nnodes, nproc=nproc, ACCELERATE_USE_CPU="true", **kind)
    head, world = pods.started[0], nnodes * nproc
    head.until(head.progress)
    operator = Operator(head)
    all_step(pods, 0, world)
    restarts = 2 if nnodes > 1 else 1
    for number in range(restarts):
        operator.until(lambda page: page["running"])
        act(pods, number, world - 1, "raise ValueError('boom')")
        operator.until_failed()
        operator.go_on()
        all_step(pods, number + 1, world)
    for pod in pods.started:
        for number in range(restarts + 1):
            assert_sees(pod, number, nproc)
        (assert_warm if is_warm else assert_cold)(pod, (restarts + 1) * nproc)
        told = [
            line for line in pod.log.splitlines() if " is in " in line or line.endswith("begins")
        ]
        words = [" is in ", *(["begins", " is in "] * restarts)]  # of each round, in its lines
        assert len(told) == len(words) and all(map(str.__contains__, told, words)), told


def assert_sees(pod: Pod, number: int, nproc: int) -> None:
    """Each rank has found the code as it was packed. One of them may see what another left."""
    found = said(pod, "sees", number)
    assert len(found) == nproc and SEEN in found, pod.log
    if nproc == 1:
        assert found == [SEEN]


def test_code_that_changes_between_two_rounds_ends_the_pod(pods: Pods) -> None:
    start(pods, torchrun)
    (pod,) = pods.started
    pod.until(pod.progress)
    operator = Operator(pod)
    all_step(pods, 0, 1)
    operator.until(lambda page: page["running"])
    with (pod.folder / "ddpjob-code-1/code.tar.gz").open("ab") as part:
        part.write(b"x")
    act(pods, 0, 0, "raise ValueError('boom')")
    operator.until_failed()
    operator.go_on()
    assert pod.wait() == 1
    summary = pod.summary
    assert (summary["reason"], summary["round"], summary["exception"]) == ("CodeInvalid", 1, None)
    assert "its sha256 is " in summary["message"]
    assert said(pod, "sees", 1) == []
