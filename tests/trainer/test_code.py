"""A job's own code trains in pods: a script, a package of its own and a file with settings."""

import hashlib
import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest

pytest.importorskip("torch")

from ddpjob.code.archive import pack
from ddpjob.pods.program import print_of
from ddpjob_agent.config import FIRST_PROGRAM
from tests.agentpod import Pod, Pods, python_path
from tests.cluster.processes import free_ports
from tests.repositories import write
from tests.trainer.rounds import TRAIN, Operator, accelerate, act, all_step, pid_of, said
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
# What a rank sees of its arguments and of a variable.
ARGS = """
import os, sys
print("args", os.environ["DDPJOB_ROUND"], sys.argv[1:], os.environ["SIZE"])
"""


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
        more["DDPJOB_PROGRAM"] = FIRST_PROGRAM
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


def assert_sees(pod: Pod, number: int, nproc: int, seen: list[str] = SEEN) -> None:
    """Each rank has found the code as it was packed. One of them may see what another left."""
    found = said(pod, "sees", number)
    assert len(found) == nproc and seen in found, pod.log
    if nproc == 1:
        assert found == [seen]


def program(pods: Pods, args: list[str], env: dict[str, str], **files: str) -> bytes:
    """What the operator sends for these arguments, variables and changed files."""
    write(pods.root / "project", **files)
    return sent(args, env, pack(pods.root / "project").data)


def sent(args: list[str], env: dict[str, str], archive: bytes) -> bytes:
    found = {"args": args, "env": env, "code": hashlib.sha256(archive).hexdigest(), "path": ""}
    return json.dumps(found).encode() + b"\n" + archive


@pytest.mark.parametrize(
    ("command", "nnodes", "nproc"),
    [
        (torchrun, 2, 1),
        pytest.param(torchrun, 2, 2, marks=pytest.mark.deep),
        pytest.param(launch, 1, 2, marks=pytest.mark.deep),
    ],
)
def test_other_code_arguments_and_variables_run_in_the_same_pods(
    pods: Pods, command: Callable[[int], list[str]], nnodes: int, nproc: int
) -> None:
    start(pods, command, nnodes=nnodes, nproc=nproc, ACCELERATE_USE_CPU="true", SIZE="0")
    head, world = pods.started[0], nnodes * nproc
    head.until(head.progress)
    operator = Operator(head)
    all_step(pods, 0, world)
    operator.until(lambda page: page["running"])
    words = command(0)[2:]
    operator.bring(program(pods, words, {"SIZE": "0"}, **{"models/net.py": "SIZE = 7\n"}))
    operator.go_on()
    all_step(pods, 1, world)
    for pod in pods.started:
        assert_sees(pod, 1, nproc, ["7", *SEEN[1:]])
        assert_warm(pod, 2 * nproc)
    files = {"scripts/train.py": ARGS + FILES["scripts/train.py"]}
    operator.until(lambda page: page["running"])
    operator.bring(program(pods, [*words, "--lr", "$(SIZE)"], {"SIZE": "3"}, **files))
    operator.go_on()
    all_step(pods, 2, world)
    for pod in pods.started:
        assert said(pod, "args", 2) == [["['--lr',", "'3']", "3"]] * nproc, pod.log
        assert pod.log.count("is warm: True") == 3 * nproc, "the fork server is a new one"
        assert f"it runs {' '.join(words)} --lr 3\n" in pod.log


def test_a_node_without_what_it_is_to_run_keeps_the_round_from_beginning(pods: Pods) -> None:
    start(pods, torchrun, nnodes=2)
    head, other = pods.started
    head.until(head.progress)
    operator = Operator(head)
    all_step(pods, 0, 2)
    operator.until(lambda page: page["running"])
    content = program(pods, torchrun(0)[2:], {}, **{"models/net.py": "SIZE = 7\n"})
    operator.program = print_of(content.partition(b"\n")[0])  # the order comes first
    ranks = [pid_of(pod, 0, rank) for rank, pod in enumerate(pods.started)]
    operator.go_on()
    head.until(lambda: not any(map(psutil.pid_exists, ranks)))
    assert operator.ask(1)["lacks_program"]
    assert not said(head, "begins", 1) and not said(other, "begins", 1)
    operator.bring(content)
    all_step(pods, 1, 2)
    assert_sees(other, 1, 1, ["7", *SEEN[1:]])


@pytest.mark.deep
def test_kept_pods_that_cannot_unpack_their_code_wait_for_other_code(pods: Pods) -> None:
    start(pods, torchrun, nnodes=2, DDPJOB_KEEP_SECONDS="600")
    head, other = pods.started
    head.until(head.progress)
    operator = Operator(head)
    all_step(pods, 0, 2)
    operator.until(lambda page: page["running"])
    for archive in (b"no tar", b"none either"):
        operator.bring(sent(torchrun(0)[2:], {}, archive))
        number = operator.go_on()
        failures = operator.until_failed(2)
        assert {each["message"]["reason"] for each in failures} == {"CodeInvalid"}
        assert {each["message"]["round"] for each in failures} == {number}
        operator.go_on()  # the job is Idle
    operator.bring(program(pods, torchrun(0)[2:], {}, **{"models/net.py": "SIZE = 7\n"}))
    number = operator.go_on()
    all_step(pods, number, 2)
    for pod in (head, other):
        assert_sees(pod, number, 1, ["7", *SEEN[1:]])
        assert pod.log.count("the archive of spec.code is refused") == 2


def test_an_agent_that_anybody_may_reach_takes_nothing_to_run(pods: Pods) -> None:
    start(pods, torchrun, DDPJOB_PROGRAM="")
    (pod,) = pods.started
    pod.until(pod.progress)
    content = program(pods, torchrun(0)[2:], {}, **{"models/net.py": "SIZE = 7\n"})
    with pytest.raises(HTTPError, match="404"):
        Operator(pod).bring(content)
    assert not [*pod.folder.rglob("program-*")]


@pytest.mark.deep
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
