"""Batches from a dataset of your own: any `torch.utils.data.Dataset` of (image, label) samples.

    for batch in batches(dataset, batch_size=64, seed=1, first_step=0, total_steps=n, world=world):

A DataLoader, a DistributedSampler and set_epoch, with what they leave to the caller: no sample
counts twice, a run goes on in mid-epoch, and a sample is transformed alike whatever the number of
ranks and of workers. For a data set that fits into memory as uint8, `data.Samples` is many times
faster.
"""

import ctypes
import os
import random
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from ddptrain import rng
from ddptrain.data import indices, steps_per_epoch
from ddptrain.dist import World

CPU = torch.device("cpu")
PREFETCHED = 4  # batches that each worker keeps ready
TEST_BATCH = 256  # samples of each rank at a time
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal for a process whose parent has died

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (B, …) and labels (B,) of one rank; B may be 0."""


class MapDataset(Protocol):
    """What is asked of a dataset: a length, and an (image, label) for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Draw(NamedTuple):
    """One sample in one epoch."""

    sample: int  # its index in the dataset
    seed: int  # of all that is random in its transforms, below 2**32


class Shard(DistributedSampler[list[Draw]]):
    """One rank's share of each global batch of an epoch: an item per step, the last may be empty.

    Its base class repeats samples until all ranks have as many; here each is drawn exactly once,
    in the order of `data.indices`, which does not depend on the number of ranks. For a DataLoader
    with `batch_size=None`, since an item is a batch already.
    """

    def __init__(self, dataset: MapDataset, *, batch_size: int, seed: int, world: World) -> None:
        """`batch_size` counts the samples of all ranks together."""
        super().__init__(_Seeded(dataset), num_replicas=world.size, rank=world.rank, seed=seed)
        self._samples, self._batch_size = len(dataset), batch_size
        self._first_step = 0

    def set_epoch(self, epoch: int, first_step: int = 0) -> None:
        """The next iteration is over `epoch`, from its step `first_step` (0-based) on."""
        super().set_epoch(epoch)
        self._first_step = first_step

    def __len__(self) -> int:
        """Steps that are left of the epoch, the same on all ranks."""
        return steps_per_epoch(self._samples, self._batch_size) - self._first_step

    def __iter__(self) -> Iterator[list[Draw]]:
        # A trailing 0 would not change the key, and so give the numbers that the order is made of.
        key = (self.seed, self.epoch, 1)
        seeds = np.random.default_rng(key).integers(2**32, size=self._samples, dtype=np.uint32)
        for step in range(self._first_step, self._first_step + len(self)):
            share = indices(
                self._samples,
                seed=self.seed,
                epoch=self.epoch,
                step=step,
                global_batch=self._batch_size,
                rank=self.rank,
                world=self.num_replicas,
            ).numpy()
            yield list(map(Draw, share.tolist(), seeds[share].tolist()))


def batches(
    dataset: MapDataset,
    *,
    batch_size: int,
    seed: int,
    first_step: int,
    total_steps: int,
    world: World,
    workers: int = 0,
) -> Iterator[Batch]:
    """This rank's batch of each step from `first_step` to `total_steps`, on its device.

    `batch_size` counts the samples of all ranks; steps count through all epochs. Each of `workers`
    processes loads whole batches ahead; with 0 they are loaded in here, when they are asked for.
    What the transforms draw from random, numpy.random and torch depends on `seed`, the epoch and
    the sample alone, and leaves the random state of this process as it was.
    """
    if len(dataset) == 0:
        raise ValueError("the dataset is empty: there is nothing to train on")
    epoch_steps = steps_per_epoch(len(dataset), batch_size)
    shard = Shard(dataset, batch_size=batch_size, seed=seed, world=world)
    loader = _loader(dataset, shard, seed=seed, world=world, workers=workers)
    step = first_step
    while step < total_steps:
        epoch, skipped = divmod(step, epoch_steps)
        shard.set_epoch(epoch, skipped)
        for images, labels in islice(loader, total_steps - step):
            yield (
                images.to(world.device, non_blocking=True),
                labels.to(world.device, non_blocking=True),
            )
            step += 1


