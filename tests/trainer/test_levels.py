"""What holds for the three levels alike, each in this process."""

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import torch

from ddptrain.checkpoint import CheckpointFolder
from ddptrain.config import parse
from ddptrain.dist import World
from ddptrain.model import network
from ddptrain.preemption import StopVote
from ddptrain.report import Diverged, Report

LEVELS = ("ddptrain.native", "ddptrain.accelerated", "ddptrain.hf")
SECONDS = 2.0  # of each evaluation and checkpoint: far more than what else is done around steps


class Everything:
    """Takes every report."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []

    def due(self) -> bool:
        return True

    def write(self, **report: Any) -> None:
        self.taken.append(report | {"metrics": dict(report["metrics"])})

    def close(self) -> None:
        pass


def train(level: str, world: World, *options: str) -> list[dict[str, Any]]:
    """Train in here; all reports."""
    sink = Everything()
    config = parse(level, options)
    with Report(config, world) as report:
        report._sinks.append(sink)
        assert importlib.import_module(level).train(config, world, StopVote(), report) == 0
    return sink.taken


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that a model has been given for evaluation."""
    seen: list[int] = []

    def count(net: torch.nn.Module, inputs: Any) -> None:
        if not net.training:
            seen.append(len(inputs[0]))

    replace_networks(monkeypatch, lambda net: net.register_forward_pre_hook(count))
    return seen


def replace_networks(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.nn.Module], object]
) -> None:
    def changed(*arguments: Any, **options: Any) -> torch.nn.Module:
        net = network(*arguments, **options)
        change(net)
        return net

    for level in LEVELS:
        monkeypatch.setattr(f"{level}.network", changed)


@pytest.mark.deep
@pytest.mark.parametrize("level", LEVELS)
def test_a_training_is_evaluated_once_at_its_end(
    level: str, world: World, evaluations: list[int], tmp_path: Path
) -> None:
    options = ("--epochs=1", f"--checkpoint-dir={tmp_path}")
    train(level, world, *options)
    assert sum(evaluations) == 360
    (last,) = train(level, world, *options)  # nothing is left to train
    assert sum(evaluations) == 720
    assert last["metrics"]["test_accuracy"] > 0.3


@pytest.mark.deep
@pytest.mark.parametrize("level", LEVELS)
def test_a_training_that_comes_to_nothing_fails_without_a_checkpoint_folder_too(
    level: str, world: World
) -> None:
    with pytest.raises(Diverged, match=r"by step 23 the loss or a weight is NaN or infinite, loss"):
        train(level, world, "--epochs=5", "--lr=1e30")


@pytest.mark.deep
def test_the_loss_is_the_mean_of_the_epoch_so_far_in_all_levels(world: World) -> None:
    losses = {}
    for level in LEVELS:
        reports = train(level, world, "--no-dropout", "--epochs=2", "--batch-size=64")
        losses[level] = [report["loss"] for report in reports]
        # A report for each step, one more at each epoch's end and the last one.
        assert [report["step"] for report in reports] == [
            *(*range(1, 24), 23, *range(24, 47), 46, 46)
        ]
    native = losses["ddptrain.native"]
    for level in LEVELS:
        assert losses[level] == pytest.approx(native, abs=2e-4)
    assert native[22] == pytest.approx(native[23], abs=1e-6)  # with one rank no step is taken
    assert native[23] > 1.5 * native[24]  # a new epoch begins with its own first batch
    # What the 23rd batch of 29 samples can have moved, and no more.
    assert abs(native[22] - native[21]) < 29 / 1437 * native[21]


@pytest.mark.deep
@pytest.mark.parametrize("level", LEVELS)
def test_neither_evaluations_nor_checkpoints_count_in_the_speed(
    level: str, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slept = 0.0

    def sleep() -> None:
        nonlocal slept
        slept += SECONDS
        time.sleep(SECONDS)

    def evaluate_slowly(net: torch.nn.Module, _inputs: Any) -> None:
        if not net.training:
            sleep()

    write = CheckpointFolder.write

    def write_slowly(*arguments: Any) -> Path:
        sleep()
        return write(*arguments)

    replace_networks(monkeypatch, lambda net: net.register_forward_pre_hook(evaluate_slowly))
    monkeypatch.setattr(CheckpointFolder, "write", write_slowly)
    began = time.perf_counter()
    options = (f"--checkpoint-dir={tmp_path}", "--checkpoint-every=10", "--max-steps=23")
    reports = train(level, world, *options)
    took = time.perf_counter() - began
    counted = 1437 / reports[-1]["samples_per_second"]
    assert slept >= 4 * SECONDS  # two checkpoints within the epoch, one after it
    assert counted < took - slept
    assert 0 <= reports[-1]["metrics"]["data_wait_percent"] <= 100
    json.dumps(reports)
