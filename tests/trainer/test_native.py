"""The whole trainer, in real processes over gloo. Runs are shared between tests: each costs."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddptrain.config import parse
from ddptrain.data import load
from ddptrain.dist import World
from ddptrain.model import BasicNet
from ddptrain.native import main, train, train_step
from ddptrain.preemption import StopVote
from ddptrain.report import AccuracyMissed, Report
from tests.trainer.training import (
    EPOCH_STEPS,
    RESULT,
    StartRanks,
    Torchrun,
    assert_same_training,
    drift,
    losses,
    saved,
)

NATIVE = ("-m", "ddptrain.native")
WORLDS = (1, 2, 3, 4, 7)  # ranks; with 3 and 7 all shares are uneven
WHOLE = ("--max-steps=40", "--checkpoint-every=30", "--checkpoint-dir")
PARITY = ("--no-dropout", "--max-steps=66", "--checkpoint-every=30", "--checkpoint-dir")

Forked = Callable[[int], "dict[str, Run]"]
"""What so many ranks have trained, by name."""


@dataclass(frozen=True)
class Run:
    folder: Path
    output: str

    def result(self) -> tuple[int, int, int]:
        """Correct of 360, steps and world size, of the last line."""
        match = RESULT.match(self.output.strip().splitlines()[-1])
        assert match, self.output
        return int(match[2]), int(match[3]), int(match[4])

    def progress(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / "progress.json").read_text())
        return report


# --- two ranks, default settings, from start to end ---------------------------------------------


@pytest.fixture(scope="module")
def full(torchrun: Torchrun, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("full")
    output = torchrun(
        2,
        *NATIVE,
        "--target-accuracy=0.97",
        DDPJOB_WORLD_SIZE="2",
        DDPJOB_CHECKPOINT_DIR=str(folder),
        DDPJOB_PROGRESS_FILE=str(folder / "progress.json"),
    )
    return Run(folder, output)


def test_two_ranks_reach_97_percent_with_the_defaults(full: Run) -> None:
    correct, steps, world_size = full.result()
    assert correct >= 0.97 * 360
    assert (steps, world_size) == (20 * EPOCH_STEPS, 2)


def test_the_main_rank_alone_prints_one_line_per_epoch(full: Run) -> None:
    epochs = re.findall(
        r"^epoch (\d+)/20 step (\d+)/460 train loss \d+\.\d{4} test accuracy [01]\.\d{4} "
        r"\d+ samples/s$",
        full.output,
        re.MULTILINE,
    )
    assert [(int(e), int(s)) for e, s in epochs] == [(i, i * EPOCH_STEPS) for i in range(1, 21)]
    assert full.output.count("data: digits, 1437 to train, 360 to test, sha256 83c5") == 1


def test_the_last_progress_report_is_the_result(full: Run) -> None:
    correct, steps, _ = full.result()
    report = full.progress()
    assert (report["step"], report["total_steps"], report["epoch"]) == (steps, steps, 20.0)
    assert report["metrics"]["test_accuracy"] == correct / 360
    assert 0 <= report["metrics"]["data_wait_percent"] < 100
    assert 0 < report["metrics"]["memory_percent"] < 100 < report["metrics"]["memory_bytes"]
    assert report["loss"] == pytest.approx(losses(full.output)[-1], abs=1e-4)
    assert report["samples_per_second"] > 0


def test_the_three_newest_checkpoints_stay(full: Run) -> None:
    assert sorted(path.name for path in full.folder.glob("step-*")) == [
        f"step-{step:08d}-attempt-0.pt" for step in (300, 400, 460)
    ]


def test_the_printed_accuracy_is_that_of_the_saved_model(full: Run) -> None:
    net = BasicNet()
    net.load_state_dict(saved(full.folder, 460)["model"])
    images, labels = load("digits", None, torch.device("cpu")).test.batch(torch.arange(360))
    correct = int((net.eval()(images).argmax(dim=1) == labels).sum())
    assert full.result()[0] == correct


def test_a_finished_training_that_starts_again_repeats_its_result(
    full: Run, alone: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["--checkpoint-dir", str(full.folder)]) == 0
    assert Run(full.folder, caplog.messages[-1]).result() == (full.result()[0], 460, 1)
    assert "step 460/460" not in caplog.text  # no epoch was trained


# --- preemption: SIGTERM to one of two ranks, then the same command again -----------------------


# From within, since 460 steps are soon made: whoever looks from outside may come too late.
STOPPED = """
import os, signal, sys
from ddptrain import native

