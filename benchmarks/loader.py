"""How fast batches come: `python -m benchmarks.loader`.

Images per second of the loader in memory (ddptrain.data) and of DataLoaders, over files like
MNIST's. They take turns, several times over; a ratio is that of the same turn, and medians are
printed as a Markdown table. torch has one thread, as a rank in a pod with one core.
"""

import argparse
import os
import platform
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torchvision  # type: ignore[import-untyped]
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchvision import transforms

from benchmarks.report import table
from ddptrain import loaders
from ddptrain.data import IDX, Samples, indices, load, steps_per_epoch
from ddptrain.dist import Launch, World

SIZES = {"train": 60_000, "test": 10_000}  # those of MNIST
TRANSFORMED = 12_800  # images in a turn of the slow ones; the fast ones take all
IN_MEMORY = "`Samples.batch(indices(…))`: uint8 in memory"
CPU = torch.device("cpu")

Turn = Callable[[], Iterable[Any]]
"""Begins an epoch: an iterable of batches (images, labels)."""


def write_files(folder: Path) -> None:
    """MNIST's four files, of noise, where torchvision looks for them below `folder`."""
    noise = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, (images, labels) in IDX.items():
        size = SIZES[part]
        pixels = noise.integers(0, 256, (size, 28, 28), np.uint8).tobytes()
        (raw / images).write_bytes(struct.pack(">4I", 0x803, size, 28, 28) + pixels)
        digits = noise.integers(0, 10, size, np.uint8).tobytes()
        (raw / labels).write_bytes(struct.pack(">2I", 0x801, size) + digits)


def in_memory(samples: Samples, batch_size: int) -> Turn:
    """What `ddptrain.native` takes, each turn another epoch's order."""
    epochs = iter(range(10**9))

    def epoch() -> Iterator[Any]:
        number = next(epochs)
        for step in range(steps_per_epoch(len(samples), batch_size)):
            yield samples.batch(
                indices(
                    len(samples),
                    seed=1,
                    epoch=number,
                    step=step,
                    global_batch=batch_size,
                    rank=0,
                    world=1,
                )
            )

    return epoch


def plain(dataset: Dataset[Any], batch_size: int, workers: int) -> Turn:
    """An ordinary DataLoader, whose workers stay from turn to turn."""
    loader = DataLoader(
        dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: loader


def own(dataset: Any, batch_size: int, workers: int) -> Turn:
    """`loaders.batches`, one epoch a turn."""
    alone = World(Launch(0, 1, 0, "gloo", "", 0, launched=False), CPU, None, None)  # type: ignore[arg-type]
    endless = loaders.batches(
        dataset,
        batch_size=batch_size,
        seed=1,
        first_step=0,
        total_steps=10**9,
        world=alone,
        workers=workers,
    )
    steps = steps_per_epoch(len(dataset), batch_size)
    return lambda: (next(endless) for _ in range(steps))


def candidates(folder: Path, batch_size: int) -> dict[str, Turn]:
    """What takes turns, by the name of its row."""
    samples = load("mnist", folder, CPU).train
    everything, _ = samples.batch(torch.arange(len(samples)))  # normalised ahead: 188 MB
    pixels = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    mnist = torchvision.datasets.MNIST(str(folder), transform=transforms.Compose(pixels))
    some = Subset(mnist, range(TRANSFORMED))
    turns = {
        IN_MEMORY: in_memory(samples, batch_size),
        "`TensorDataset`, normalised ahead, `DataLoader`": plain(
            TensorDataset(everything, samples.labels), batch_size, 0
        ),
    }
    kinds = (
        ("torchvision's MNIST, `DataLoader`", plain),
        ("torchvision's MNIST, `loaders.batches`", own),
    )
    for name, kind in kinds:
        for workers in (0, 1, 2):
            turns[f"{name}, workers: {workers}"] = kind(some, batch_size, workers)
    return turns


def rate(turn: Turn) -> float:
    """Images per second of one epoch."""
    began = time.perf_counter()
    images = sum(len(labels) for _, labels in turn())
    return images / (time.perf_counter() - began)


def measure(turns: dict[str, Turn], repeats: int) -> dict[str, list[float]]:
    """Images per second of each in each round, after one round that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(repeats + 1):
        for name, turn in turns.items():
            speed = rate(turn)
            if number:
                rates[name].append(speed)
    return rates


def rows(rates: dict[str, list[float]]) -> list[list[str]]:
    """Median, range, and how many times as fast the loader in memory is in the same round."""
    lines = []
    for name, speeds in rates.items():
        ratios = [ours / other for ours, other in zip(rates[IN_MEMORY], speeds, strict=True)]
        lines.append(
            [
                name,
                f"{median(speeds):,.0f}",
                f"{min(speeds):,.0f} to {max(speeds):,.0f}",
                f"{median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
            ]
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        rates = measure(candidates(Path(folder), options.batch_size), options.repeats)
    print(
        f"Batches of {options.batch_size} images of 28 x 28; medians of {options.repeats} turns. "
        f"{os.cpu_count()} cores ({platform.machine()}), torch {torch.__version__}, "
        f"torchvision {torchvision.__version__}, Python {platform.python_version()}.\n"
    )
    print(table(["", "images/s", "range", "times as fast: in memory"], rows(rates)))


if __name__ == "__main__":
    main()
