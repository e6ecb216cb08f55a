"""`python -m benchmarks.trainer`: what the trainer's own parts cost, and docs/trainer-figures.md.

The loop of ddptrain.native against a bare one, the progress file, a checkpoint, a killed rank; then
`benchmarks.loader` and `ddptrain.compare`. What is compared takes turns in one process.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psutil
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.report import table
from ddptrain import checkpoint, rng
from ddptrain.compare import main as compare
from ddptrain.compare.machine import count_cores, count_gpus, examine
from ddptrain.compare.table import LEGEND
from ddptrain.config import parse
from ddptrain.data import Samples, epoch_order, load
from ddptrain.dist import World, process_group
from ddptrain.model import network
from ddptrain.native import train
from ddptrain.preemption import StopVote
from ddptrain.progress import ProgressFile
from ddptrain.report import Report
from tests.cluster.tiers import ROOT

PAGE = ROOT / "docs" / "trainer-figures.md"
BATCH, STEPS, ROUNDS = 64, 60, 15  # samples of a step, steps of a turn, turns of each
WARM = 10  # steps at the start of a turn that do not count
COMPARISONS = ((), ("--weak",))
MOST_LOOP, MOST_PROGRESS = 0.01, 0.001  # of a step
Row = list[str]


@dataclass
class Turn:
    """One training with `native.train`, and the bare loop's step after each of its steps."""

    ours: list[float] = field(default_factory=list)  # seconds of each step, as all below
    bare: list[float] = field(default_factory=list)
    reports: list[float] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)  # of each writing, not of each step


def one_turn(world: World, samples: Samples, folder: Path) -> Turn:
    """Both loops step by step in turn, so that what the machine does meets both alike."""
    turn, theirs = Turn(), bare_steps(samples)
    step, write = Report.step, ProgressFile.write
    began = 0.0

    def timed(report: Report, *arguments: object) -> None:
        nonlocal began
        reported = time.perf_counter()
        step(report, *arguments)  # type: ignore[arg-type]
        ended = time.perf_counter()
        turn.ours.append(ended - began)
        turn.reports.append(ended - reported)
        next(theirs)
        began = time.perf_counter()
        turn.bare.append(began - ended)

    def timed_write(progress: ProgressFile, **values: Any) -> None:
        written = time.perf_counter()
        write(progress, **values)
        turn.progress.append(time.perf_counter() - written)

    options = ("--data=synthetic", f"--batch-size={BATCH}", f"--max-steps={STEPS}")
    config = parse("native", [*options, f"--log-dir={folder}"])
    os.environ["DDPJOB_PROGRESS_FILE"] = str(folder / "progress.json")
    with (
        patch.object(Report, "step", timed),
        patch.object(ProgressFile, "write", timed_write),
        Report(config, world) as report,
    ):
        train(config, world, StopVote(), report)
    for steps in (turn.ours, turn.bare, turn.reports):
        del steps[:WARM]
    return turn


