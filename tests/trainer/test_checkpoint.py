import logging
import math
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddptrain import checkpoint, rng
from ddptrain.checkpoint import CheckpointError, CheckpointFolder
from ddptrain.dist import World


def folder(path: Path, *, attempt: int = 0, job: str = "uid", keep: int = 3) -> CheckpointFolder:
    claimed = CheckpointFolder(path / "new/run", job, attempt, keep)
    claimed.claim()
    return claimed


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.arange(1000.0) + step}


def newest(folder: CheckpointFolder) -> int | None:
    content = folder.read_newest()
    if content is None:
        return None
    copy = folder.path / "copy"
    copy.write_bytes(content)
    step: int = torch.load(copy, weights_only=True)["step"]
    return step


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert newest(folder(tmp_path)) is None


def test_the_newest_is_read_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    run = folder(tmp_path, keep=2)
    for step in (9, 10, 100):
        run.write(step, state(step))
    assert newest(run) == 100
    assert sorted(path.name for path in run.path.glob("step-*")) == [
        "step-00000010-attempt-0.pt",
        "step-00000100-attempt-0.pt",
    ]


@pytest.mark.parametrize("damage", ["truncated", "empty", "one bit"])
def test_a_damaged_newest_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    run = folder(tmp_path, keep=1)
    run.write(20, state(20)).rename(run.path / "spare")
    path = run.write(30, state(30))
    (run.path / "spare").rename(run.path / "step-00000020-attempt-0.pt")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[content.index(np.float32(77 + 30).tobytes())] ^= 1  # inside the weights
    path.write_bytes(content)

    with caplog.at_level(logging.WARNING):
        assert newest(run) == 20
    assert "step-00000030-attempt-0.pt is damaged" in caplog.text
    run.write(25, state(25))  # what was damaged must not push out what is good
    assert newest(run) == 25


def test_only_damaged_checkpoints_are_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.write(10, state(10)).write_bytes(b"PK")
    for _ in range(2):  # the next start must not take the folder for an empty one
        with pytest.raises(CheckpointError, match=r"every checkpoint is damaged \(1 files\)"):
            folder(tmp_path).read_newest()


def test_an_earlier_attempt_can_neither_claim_nor_write(tmp_path: Path) -> None:
    old = folder(tmp_path, attempt=1)
    old.write(10, state(10))
    new = folder(tmp_path, attempt=2)
    new.write(20, state(20))
    with pytest.raises(
        CheckpointError, match="belongs to attempt 2 of 'uid', no longer to attempt 1"
    ):
        old.write(30, state(30))
    with pytest.raises(
        CheckpointError, match="belongs to attempt 2 of 'uid', no longer to attempt 1"
    ):
        folder(tmp_path, attempt=1)
    assert newest(new) == 20


def test_the_same_attempt_may_claim_again(tmp_path: Path) -> None:
    folder(tmp_path, attempt=2)
    folder(tmp_path, attempt=2).write(1, state(1))


def test_another_job_takes_the_folder_over_whatever_its_attempt(tmp_path: Path) -> None:
    before = folder(tmp_path, attempt=5, job="first")
    before.write(10, state(10))
    after = folder(tmp_path, attempt=0, job="second")
    assert newest(after) == 10
    after.write(20, state(20))
    with pytest.raises(CheckpointError, match="belongs to attempt 0 of 'second'"):
        before.write(30, state(30))


def test_of_two_runs_without_a_job_the_later_one_has_the_folder(tmp_path: Path) -> None:
    before, after = (folder(tmp_path, job="") for _ in range(2))
    after.write(20, state(20))
    with pytest.raises(CheckpointError, match="belongs to attempt 0 of a run without a job, no"):
        before.write(30, state(30))
    assert newest(after) == 20


@pytest.mark.parametrize("claim", ["", "[]", "{}", '{"job": 1, "attempt": 0}', "\0"])
def test_a_claim_that_is_none_is_told_by_name(tmp_path: Path, claim: str) -> None:
    run = folder(tmp_path)
    (run.path / "claim.json").write_text(claim)
    with pytest.raises(CheckpointError, match=r"claim\.json (is no claim|cannot be read)"):
        folder(tmp_path)


def test_a_file_in_the_folders_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("")
    with pytest.raises(CheckpointError, match="cannot be a checkpoint folder"):
        folder(tmp_path)


def test_no_single_bit_of_a_file_can_block_resuming(tmp_path: Path) -> None:
    run = folder(tmp_path)
    path = run.write(1, {"step": 1})
    content = path.read_bytes()
    directory = content.rindex(b"PK\x01\x02")  # the last entry of the archive's list
    for place in range(directory, directory + 46):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            checkpoint._damage(bytes(flipped))  # whatever it finds, it does not raise


def test_what_is_written_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, done = folder(tmp_path), []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        done.append("sync")
        sync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        done.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    run.write(1, state(1))
    assert done == ["sync", "rename", "sync"], "the file, its name, the folder"


