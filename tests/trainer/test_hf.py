"""Level 3 does what the others do, although the loop is another's."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch

from tests.cluster.tiers import ROOT
from tests.trainer.training import (
    EPOCH_STEPS,
    StartRanks,
    Trained,
    accuracies,
    assert_same_training,
    drift,
    losses,
    run_of,
    saved,
)

pytestmark = pytest.mark.deep(turn=2)  # together, as they share what is dear

NATIVE, ACCELERATED, HF = "ddptrain.native", "ddptrain.accelerated", "ddptrain.hf"
SAME = ("--no-dropout", "--epochs=3", "--checkpoint-dir")
LAST = 3 * EPOCH_STEPS


@pytest.fixture(scope="module")
def forked(
    fork_ranks: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Trained]:
    """What two ranks do in a row; the folders of `stopped` and `whole` are used more than once."""
    folder = tmp_path_factory.mktemp("hf")
    logs = f"--log-dir={folder / 'logs'}"
    runs = {
        "native": (NATIVE, *SAME, str(folder / "native")),
        "accelerated": (ACCELERATED, *SAME, str(folder / "accelerated")),
        "hf": (HF, logs, *SAME, str(folder / "hf")),
        "parts": (HF, "--accumulation=4", *SAME, str(folder / "parts")),
        "bf16": (HF, "--bf16", *SAME, str(folder / "bf16")),
        "stopped": run_of(HF, 30, folder / "stopped"),
        "resumed": run_of(HF, 50, folder / "stopped"),
        "whole": run_of(HF, 50, folder / "whole"),
        "by native": run_of(NATIVE, 55, folder / "whole"),
        "back again": run_of(HF, 60, folder / "whole"),
        "nothing left": run_of(HF, 10, folder / "whole"),
    }
    outputs = fork_ranks(2, *runs.values(), ACCELERATE_USE_CPU="true")
    return {name: (folder / name, output) for name, output in zip(runs, outputs, strict=True)}


def test_the_three_levels_agree(forked: dict[str, Trained]) -> None:
    """The same samples in each batch, summed in another order: float32 differs in the last bits."""
    folder, output = forked["native"]
    assert len(losses(output)) == 3
    for level in ("accelerated", "hf"):
        other, printed = forked[level]
        assert losses(printed) == pytest.approx(losses(output), abs=2e-4)
        assert drift(saved(folder, LAST), saved(other, LAST)) < 1e-4
        assert accuracies(printed) == accuracies(output)


def test_parts_do_not_change_the_result(forked: dict[str, Trained]) -> None:
    """The parts of a batch are other samples here than in one piece: as far off as the levels."""
    assert drift(saved(forked["parts"][0], LAST), saved(forked["hf"][0], LAST)) < 1e-4


def test_bf16_is_as_good(forked: dict[str, Trained]) -> None:
    (*_, whole), (*_, half) = (map(float, accuracies(forked[n][1])) for n in ("hf", "bf16"))
    assert abs(whole - half) < 0.02  # 360 samples, three epochs: seven of them
    assert drift(saved(forked["bf16"][0], LAST), saved(forked["hf"][0], LAST)) > 1e-4


def test_it_resumes_bit_by_bit(forked: dict[str, Trained]) -> None:
    """From a step within an epoch, and over the end of one."""
    assert "step-00000030-attempt-0.pt" in forked["resumed"][1]
    stopped, whole = forked["stopped"][0], forked["whole"][0]
    assert_same_training(saved(stopped, 50), saved(whole, 50))


def test_each_rank_has_a_dropout_of_its_own(forked: dict[str, Trained]) -> None:
    """The Trainer seeds all of them alike."""
    one, other = saved(forked["whole"][0], 50)["rng"]
    assert not torch.equal(one["torch"], other["torch"])


def test_each_level_goes_on_from_the_others_checkpoint(forked: dict[str, Trained]) -> None:
    for name, start, end in (("by native", 50, 55), ("back again", 55, 60)):
        output = forked[name][1]
        assert f"step-000000{start}-attempt-0.pt" in output and f"after {end} steps" in output


def test_a_finished_training_is_only_evaluated(forked: dict[str, Trained]) -> None:
    output = forked["nothing left"][1]
    assert "epoch" not in output and "after 60 steps" in output
    assert accuracies(output)[-1] == accuracies(forked["back again"][1])[-1]


def test_sigterm_to_one_rank_stops_both(start_ranks: StartRanks, tmp_path: Path) -> None:
    options = ("-m", HF, "--epochs=2000", f"--checkpoint-dir={tmp_path}", "--checkpoint-every=5")
    ranks = start_ranks(2, *options)
    while not list(tmp_path.glob("step-*.pt")) and all(rank.poll() is None for rank in ranks):
        time.sleep(0.1)
    ranks[1].send_signal(signal.SIGTERM)
    outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [75, 75], outputs
    assert "stopped by SIGTERM after step" in outputs[0]


def test_the_script_to_copy_trains_and_a_restart_goes_on(
    torchrun: Callable[..., str], tmp_path: Path
) -> None:
    script = str(ROOT / "examples" / "scripts" / "hf_trainer.py")
    folder = {"DDPJOB_CHECKPOINT_DIR": str(tmp_path)}
    output = torchrun(2, script, **folder)
    (accuracy,) = re.findall(r"test accuracy (\d\.\d{4})", output)
    assert float(accuracy) > 0.85
    steps = {path.name for path in tmp_path.iterdir()}
    again = torchrun(2, script, **folder)
    assert f"test accuracy {accuracy}" in again
    assert {path.name for path in tmp_path.iterdir()} == steps, "there was nothing left to train"
