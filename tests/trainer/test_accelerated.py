"""Level 2 does what level 1 does, whoever launches it."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("accelerate")

from ddptrain.accelerated import main
from tests.trainer.conftest import Start
from tests.trainer.test_native import EPOCH_STEPS, RESULT, assert_same_training, drift, saved

NATIVE, ACCELERATED = "ddptrain.native", "ddptrain.accelerated"
CPU = {"ACCELERATE_USE_CPU": "true"}
SAME = ("--no-dropout", "--epochs=3", "--checkpoint-dir")
LAST = 3 * EPOCH_STEPS

Torchrun = Callable[..., str]
Fork = Callable[..., str]
Trained = tuple[Path, str]
"""The checkpoint folder, and what was printed."""


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"train loss (\d+\.\d{4})", output)]


def accuracies(output: str) -> list[str]:
    return re.findall(r"test accuracy (\d\.\d{4})", output)


@pytest.fixture(scope="module")
def native(fork_ranks: Fork, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("native")
    return folder, fork_ranks(NATIVE, 2, *SAME, str(folder))


@pytest.fixture(scope="module")
def accelerated(torchrun: Torchrun, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("accelerated")
    module = ("-m", ACCELERATED)
    return folder, torchrun(2, *module, *SAME, str(folder), DDPJOB_WORLD_SIZE="2", **CPU)


def test_the_levels_agree(native: Trained, accelerated: Trained) -> None:
    """The same samples in each batch, summed in another order: float32 differs in the last bits."""
    assert losses(accelerated[1]) == pytest.approx(losses(native[1]), abs=2e-4)
    assert len(losses(native[1])) == 3
    assert drift(saved(native[0], LAST), saved(accelerated[0], LAST)) < 1e-4
    assert accuracies(accelerated[1]) == accuracies(native[1])


def test_every_sample_counts_once(accelerated: Trained) -> None:
    match = RESULT.match(accelerated[1].strip().splitlines()[-1])
    assert match and (int(match[3]), int(match[4])) == (LAST, 2)
    assert f"{int(match[2]) / 360:.4f}" == match[1]


def test_parts_do_not_change_the_result(
    accelerated: Trained, fork_ranks: Fork, tmp_path: Path
) -> None:
    fork_ranks(ACCELERATED, 2, "--accumulation=3", *SAME, str(tmp_path), **CPU)
    assert drift(saved(tmp_path, LAST), saved(accelerated[0], LAST)) < 2e-6


def test_it_resumes_bit_by_bit_and_each_level_from_the_others_checkpoint(
    fork_ranks: Fork, tmp_path: Path
) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for steps, folder in ((30, stopped), (40, stopped), (40, whole)):
        options = (f"--max-steps={steps}", f"--checkpoint-dir={folder}")
        fork_ranks(ACCELERATED, 2, *options, **CPU)
    assert_same_training(saved(stopped, 40), saved(whole, 40))
    for module, start, end in ((NATIVE, 40, 50), (ACCELERATED, 50, 60)):
        options = (f"--max-steps={end}", f"--checkpoint-dir={whole}")
        output = fork_ranks(module, 2, *options, **CPU)
        assert f"step-000000{start}-attempt-0.pt" in output
        assert f"after {end} steps" in output


def test_under_accelerate_launch(start: Start, tmp_path: Path) -> None:
    process = start(
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"),
        *("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
        *("--main_process_port=0", "-m", ACCELERATED, "--epochs=1"),
        DDPJOB_WORLD_SIZE="2",
        HOME=str(tmp_path),
        **CPU,
    )
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert f"after {EPOCH_STEPS} steps, world size 2" in output


def test_from_a_notebook(start: Start) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = f"""
from accelerate import notebook_launcher
from ddptrain import accelerated
notebook_launcher(accelerated.main, (["--epochs=1"],), num_processes=2, use_port="{port}")
"""
    process = start("-c", source, DDPJOB_WORLD_SIZE="2", **CPU)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert "world size 2" in output.splitlines()[-1]


def test_a_batch_that_cannot_be_split_evenly_is_refused(alone: None, fork_ranks: Fork) -> None:
    with pytest.raises(AssertionError) as failed:
        fork_ranks(ACCELERATED, 2, "--batch-size=63", **CPU)
    told = "--batch-size is 63, but must be a multiple of the number of processes, 2"
    assert told in str(failed.value)


def test_alone_it_needs_no_launcher(alone: None, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--epochs=1"]) == 0
    assert RESULT.match(caplog.messages[-1])
