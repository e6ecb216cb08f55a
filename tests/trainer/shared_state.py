"""What each rank has of a state that rank 0 alone knows, as a module for `forked_ranks.py`."""

from typing import Any

import torch

from ddptrain.config import Config
from ddptrain.dist import World
from ddptrain.preemption import StopVote
from ddptrain.report import Report
from ddptrain.sharing import outline, share


def state() -> dict[str, Any]:
    torch.manual_seed(1)
    tensors = [
        torch.randn(3, 4).to(torch.bfloat16),
        torch.randn(5) > 0,
        torch.randn(4, 6).t()[::2],  # strides of its own
        torch.tensor(7),
        torch.empty(0, 3, dtype=torch.float64),
    ]
    return {
        "step": 3,
        "model": {"tensors": tensors},
        "optimizer": {"state": {0: {"pair": (torch.ones(2), 1.5)}}, "none": None},
    }


def train(config: Config, world: World, _stop: StopVote, _report: Report) -> int:
    """Write what this rank has into the checkpoint folder."""
    assert outline(None, world) is None
    mine = outline(state() if world.is_main else None, world)
    assert mine is not None and config.checkpoint_dir
    for part in ("model", "optimizer"):
        mine[part] = share(mine[part], world)
    torch.save(mine, config.checkpoint_dir / f"{world.rank}.pt")
    return 0
