"""What the tutorials' snippets do to numbers, as a module for `forked_ranks.py`."""

import json
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddptrain import rng
from ddptrain.config import Config
from ddptrain.data import Samples, indices, load
from ddptrain.dist import World
from ddptrain.model import BasicNet
from ddptrain.native import evaluate, train_step
from ddptrain.preemption import StopVote
from ddptrain.report import Report

BATCH, LAST = 64, 29  # samples in a batch, and in the last one of an epoch


def train(config: Config, world: World, _stop: StopVote, _report: Report) -> int:
    """Write the numbers into the checkpoint folder."""
    measured = measure(world)
    if world.is_main:
        assert config.checkpoint_dir
        (config.checkpoint_dir / "numbers.json").write_text(json.dumps(measured))
    return 0


def measure(world: World) -> dict[str, Any]:
    digits = load("digits", None, world.device)
    net = trained(digits.train, world)
    correct, tested = evaluate(net, digits.test, world)
    return {
        "exact": [correct, tested],
        "shard_over_whole": shard_over_whole(net, digits.test, world),
        "padded": padded(net, digits.test, world),
        "seen_without_sampler": seen(digits.train, world),
        "order_without_set_epoch": orders(digits.train, world, set_epoch=False),
        "order_with_set_epoch": orders(digits.train, world, set_epoch=True),
        **gradients(digits.train, world),
    }


def trained(train: Samples, world: World) -> BasicNet:
    """Two epochs of the right loop."""
    rng.seed_all(1)
    net = BasicNet(dropout=False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(44):
        share = shares(train, step % 22, world)
        train_step(model, optimizer, train.batch(share), BATCH, world)
    return net


def shares(train: Samples, step: int, world: World) -> torch.Tensor:
    size, rank, count = len(train), world.rank, world.size
    return indices(size, seed=1, epoch=0, step=step, global_batch=BATCH, rank=rank, world=count)


@torch.no_grad()
def shard_over_whole(net: BasicNet, test: Samples, world: World) -> float:
    """Correct of a rank's own shard, over the length of the whole set: `correct / len(dataset)`."""
    images, labels = test.batch(torch.arange(len(test))[world.rank :: world.size])
    return int((net.eval()(images).argmax(dim=1) == labels).sum()) / len(test)


@torch.no_grad()
def padded(net: BasicNet, test: Samples, world: World) -> list[int]:
    """Correct and counted where DistributedSampler fills up the shards."""
    images, labels = test.batch(torch.arange(len(test)))
    sampler = DistributedSampler(range(len(test)), shuffle=False)  # type: ignore[arg-type, var-annotated]
    mine = torch.tensor(list(sampler))
    right = (net.eval()(images[mine]).argmax(dim=1) == labels[mine]).sum()
    counts = torch.tensor([int(right), len(mine)])
    dist.all_reduce(counts)
    return [int(count) for count in counts]


def seen(train: Samples, world: World) -> int:
    """Samples that all ranks together take in an epoch with `shuffle=True` and no sampler."""
    loader = DataLoader(TensorDataset(train.labels), batch_size=BATCH, shuffle=True)
    count = torch.tensor(sum(len(labels) for (labels,) in loader))
    dist.all_reduce(count)
    return int(count)


def orders(train: Samples, world: World, *, set_epoch: bool) -> bool:
    """Whether two epochs of DistributedSampler have the same order."""
    sampler = DistributedSampler(range(len(train)), seed=1)  # type: ignore[arg-type, var-annotated]
    found = []
    for epoch in (0, 1):
        if set_epoch:
            sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found[0] == found[1]


def gradients(train: Samples, world: World) -> dict[str, float]:
    """Error of the gradient of an epoch's last batch, whose shares are uneven, to the truth.

    In relation to the largest gradient; first by the mean of the ranks' means, then by ours.
    """
    rng.seed_all(1)
    net = BasicNet(dropout=False)
    model = DistributedDataParallel(net)
    images, labels = train.batch(torch.arange(LAST))
    F.nll_loss(net(images), labels).backward()  # type: ignore[no-untyped-call]
    truth = flat(net)
    mine = torch.arange(LAST)[world.rank :: world.size]
    images, labels = train.batch(mine)
    net.zero_grad()
    F.nll_loss(model(images), labels).backward()  # type: ignore[no-untyped-call]
    means = flat(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    train_step(model, optimizer, (images, labels), LAST, world)
    largest = truth.abs().max()
    return {
        "mean_of_means": float((means - truth).abs().max() / largest),
        "weighted": float((flat(net) - truth).abs().max() / largest),
    }


def flat(net: BasicNet) -> torch.Tensor:
    """All gradients in one."""
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