steps, train_step = iter(range(460)), native.train_step

def asked_to_stop(*arguments, **options):
    if os.environ["RANK"] == "1" and next(steps) == 30:
        os.kill(os.getpid(), signal.SIGTERM)
    return train_step(*arguments, **options)

native.train_step = asked_to_stop
sys.exit(native.main())
"""


@pytest.mark.deep
def test_sigterm_to_one_rank_stops_both_and_they_go_on_bit_by_bit(
    full: Run, start_ranks: StartRanks, torchrun: Torchrun, tmp_path: Path
) -> None:
    folder = {"DDPJOB_CHECKPOINT_DIR": str(tmp_path)}
    ranks = start_ranks(2, "-c", STOPPED, main=folder)
    outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [75, 75]
    stopped = re.search(r"^stopped by SIGTERM after step (\d+)/460$", outputs[0], re.MULTILINE)
    assert stopped, outputs[0]
    step = int(stopped[1])
    state = saved(tmp_path, step)
    assert (state["step"], state["world_size"], len(state["rng"])) == (step, 2, 2)
    output = torchrun(2, *NATIVE, DDPJOB_ATTEMPT="1", **folder)
    assert f"resuming from {tmp_path}/step-{step:08d}-attempt-0.pt" in output
    assert Run(tmp_path, output).result() == full.result()
    assert_same_training(saved(tmp_path, 460), saved(full.folder, 460))


@pytest.mark.parametrize(("options", "code"), [([], 143), (["--checkpoint-dir"], 75)])
def test_the_exit_code_says_whether_a_checkpoint_was_saved(
    options: list[str], code: int, world: World, tmp_path: Path
) -> None:
    stop = StopVote()
    stop.listen()
    signal.raise_signal(signal.SIGTERM)
    config = parse("native", [*options, *[str(tmp_path)] * len(options)])
    with Report(config, world) as report:
        assert train(config, world, stop, report) == code
    steps = [path.name for path in tmp_path.glob("step-*")]
    # asked before step 1, voted after it, read after step 2
    assert steps == (["step-00000002-attempt-0.pt"] if code == 75 else [])


# --- any number of ranks, in any number of parts, one result --------------------------------------


@pytest.fixture(scope="module")
def forked(
    fork_ranks: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Forked:
    """Trains with so many ranks, once for all tests: whole and stopped, at once and in parts."""

    @cache
    def train(world: int) -> dict[str, Run]:
        folder = tmp_path_factory.mktemp(f"forked-{world}")
        runs = {
            "parity": [*PARITY, str(folder / "parity")],
            "parts": ["--accumulation=5", *PARITY, str(folder / "parts")],
            "whole": [*WHOLE, str(folder / "whole")],
            "stopped": ["--max-steps=30", "--checkpoint-dir", str(folder / "resumed")],
            "resumed": [*WHOLE, str(folder / "resumed")],
        }
        outputs = fork_ranks(world, *(("ddptrain.native", *options) for options in runs.values()))
        return {
            name: Run(folder / name, output) for name, output in zip(runs, outputs, strict=True)
        }

    return train


@pytest.mark.deep
@pytest.mark.parametrize("name", ["parity", "parts"])
@pytest.mark.parametrize("world", WORLDS)
def test_the_number_of_ranks_and_of_parts_does_not_change_the_result(
    forked: Forked, world: int, name: str
) -> None:
    run, one = forked(world)[name], forked(1)["parity"]
    assert f"world size {world}, " in run.output.strip().splitlines()[-1]
    for step in (30, 60, 66):
        assert drift(saved(run.folder, step), saved(one.folder, step)) < 2e-6
    assert drift(saved(run.folder, 30), saved(one.folder, 66)) > 1e-2  # it moves
    assert losses(run.output) == pytest.approx(losses(one.output), abs=2e-4)
    assert run.result()[0] == one.result()[0]


@pytest.mark.deep
@pytest.mark.parametrize("world", WORLDS)
def test_a_resumed_run_equals_one_that_never_stopped(forked: Forked, world: int) -> None:
    whole, resumed = forked(world)["whole"], forked(world)["resumed"]
    assert "step-00000030-attempt-0.pt" in resumed.output.splitlines()[2]
    assert_same_training(saved(resumed.folder, 40), saved(whole.folder, 40))


def test_the_ranks_add_up_their_gradients_once_a_step(world: World) -> None:
    digits = load("digits", None, torch.device("cpu"))
    net = BasicNet()
    model = DistributedDataParallel(net)
    sums = 0

    def count(
        _: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # documented, not in the stubs
    ) -> torch.futures.Future[torch.Tensor]:
        nonlocal sums
        sums += 1
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, count)
    optimizer = torch.optim.AdamW(net.parameters())
    batch = digits.train.batch(torch.arange(64))
    train_step(model, optimizer, batch, 64, world)
    assert sums == 1
    train_step(model, optimizer, batch, 64, world, accumulation=4)
    assert sums == 2


@pytest.mark.deep
def test_mixed_precision_costs_no_accuracy(
    full: Run, fork_ranks: Callable[..., list[str]], tmp_path: Path
) -> None:
    options = ("--bf16", "--checkpoint-dir", str(tmp_path))
    run = Run(tmp_path, *fork_ranks(2, ("ddptrain.native", *options)))
    assert run.result()[0] >= full.result()[0] - 0.003 * 360
    weights = saved(tmp_path, 460)["model"]
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert drift(saved(tmp_path, 460), saved(full.folder, 460)) > 1e-4  # it is another arithmetic


@pytest.mark.deep
def test_another_world_size_goes_on_from_a_checkpoint(
    forked: Forked, alone: None, tmp_path: Path
) -> None:
    three = forked(3)["parity"].folder
    shutil.copy(three / "step-00000030-attempt-0.pt", tmp_path)
    assert main([*PARITY, str(tmp_path)]) == 0
    resumed, whole = saved(tmp_path, 66), saved(three, 66)
    assert (resumed["world_size"], whole["world_size"]) == (1, 3)
    assert drift(resumed, whole) < 2e-6


@pytest.mark.deep
@pytest.mark.parametrize("world", WORLDS[1:])
def test_each_rank_has_dropout_of_its_own(forked: Forked, world: int) -> None:
    states = [rank["torch"] for rank in saved(forked(world)["whole"].folder, 40)["rng"]]
    assert len({state.numpy().tobytes() for state in states}) == world


# --- what must fail, and how ----------------------------------------------------------------------


def test_an_accuracy_below_the_target_is_an_error(alone: None) -> None:
    with pytest.raises(AccuracyMissed, match=r"test accuracy 0\.\d{4} is below 0\.97"):
        main(["--max-steps", "1", "--target-accuracy", "0.97"])


@pytest.mark.parametrize(
    "option",
    [
        *("--epochs=0", "--batch-size=-1", "--keep=x", "--speed=9"),
        *("--lr=nan", "--lr=-1", "--lr=fast", "--seed=-1", "--seed=4294967296"),
        *("--target-accuracy=nan", "--target-accuracy=2"),
        *("--timeout-seconds=0", "--timeout-seconds=inf"),
    ],
)
def test_a_wrong_option_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse("native", [option])
    name, _, value = option.partition("=")
    said = capsys.readouterr().err
    assert name in said and (f"got {value!r}" in said or name == "--speed")
