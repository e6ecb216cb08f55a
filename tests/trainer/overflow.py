"""A training in which one gradient of the last rank is infinite in step 2; for `forked_ranks.py`.

The level is the module that the variable LEVEL names. A resumed run has step 2 behind it.
"""

import importlib
import math
import os
from typing import Any
from unittest.mock import patch

import torch

from ddptrain.config import Config
from ddptrain.dist import World
from ddptrain.model import network
from ddptrain.preemption import StopVote
from ddptrain.report import Report

PARTS = 2  # --accumulation
SPOILED = 1 + PARTS  # the backward pass that warms up comes first, then those of step 1


def train(config: Config, world: World, stop: StopVote, report: Report) -> int:
    """As the level does; each rank leaves its weights as RANK.weights beside the checkpoints."""
    assert config.checkpoint_dir and config.accumulation == PARTS
    level = importlib.import_module(os.environ["LEVEL"])
    spoils = world.rank == world.size - 1 and not list(config.checkpoint_dir.glob("step-*"))
    passes = iter(range(1000))
    computed_in: set[torch.dtype] = set()
    made: list[torch.nn.Module] = []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf if next(passes) == SPOILED and spoils else gradient

    def spoiled(*arguments: Any, **options: Any) -> torch.nn.Module:
        made.append(net := network(*arguments, **options))
        net.get_parameter("fc2.bias").register_hook(spoil)  # type: ignore[no-untyped-call]
        net.get_submodule("fc2").register_forward_hook(lambda *seen: computed_in.add(seen[2].dtype))
        return net

    with patch.object(level, "network", spoiled):
        code: int = level.train(config, world, stop, report)
    assert torch.float16 in computed_in
    torch.save(made[0].state_dict(), config.checkpoint_dir / f"{world.rank}.weights")
    return code