def evaluation_loader(
    dataset: MapDataset, *, world: World, workers: int = 0
) -> DataLoader[list[Draw]]:
    """Every W-th sample of `dataset`, in order: all ranks together have each exactly once.

    A rank may get fewer batches than another, or none.
    """
    mine = range(len(dataset))[world.rank :: world.size]
    shares = [
        [Draw(sample, seed=sample) for sample in mine[start : start + TEST_BATCH]]
        for start in range(0, len(mine), TEST_BATCH)
    ]
    return _loader(dataset, shares, seed=0, world=world, workers=workers)


@torch.no_grad()
def evaluate(net: torch.nn.Module, loader: Iterable[Any], world: World) -> tuple[int, int]:
    """Correctly classified samples and samples, over all ranks' `evaluation_loader`s.

    `net` is the bare module: DDP's own forward is for all ranks at once, and their numbers of
    batches differ. All ranks call this together.
    """
    net.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=world.device)  # correct, tested
    for images, labels in loader:
        images, labels = images.to(world.device), labels.to(world.device)
        counts[0] += (net(images).argmax(dim=1) == labels).sum()
        counts[1] += len(labels)
    net.train()
    dist.all_reduce(counts)
    correct, tested = counts.tolist()
    return correct, tested


class _Seeded(Dataset[Batch]):
    """Makes a batch of a list of draws, each sample from its own seed.

    A worker is seeded once, so what it draws for a sample would depend on which samples it has had
    before: on the number of workers and ranks, and on where a run was resumed.
    """

    def __init__(self, dataset: MapDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, draws: list[Draw]) -> Batch:
        """Images and labels of `draws`; what is random outside of it goes on undisturbed."""
        state = rng.get_state(CPU)
        try:
            # An empty batch has the shape of the first sample.
            samples = [self._sample(draw) for draw in draws or [Draw(0, 0)]]
        finally:
            rng.set_state(state, CPU)
        images, labels = default_collate(samples)
        return images[: len(draws)], labels[: len(draws)]

    def _sample(self, draw: Draw) -> Any:
        random.seed(draw.seed)
        np.random.seed(draw.seed)
        # torch.manual_seed takes twenty times as long as this and all of the above: it goes on to
        # GPUs, whose random state is the model's and not to be touched.
        torch.default_generator.manual_seed(draw.seed)
        return self._dataset[draw.sample]


def _loader(
    dataset: MapDataset, shares: Iterable[list[Draw]], *, seed: int, world: World, workers: int
) -> DataLoader[Any]:
    """A DataLoader with an item of `shares` for each batch."""
    # Without a generator the seed of the workers would come from the model's random numbers; with
    # one that is not seeded, the workers of all ranks would have the same.
    key = np.random.SeedSequence((seed, world.rank)).generate_state(1)
    return DataLoader(
        _Seeded(dataset),
        batch_size=None,
        sampler=shares,
        num_workers=workers,
        worker_init_fn=_live_and_die_with_the_rank,
        persistent_workers=workers > 0,  # or each epoch would begin with starting them
        prefetch_factor=PREFETCHED if workers else None,
        pin_memory=world.device.type == "cuda",
        generator=torch.Generator().manual_seed(int(key[0])),
    )


def _live_and_die_with_the_rank(_worker: int) -> None:
    """Keep a worker alive when torchrun sends SIGTERM to all processes of a rank, and no longer.

    At SIGTERM the rank is to finish its step and save; a worker that dies makes it fail instead. So
    the worker leaves the rank's process group. A killed rank should be missed by the others at
    once, but the worker holds a copy of its connections open and looks for it every 5 s only. So
    Linux is told to kill the worker with it (with the thread that started it, to be exact);
    elsewhere it takes these 5 s.
    """
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
