"""A training goes over rounds as if nothing had happened."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.agentpod import Pods
from tests.cluster.tiers import ROOT
from tests.trainer.rounds import start
from tests.trainer.training import (
    RESULT,
    StartRanks,
    accuracies,
    assert_same_training,
    losses,
    saved,
)

# Trains on the digits; in each of the first rounds a rank dies, after so many of its steps.
DEATHS = {0: 37, 1: 25}
OPTIONS = ("--max-steps=92", "--checkpoint-every=10", "--checkpoint-dir")
DIGITS = f"""
import os, signal, sys
from ddptrain import native

number, rank, world = (int(os.environ[name]) for name in ("DDPJOB_ROUND", "RANK", "WORLD_SIZE"))
victim = 0 if number else world - 1
left, train_step = iter(range({DEATHS}.get(number, 1000))), native.train_step

def dies(*arguments, **options):
    if rank == victim and next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(*arguments, **options)

native.train_step = dies
sys.exit(native.main([*{OPTIONS}, os.environ["DDPJOB_CHECKPOINT_DIR"]]))
"""


@pytest.mark.parametrize(("nnodes", "nproc"), [(2, 1), (1, 3)])
def test_a_training_over_three_rounds_equals_one_that_nothing_disturbed(
    pods: Pods, nnodes: int, nproc: int, tmp_path: Path, start_ranks: StartRanks
) -> None:
    """Weights, optimizer, random numbers and every evaluation, to the last bit."""
    whole, folder = tmp_path / "whole", tmp_path / "checkpoints"
    operator = start(
        pods,
        DIGITS,
        nnodes=nnodes,
        nproc=nproc,
        DDPJOB_CHECKPOINT_DIR=str(folder),
        PYTHONPATH=str(ROOT / "images/trainer"),
    )
    for _ in DEATHS:
        operator.until_failed()
        operator.go_on()
        operator.until(lambda page: page["running"])
    assert [pod.wait() for pod in pods.started] == [0] * nnodes, pods.started[0].log

    ranks = start_ranks(nnodes * nproc, "-m", "ddptrain.native", *OPTIONS, str(whole))
    outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), outputs

    log, output = pods.started[0].log, outputs[0]
    resumed = re.findall(r"resuming from \S+/(\S+)", log)
    assert resumed == ["step-00000030-attempt-0.pt", "step-00000050-attempt-0-round-1.pt"]
    assert_same_training(saved(folder, 92), saved(whole, 92))
    claim = json.loads((folder / "claim.json").read_text())
    assert (claim["job"], claim["attempt"], claim["round"]) == ("uid", 0, 2)
    assert len(accuracies(output)) == 5  # four epochs, and the last line
    assert accuracies(log) == accuracies(output)
    assert losses(log)[-1] == losses(output)[-1], "of the epoch that one round has seen whole"
    assert result(log) == result(output)


def result(output: str) -> tuple[str, ...]:
    """Correct of 360, steps and world size, of the last line."""
    (found,) = filter(None, map(RESULT.match, output.splitlines()))
    return found.groups()
