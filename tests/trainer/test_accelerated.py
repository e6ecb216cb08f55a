"""Level 2 does what level 1 does, whoever launches it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("accelerate")

from tests.trainer.conftest import Start, master_port
from tests.trainer.training import EPOCH_STEPS, Trained, assert_same_training, drift, run_of, saved

pytestmark = pytest.mark.deep(turn=0)  # together, as they share what is dear

NATIVE, ACCELERATED = "ddptrain.native", "ddptrain.accelerated"
CPU = {"ACCELERATE_USE_CPU": "true"}
SAME = ("--no-dropout", "--epochs=3", "--checkpoint-dir")
LAST = 3 * EPOCH_STEPS

Torchrun = Callable[..., str]


@pytest.fixture(scope="module")
def forked(
    fork_ranks: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Trained]:
    """What two ranks do in a row; two folders are used more than once."""
    folder = tmp_path_factory.mktemp("forked")
    runs = {
        "in one": (ACCELERATED, *SAME, str(folder / "in one")),
        "parts": (ACCELERATED, "--accumulation=3", *SAME, str(folder / "parts")),
        "whole": run_of(ACCELERATED, 70, folder / "whole"),
        "stopped": run_of(ACCELERATED, 30, folder / "stopped"),
        "to an epoch's end": run_of(ACCELERATED, 46, folder / "stopped"),
        "on through the next": run_of(ACCELERATED, 70, folder / "stopped"),
        "by native": run_of(NATIVE, 80, folder / "whole"),
        "back again": run_of(ACCELERATED, 90, folder / "whole"),
    }
    outputs = fork_ranks(2, *runs.values(), **CPU)
    return {name: (folder / name, output) for name, output in zip(runs, outputs, strict=True)}


def test_parts_do_not_change_the_result(forked: dict[str, Trained]) -> None:
    assert drift(saved(forked["parts"][0], LAST), saved(forked["in one"][0], LAST)) < 2e-6


def test_it_resumes_bit_by_bit(forked: dict[str, Trained]) -> None:
    """In mid-epoch, then at an epoch's end: the next ones have orders of their own."""
    assert "step-00000030-attempt-0.pt" in forked["to an epoch's end"][1]
    stopped, whole = forked["stopped"][0], forked["whole"][0]
    assert_same_training(saved(stopped, 70), saved(whole, 70))


def test_each_level_goes_on_from_the_others_checkpoint(forked: dict[str, Trained]) -> None:
    for name, start, end in (("by native", 70, 80), ("back again", 80, 90)):
        output = forked[name][1]
        assert f"step-000000{start}-attempt-0.pt" in output and f"after {end} steps" in output


def test_under_accelerate_launch(start: Start, tmp_path: Path) -> None:
    process = start(
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"),
        *("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
        *("--main_process_port=0", "-m", ACCELERATED, "--epochs=1"),
        DDPJOB_WORLD_SIZE="2",
        HOME=str(tmp_path),
        **CPU,
    )
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert f"after {EPOCH_STEPS} steps, world size 2" in output


def test_from_a_notebook(start: Start) -> None:
    source = f"""
from accelerate import notebook_launcher
from ddptrain import accelerated
notebook_launcher(accelerated.main, (["--epochs=1"],), num_processes=2, use_port="{master_port()}")
"""
    process = start("-c", source, DDPJOB_WORLD_SIZE="2")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert "world size 2" in output.splitlines()[-1]


def test_the_processes_are_joined_without_accelerates_variable_too(torchrun: Torchrun) -> None:
    """On CPUs a script that leaves it to Accelerate has each of its processes train alone."""
    output = torchrun(2, "-m", ACCELERATED, "--epochs=1")
    assert f"after {EPOCH_STEPS} steps, world size 2" in output
    # In one write, since the other process prints too.
    lonely = (
        "import os; from accelerate import Accelerator; "
        "os.write(1, b'%d\\n' % Accelerator(cpu=False).num_processes)"
    )
    alone = torchrun(2, "--no-python", sys.executable, "-c", lonely, CUDA_VISIBLE_DEVICES="")
    assert alone.split() == ["1", "1"]


def test_a_batch_that_cannot_be_split_evenly_is_refused(
    fork_ranks: Callable[..., list[str]],
) -> None:
    with pytest.raises(AssertionError) as failed:
        fork_ranks(2, (ACCELERATED, "--batch-size=63"), **CPU)
    told = "--batch-size is 63, but must be a multiple of the number of processes, 2"
    assert told in str(failed.value)