def bare_steps(samples: Samples) -> Iterator[None]:
    """The shortest loop that trains the same model on the same batches."""
    rng.seed_all(1)
    model = DistributedDataParallel(network(samples.shape), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    order = epoch_order(len(samples), 1, 0)
    for step in range(STEPS):
        images, labels = samples.batch(order[step * BATCH : (step + 1) * BATCH])
        optimizer.zero_grad()
        torch.autograd.backward(F.nll_loss(model(images), labels))
        optimizer.step()
        yield


def loop_rows() -> list[Row]:
    """Our loop and the bare one, step by step."""
    with one_rank() as world, TemporaryDirectory() as folder:
        samples = load("synthetic", None, world.device).train
        turns = [one_turn(world, samples, Path(folder)) for _ in range(ROUNDS)]
    ours = [median(turn.ours) for turn in turns]
    bare = [median(turn.bare) for turn in turns]
    ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    # It is written by the clock, which runs for both loops.
    progress = [sum(turn.progress) / sum(turn.ours + turn.bare) for turn in turns]
    reports = [sum(turn.reports) / sum(turn.ours) for turn in turns]
    return [
        ["bare loop, ms a step", spread(bare, 1e3), ""],
        ["`ddptrain.native`, ms a step", spread(ours, 1e3), ""],
        [
            "… over the bare loop, of the same turn",
            spread(ratios, digits=4),
            f"≤ {1 + MOST_LOOP:.2f}",
        ],
        ["the progress file, % of the loop", spread(progress, 100), f"≤ {100 * MOST_PROGRESS}"],
        ["all reports together, twice as often, %", spread(reports, 100), ""],
    ]


def checkpoint_rows() -> list[Row]:
    """How long training stands still for a checkpoint of BasicNet with AdamW's state."""
    seconds = []
    with one_rank() as world, TemporaryDirectory() as folder:
        net = network((1, 28, 28))
        optimizer = torch.optim.AdamW(net.parameters())
        net(torch.zeros(1, 1, 28, 28)).sum().backward()
        optimizer.step()
        kept = checkpoint.CheckpointFolder(Path(folder), "job", 0, keep=3)
        kept.claim()
        for step in range(1, 16):
            began = time.perf_counter()
            checkpoint.save(kept, world, step=step, model=net, optimizer=optimizer, config={})
            seconds.append(time.perf_counter() - began)
        size = max(path.stat().st_size for path in Path(folder).glob("step-*"))
    return [
        [f"a checkpoint of {size / 1e6:.1f} MB, ms until it is synced", spread(seconds, 1e3), ""]
    ]


def restart_rows() -> list[Row]:
    """From SIGKILL of a rank to the first step after it, in `ddpjob run --local` on two nodes."""
    seconds = [killed_and_back() for _ in range(3)]
    return [["a killed rank, s until the next step of the group", spread(seconds), ""]]


def killed_and_back() -> float:
    text = (ROOT / "examples" / "digits-checkpoint.yaml").read_text()
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "job.yaml"
        job.write_text(
            text.replace("--checkpoint-every", f"--log-dir, {folder}, --checkpoint-every")
        )
        command = [sys.executable, "-m", "ddpjob", "run", "--local", str(job)]
        with (folder / "output").open("wb") as out:
            process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
        try:
            wait(lambda: "saved " in (folder / "output").read_text())
            killed = time.time()
            workers(process.pid)[-1].kill()
            wait(lambda: bool(after(folder / "history.jsonl", killed)))
            return after(folder / "history.jsonl", killed)[0] - killed
        finally:
            process.terminate()
            process.wait(60)


def after(history: Path, moment: float) -> list[float]:
    """When the lines of the second attempt were written."""
    lines = map(json.loads, history.read_text().splitlines())
    return [line["time"] for line in lines if line["attempt"] > 0 and line["time"] > moment]


def workers(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children(recursive=True)
    return [p for p in found if p.cmdline()[1:4] == ["-u", "-m", "ddptrain.native"]]


def wait(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the training did not get there")
        time.sleep(0.02)


@contextmanager
def one_rank() -> Iterator[World]:
    """A process group with one member and one thread."""
    torch.set_num_threads(1)
    with process_group(timeout=timedelta(seconds=60)) as world:
        yield world


def spread(values: list[float], factor: float = 1.0, digits: int = 3) -> str:
    """Median (min–max), with so many significant digits."""
    low, middle, high = (f"{factor * f(values):.{digits}g}" for f in (min, median, max))
    return f"{middle} ({low}–{high})"


def printed(module: str) -> str:
    """What `python -m module` prints."""
    command = [sys.executable, "-m", module]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def comparisons() -> Iterator[str]:
    """Strong and weak scaling over this machine's cores."""
    cores, gpus = count_cores(), count_gpus()
    for arguments in COMPARISONS:
        options, rows = compare.parse(arguments, cores=cores, gpus=gpus)
        results = compare.measure(options, rows)
        yield compare.section(options, results, examine(cores, gpus))


_PAGE = """\
# Figures of the trainer

Made on {date} by `make bench-trainer`. Median (min–max); a ratio is that of neighbours in time.

- {machine.hardware}
- {machine.versions}

## The loop

BasicNet on 28 × 28, batch {batch}, one process with one thread; {rounds} turns of {steps} steps of
each loop, step by step in turn.

{loop}

## Loading

{loading}

## Processes and threads

`python -m ddptrain.compare`, and the same with `--weak`. Per step every process pays for its own
optimizer step and for the all-reduce, whatever its share of the batch; with 64 samples for each
(weak scaling), 2 × 1 is to reach 1.7 times one process with one thread.

{sections}

{legend}
"""


def page() -> str:
    """docs/trainer-figures.md."""
    rows = [*loop_rows(), *checkpoint_rows(), *restart_rows()]
    return _PAGE.format(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=examine(count_cores(), count_gpus()),
        batch=BATCH,
        rounds=ROUNDS,
        steps=STEPS,
        loop=table(["", "measured", "demand"], rows),
        loading=printed("benchmarks.loader"),
        sections="\n\n".join(comparisons()),
        legend=LEGEND,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    text = page()
    if options.write:
        PAGE.write_text(text)
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        print(text)


if __name__ == "__main__":
    main()
