"""Started once for each of three ranks: several trainings in one group, as a start costs more."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from ddptrain import rng
from ddptrain.config import parse
from ddptrain.data import load
from ddptrain.dist import World, process_group
from ddptrain.model import BasicNet
from ddptrain.native import evaluate, train, train_step
from ddptrain.preemption import StopVote
from ddptrain.report import Report

WHOLE = ("--max-steps=40", "--checkpoint-every=30", "--checkpoint-dir")
PARITY = ("--no-dropout", "--max-steps=66", "--checkpoint-every=30", "--checkpoint-dir")


def measure_few_samples(world: World) -> dict[str, object]:
    """Test counts of an untrained net, and its weights after five steps of two samples each."""
    digits = load("digits", None, world.device)
    rng.seed_all(1)
    net = BasicNet(dropout=False)
    counts = [evaluate(net, digits.test.first(size), world) for size in (1, 2, 100, 359)]
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(5):
        share = torch.tensor([2 * step, 2 * step + 1])[world.rank :: world.size]
        train_step(model, optimizer, digits.train.batch(share), 2, world)
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    return {"counts": [list(pair) for pair in counts], "weights": weights.tolist()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with process_group(timeout=timedelta(seconds=60)) as world:
        for name, options in (("whole", WHOLE), ("parity", PARITY)):
            config = parse("three_ranks", [*options, str(folder / name)])
            with Report(config, world) as report:
                train(config, world, StopVote(), report)
        result = measure_few_samples(world)
        if world.is_main:
            (folder / "few.json").write_text(json.dumps(result))