def trained(lr: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_resumed_run_has_its_own_learning_rate(tmp_path: Path, world: World) -> None:
    run = folder(tmp_path)
    model, optimizer = trained(1e-3)
    config = {"seed": 1}
    checkpoint.save(run, world, step=1, model=model, optimizer=optimizer, config=config)
    again, lower = trained(1e-5)
    assert checkpoint.load(run, world, model=again, optimizer=lower, config=config) == 1
    assert lower.param_groups[0]["lr"] == 1e-5
    moments = [list(o.state.values())[0]["exp_avg"] for o in (optimizer, lower)]
    assert torch.equal(*moments)


def test_weights_that_are_no_numbers_replace_no_checkpoint(tmp_path: Path, world: World) -> None:
    run = folder(tmp_path, keep=1)
    model, optimizer = trained(1e-3)
    checkpoint.save(run, world, step=1, model=model, optimizer=optimizer, config={})
    torch.nn.init.constant_(next(model.parameters()), math.nan)
    with pytest.raises(CheckpointError, match="after step 2 weights are NaN or infinite"):
        checkpoint.save(run, world, step=2, model=model, optimizer=optimizer, config={})
    assert [path.name[:13] for path in run.path.glob("step-*")] == ["step-00000001"]


WRITE_FOR_EVER = """
import sys, time, torch
from pathlib import Path
from ddptrain.checkpoint import CheckpointFolder
run = CheckpointFolder(Path(sys.argv[1]), "uid", 0, keep=1000)
run.claim()
for step in range(1, 1000):
    run.write(step, {"step": step, "weights": torch.zeros(100_000) + step})
time.sleep(1000)
"""


def test_whoever_looks_sees_complete_checkpoints_even_if_the_writer_is_killed(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = folder(tmp_path)
    writer = start("-c", WRITE_FOR_EVER, str(run.path))
    looked = 0
    while looked < 100:
        paths = sorted(run.path.glob("step-*.pt"))
        assert writer.poll() is None, writer.communicate()[0]
        if paths:
            looked += 1
            weights = torch.load(paths[-1], weights_only=True)["weights"]
            assert torch.equal(weights, torch.zeros(100_000) + int(paths[-1].name[5:13]))
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait(timeout=30)
    assert newest(run) == len(list(run.path.glob("step-*.pt")))
    assert not list(run.path.glob("*.damaged"))
    run.claim()
    assert not list(run.path.glob("*.tmp"))


def test_a_failed_write_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.write(10, state(10))
    with pytest.raises(Exception, match="pickle"):
        run.write(20, {"step": 20, "odd": lambda: None})
    assert newest(run) == 10


def test_a_full_disk_costs_no_checkpoint_and_is_told(tmp_path: Path) -> None:
    """/dev/full answers every write as a full disk does."""
    run = folder(tmp_path)
    run.write(10, state(10))
    (run.path / "step-00000020-attempt-0.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"step-00000020\S* cannot be written: .*No space"):
        run.write(20, state(20))
    assert newest(run) == 10
    assert not list(run.path.glob("*.tmp"))
    run.write(30, state(30))  # somebody has made room
    assert newest(run) == 30


def make(seed: int) -> tuple[torch.nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(model(torch.ones(1, 3)).sum())
    optimizer.step()
    return model, optimizer


def test_all_that_was_saved_is_restored(tmp_path: Path, world: World) -> None:
    run, config = folder(tmp_path), {"seed": 1, "batch_size": 64}
    model, optimizer = make(1)
    checkpoint.save(run, world, step=12, model=model, optimizer=optimizer, config=config)
    draws = random.random(), float(np.random.random()), float(torch.rand(()))

    other, other_optimizer = make(2)
    step = checkpoint.load(
        run, world, model=other, optimizer=other_optimizer, config={"seed": 1, "batch_size": 64}
    )
    assert step == 12
    assert torch.equal(other.weight, model.weight)
    assert str(other_optimizer.state_dict()) == str(optimizer.state_dict())
    assert draws == (random.random(), float(np.random.random()), float(torch.rand(())))


def test_without_a_checkpoint_training_starts_at_step_0(tmp_path: Path, world: World) -> None:
    model, optimizer = make(1)
    run = folder(tmp_path)
    assert checkpoint.load(run, world, model=model, optimizer=optimizer, config={}) == 0


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path, world: World) -> None:
    model, optimizer = make(1)
    run = folder(tmp_path)
    checkpoint.save(run, world, step=1, model=model, optimizer=optimizer, config={"batch_size": 64})
    with pytest.raises(CheckpointError, match="made with batch_size=64, this run has 128"):
        checkpoint.load(run, world, model=model, optimizer=optimizer, config={"batch_size": 128})


def test_seeds_that_differ_in_one_number_draw_differently() -> None:
    draws = set()
    for key in [(1, 0, 0), (1, 0, 1), (1, 5, 0), (2, 0, 0)]:
        rng.seed_all(*key)
        draws.add((random.random(), float(np.random.random()), float(torch.rand(()))))
    assert len(draws) == 4
    rng.seed_all(1, 0, 0)
    assert (random.random(), float(np.random.random()), float(torch.rand(()))) in draws
