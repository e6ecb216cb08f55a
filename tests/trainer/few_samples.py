"""What ranks do with fewer samples than ranks, and whether they agree; for `forked_ranks.py`."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddptrain import rng
from ddptrain.config import Config
from ddptrain.data import load
from ddptrain.dist import World
from ddptrain.model import BasicNet
from ddptrain.native import evaluate, train_step
from ddptrain.preemption import StopVote
from ddptrain.report import Report


def train(config: Config, world: World, _stop: StopVote, _report: Report) -> int:
    """Write the measurements into the checkpoint folder."""
    measured = measure(world)
    if world.is_main:
        assert config.checkpoint_dir
        (config.checkpoint_dir / "few.json").write_text(json.dumps(measured))
    return 0


def measure(world: World) -> dict[str, Any]:
    """Test counts of an untrained net, and its weights after five steps of two samples each."""
    digits = load("digits", None, world.device)
    rng.seed_all(1)
    net = BasicNet(dropout=False)
    counts = [evaluate(net, digits.test.first(size), world) for size in (1, 2, 100, 359)]
    model = DistributedDataParallel(net)
    steps(model, world, digits.train.batch)
    return {
        "counts": [list(pair) for pair in counts],
        "weights": weights(net).tolist(),
        "seeded_apart": seeded_apart(world, digits.train.batch),
    }


def steps(model: DistributedDataParallel, world: World, batch: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        share = torch.tensor([2 * step, 2 * step + 1])[world.rank :: world.size]
        train_step(model, optimizer, batch(share), 2, world)


def seeded_apart(world: World, batch: Any) -> list[bool]:
    """Whether all ranks' weights are the same bits: as made, from a seed each, and as trained."""
    rng.seed_all(world.rank)
    net = BasicNet()
    before = same_everywhere(weights(net), world)
    steps(DistributedDataParallel(net), world, batch)
    return [before, same_everywhere(weights(net), world)]


def same_everywhere(mine: torch.Tensor, world: World) -> bool:
    everybody = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(everybody, mine)
    return all(torch.equal(mine, other) for other in everybody)


def weights(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
