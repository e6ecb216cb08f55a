import itertools
import logging
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from ddptrain import checkpoint, rng
from ddptrain.checkpoint import CheckpointFolder
from ddptrain.checkpoint_file import CheckpointError, Damaged, read
from ddptrain.dist import World


def folder(
    path: Path, *, attempt: int = 0, number: int = 0, job: str = "uid", keep: int = 3
) -> CheckpointFolder:
    claimed = CheckpointFolder(path / "new/run", job, attempt, keep, round=number)
    claimed.claim()
    return claimed


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.arange(1000.0) + step}


def newest(folder: CheckpointFolder) -> int | None:
    found = folder.read_newest()
    return None if found is None else int(found["step"])


def make(seed: int, lr: float = 1e-3) -> tuple[torch.nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    torch.autograd.backward(model(torch.ones(1, 3)).sum())
    optimizer.step()
    return model, optimizer


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


LIVES = [(0, 0), (0, 1), (0, 2), (0, 10), (1, 0), (1, 3), (2, 0)]  # attempt, round: in this order


@pytest.mark.parametrize(("before", "after"), list(itertools.pairwise(LIVES)))
def test_an_earlier_round_can_neither_claim_nor_write(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Attempts and rounds are ordered as pairs."""
    old = folder(tmp_path, attempt=before[0], number=before[1])
    kept = old.write(10, state(10))
    new = folder(tmp_path, attempt=after[0], number=after[1])
    same = new.write(10, state(10))
    contents = {path: path.read_bytes() for path in (kept, same)}
    assert len(contents) == 2
    told = f"belongs to {named(*after)} .*, and this is {named(*before)} "
    for step in (10, 20):
        with pytest.raises(CheckpointError, match=told):
            old.write(step, state(step))
    with pytest.raises(CheckpointError, match=told):
        folder(tmp_path, attempt=before[0], number=before[1])
    assert {path: path.read_bytes() for path in new.path.glob("step-*")} == contents
    new.write(30, state(30))  # the claim has stayed its own
    assert newest(new) == 30


def named(attempt: int, number: int) -> str:
    return f"round {number} of attempt {attempt} of 'uid'" if number else f"attempt {attempt} of"


def test_of_one_step_the_checkpoint_of_the_latest_round_is_read(tmp_path: Path) -> None:
    for attempt, number in LIVES:
        writer = folder(tmp_path, attempt=attempt, number=number, keep=100)
        writer.write(10, {"step": 10, "life": [attempt, number]})
        found = writer.read_newest()
        assert found is not None and found["life"] == [attempt, number]
    assert len(list(writer.path.glob("step-*"))) == len(LIVES)


@pytest.mark.parametrize(
    ("place", "told", "published"),
    [
        ("checkpoint.replace", "belongs to round 1 of attempt 0 of 'uid'", [10, 20]),
        ("checkpoint_file.os.fsync", "step-00000020-attempt-0.pt cannot be written", [10]),
    ],
    ids=["before it writes", "before the file gets its name"],
)
def test_a_survivor_of_an_earlier_round_publishes_nothing_over_a_later_one(
    place: str,
    told: str,
    published: list[int],
    tmp_path: Path,
    start: Callable[..., "subprocess.Popen[str]"],
) -> None:
    """It is stopped where it has seen that the folder is its own, and goes on when it is not."""
    path = tmp_path / "new/run"
    survivor = start("-c", STOP_ITSELF, str(path), place)
    deadline = time.monotonic() + 240
    while psutil.Process(survivor.pid).status() != psutil.STATUS_STOPPED:
        assert survivor.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    new = folder(tmp_path, number=1)
    assert newest(new) == 10
    written = new.write(20, state(-1))
    content = written.read_bytes()
    survivor.send_signal(signal.SIGCONT)
    output, _ = survivor.communicate(timeout=280)
    assert survivor.returncode == 1 and told in output.splitlines()[-1], output
    assert written.read_bytes() == content
    of_others = sorted(int(path.name[5:13]) for path in path.glob("step-*-attempt-0.pt"))
    assert of_others == published, "no more than what it was at"
    found = new.read_newest()
    assert found is not None and torch.equal(found["weights"], state(-1)["weights"])
    new.write(30, state(30))  # the claim has stayed its own


STOP_ITSELF = """
import importlib, os, signal, sys
from pathlib import Path
from ddptrain.checkpoint import CheckpointFolder
run = CheckpointFolder(Path(sys.argv[1]), "uid", 0, keep=3)
run.claim()
run.write(10, {"step": 10})
*place, name = sys.argv[2].split(".")
module = importlib.import_module("ddptrain." + place[0])
for part in place[1:]:
    module = getattr(module, part)
before, stops = getattr(module, name), [signal.SIGSTOP]
def stopped(*arguments):
    for number in stops:
        stops.clear()
        os.kill(os.getpid(), number)
    return before(*arguments)
setattr(module, name, stopped)
for step in (20, 30, 40):
    run.write(step, {"step": step})
"""


def test_another_job_takes_the_folder_over_whatever_its_attempt(tmp_path: Path) -> None:
    before = folder(tmp_path, attempt=5, job="first")
    before.write(10, state(10))
    after = folder(tmp_path, attempt=0, job="second")
    assert newest(after) == 10
    after.write(20, state(20))
    with pytest.raises(CheckpointError, match="belongs to attempt 0 of 'second'"):
        before.write(30, state(30))


def test_of_two_runs_that_share_a_folder_each_is_told_apart(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Same job, same attempt: what differs is the process."""
    mine = folder(tmp_path, job="")
    other = start("-c", WRITE_ONCE, str(mine.path))
    assert other.wait(timeout=280) == 0
    with pytest.raises(CheckpointError) as told:
        mine.write(30, state(30))
    host = re.escape(socket.gethostname())
    assert re.search(
        rf"belongs to attempt 0 of a run without a job \(process {other.pid} on {host}, .*\), "
        rf"and this is attempt 0 of a run without a job \(process {os.getpid()} on {host}, ",
        str(told.value),
    )


@pytest.mark.parametrize(
    "claim",
    [
        *("", "[]", "{}", '{"job": 1, "attempt": 0}', "\0", "[" * 4000),
        '{"job": "uid", "attempt": 0, "round": "1"}',
        '{"job": "uid", "attempt": 0, "token": "' + "x" * 1_000_000 + '"}',
    ],
)
def test_a_claim_that_is_none_is_told_by_name(tmp_path: Path, claim: str) -> None:
    run = folder(tmp_path)
    (run.path / "claim.json").write_text(claim)
    with pytest.raises(CheckpointError, match=r"claim\.json (is no claim|cannot be read)") as told:
        folder(tmp_path)
    assert len(str(told.value)) < 1000


def test_no_single_bit_of_a_file_can_block_resuming(tmp_path: Path) -> None:
    run = folder(tmp_path)
    path = run.write(1, {"step": 1})
    content = path.read_bytes()
    directory = content.rindex(b"PK\x01\x02")  # the last entry of the archive's list
    for place in range(directory, directory + 46):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            with suppress(Damaged):  # whatever it finds, it raises nothing else
                read(path)


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


def test_a_resumed_run_has_its_own_learning_rate(tmp_path: Path, world: World) -> None:
    run = folder(tmp_path)
    model, optimizer = make(1)
    config = {"seed": 1}
    checkpoint.save(run, world, step=1, model=model, optimizer=optimizer, config=config)
    again, lower = make(1, lr=1e-5)
    assert checkpoint.load(run, world, model=again, optimizer=lower, config=config) == 1
    assert lower.param_groups[0]["lr"] == 1e-5
    moments = [list(o.state.values())[0]["exp_avg"] for o in (optimizer, lower)]
    assert torch.equal(*moments)


def test_weights_that_are_no_numbers_replace_no_checkpoint(tmp_path: Path, world: World) -> None:
    run = folder(tmp_path, keep=1)
    model, optimizer = make(1)
    checkpoint.save(run, world, step=1, model=model, optimizer=optimizer, config={})
    torch.nn.init.constant_(next(model.parameters()), math.nan)
    with pytest.raises(CheckpointError, match="after step 2 weights are NaN or infinite"):
        checkpoint.save(run, world, step=2, model=model, optimizer=optimizer, config={})
    assert [path.name[:13] for path in run.path.glob("step-*")] == ["step-00000001"]


WRITE_ONCE = """
import sys, torch
from pathlib import Path
from ddptrain.checkpoint import CheckpointFolder
run = CheckpointFolder(Path(sys.argv[1]), "", 0, keep=3)
run.claim()
run.write(20, {"step": 20})
"""
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
    writer.wait(timeout=200)
    assert newest(run) == len(list(run.path.glob("step-*.pt")))
    assert not list(run.path.glob("*.damaged"))
    run.claim()
    assert not list(run.path.glob("*.tmp"))


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


# A rank of its own reads a checkpoint of the size that it is given; the model is there already.
LOAD = """
import sys, torch
from datetime import timedelta
from pathlib import Path
from ddptrain import checkpoint
from ddptrain.checkpoint import CheckpointFolder
from ddptrain.dist import process_group

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

with process_group(timeout=timedelta(seconds=60)) as world:
    net = torch.nn.Linear(int(sys.argv[2]), 1000)
    optimizer = torch.optim.AdamW(net.parameters())
    folder = None
    if world.is_main:
        folder = CheckpointFolder(Path(sys.argv[1]), "", 0, keep=1)
        folder.claim()
    state = {"model": net, "optimizer": optimizer, "config": {"seed": 1}}
    if not list(Path(sys.argv[1]).glob("step-*")):
        torch.autograd.backward(net(torch.ones(1, int(sys.argv[2]))).sum())
        optimizer.step()
        checkpoint.save(folder, world, step=1, **state)
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = status("VmRSS")
        assert checkpoint.load(folder, world, **state) == 1
        print(world.rank, status("VmHWM") - before)
"""


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the peak")
def test_loading_takes_the_memory_of_one_copy_on_each_rank(
    tmp_path: Path,
    start: Callable[..., "subprocess.Popen[str]"],
    start_ranks: Callable[..., "list[subprocess.Popen[str]]"],
) -> None:
    size = "20000"  # of 20 million weights, 240 MB with AdamW's moments
    output, _ = start("-c", LOAD, str(tmp_path), size).communicate(timeout=280)
    (file,) = tmp_path.glob("step-*")
    ranks = start_ranks(2, "-c", LOAD, str(tmp_path), size)
    outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    for output in outputs:
        peak = int(output.split()[-1])
        assert 0.3 < peak / file.stat().st_size < 1.4, output


def test_a_checkpoint_from_another_kind_of_device_draws_new_masks(
    tmp_path: Path, world: World
) -> None:
    """Dropout on a GPU leaves the CPU's generator where it was seeded, at the masks of step 1."""
    run, config = folder(tmp_path), {"seed": 1}
    model, optimizer = make(1)
    rng.seed_all(1, 0, 0)
    checkpoint.save(run, world, step=12, model=model, optimizer=optimizer, config=config)
    of_step_1 = float(torch.rand(()))
    (file,) = run.path.glob("step-*")
    content = torch.load(file, weights_only=True)
    content["rng"][0]["cuda"] = torch.zeros(16, dtype=torch.uint8)
    torch.save(content, file)
    assert checkpoint.load(run, world, model=model, optimizer=optimizer, config=config) == 12
    drawn = float(torch.rand(()))
    assert drawn != of_step_1
    rng.seed_all(1, 12, 0)  # as where the number of ranks has changed
    assert drawn == float(torch.rand(()))


@pytest.mark.deep
def test_the_others_wait_for_a_slow_disk_longer_than_for_each_other(
    fork_ranks: Callable[..., list[str]], tmp_path: Path
) -> None:
    options = ("--max-steps=1", f"--checkpoint-dir={tmp_path}", "--timeout-seconds=10")
    (output,) = fork_ranks(2, ("slow_disk", *options))
    assert "after 1 steps, world size 2" in output
