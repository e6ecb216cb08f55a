"""A training goes over rounds as if nothing had happened, at each level."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.agentpod import Pods, archive_with
from tests.cluster.tiers import ROOT
from tests.trainer.rounds import OVERLOOKS, start
from tests.trainer.training import RESULT, assert_same_training, losses, saved

pytestmark = pytest.mark.deep

OPTIONS = ("--max-steps=92", "--checkpoint-every=10", "--checkpoint-dir")
# Trains on the digits. In round 0 the last rank is killed; in round 1 rank 0 is, or the whole round
# is left behind: rank 0 stops amid its checkpoint, where it has seen that the folder is its own,
# and goes on when round 2 has checkpoints of its own.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from ddptrain import LEVEL as level, checkpoint, report

number, rank, world = (int(os.environ[name]) for name in ("DDPJOB_ROUND", "RANK", "WORLD_SIZE"))
folder, leaves = Path(os.environ["DDPJOB_CHECKPOINT_DIR"]), LEAVES
step, replace = report.Report.step, checkpoint.replace

def files():
    return {path.name: path.read_bytes() for path in folder.iterdir()}

def let_go_on():
    before, left = files(), [int(path.name[5:]) for path in Path().glob("left-*")]
    assert len(left) == world
    for pid in left:
        os.kill(pid, signal.SIGCONT)
    while any(map(os.path.exists, map("/proc/{}".format, left))):
        time.sleep(0.01)
    assert files() == before, (sorted(files()), sorted(before))

def steps(self, done, *more):
    step(self, done, *more)
    place = number, done, rank
    if place == (0, 37, world - 1) or place == (1, 55, 0) and not leaves:
        os.kill(os.getpid(), signal.SIGKILL)
    if place == (2, 75, 0) and leaves:
        let_go_on()

def replaces(path, write):
    if path.name.startswith("step-00000050"):
        os.kill(os.getppid(), signal.SIGKILL)  # torchrun, so that the round fails
        os.kill(os.getpid(), signal.SIGSTOP)
    replace(path, write)

report.Report.step = steps
if leaves and number == 1:
    checkpoint.replace = replaces
    Path(f"left-{os.getpid()}").touch()
sys.exit(level.main([*OPTIONS, str(folder)]))
"""


@pytest.mark.parametrize(
    ("level", "nnodes", "nproc", "leaves"),
    [
        ("native", 2, 1, False),
        ("native", 1, 3, True),
        ("accelerated", 1, 2, True),
        ("hf", 1, 2, True),
    ],
)
def test_a_training_over_three_rounds_equals_one_that_nothing_disturbed(
    level: str,
    nnodes: int,
    nproc: int,
    leaves: bool,
    pods: Pods,
    tmp_path: Path,
    fork_ranks: Callable[..., list[str]],
) -> None:
    """Weights, optimizer, random numbers and every evaluation, to the last bit."""
    if level != "native":
        pytest.importorskip({"accelerated": "accelerate", "hf": "transformers"}[level])
    whole, folder = tmp_path / "whole", tmp_path / "checkpoints"
    text = SCRIPT.replace("LEVEL", level).replace("LEAVES", str(leaves))
    operator = start(
        pods,
        text.replace("OPTIONS", str(OPTIONS)),
        nnodes=nnodes,
        nproc=nproc,
        archive=archive_with(OVERLOOKS) if leaves else None,
        DDPJOB_CHECKPOINT_DIR=str(folder),
        DDPJOB_WARM_MODULES=f"ddptrain.{level}",
        ACCELERATE_USE_CPU="true",
        PYTHONPATH=str(ROOT / "images/trainer"),
    )
    for _ in range(2):
        operator.until_failed()
        operator.go_on()
        operator.until(lambda page: page["running"])
    assert [pod.wait() for pod in pods.started] == [0] * nnodes, pods.started[0].log

    module = f"ddptrain.{level}"
    (output,) = fork_ranks(
        nnodes * nproc, (module, *OPTIONS, str(whole)), ACCELERATE_USE_CPU="true"
    )
    log = "\n".join(pods.started[0].lines)
    resumed = re.findall(r"resuming from \S+/(\S+)", log)
    of_round_1 = f"step-000000{40 if leaves else 50}-attempt-0-round-1.pt"
    assert resumed == ["step-00000030-attempt-0.pt", of_round_1]
    assert_same_training(saved(folder, 92), saved(whole, 92))
    claim = json.loads((folder / "claim.json").read_text())
    assert (claim["job"], claim["attempt"], claim["round"]) == ("uid", 0, 2)
    if leaves:
        assert "step-00000050-attempt-0-round-1.pt\n" in log, "it went on with what it was at"
        told = r"belongs to round 2 of attempt 0 of 'uid' .*, and this is round 1 of attempt 0"
        assert re.search(told, log), log
    assert len(evaluations(output)) == 4
    assert evaluations(log) == evaluations(output)
    assert losses(log)[-1] == losses(output)[-1], "of the epoch that one round has seen whole"
    assert result(log) == result(output)


def evaluations(output: str) -> set[tuple[str, str]]:
    """Step and accuracy of each evaluation; one that two rounds have made was the same."""
    return set(re.findall(r"step (\d+)/92 .* test accuracy (\d\.\d{4})", output))


def result(output: str) -> tuple[str, ...]:
    """Correct of 360, steps and world size, of the last line."""
    (found,) = filter(None, map(RESULT.match, output.splitlines()))
    return found.groups()
