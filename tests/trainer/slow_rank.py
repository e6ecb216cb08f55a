"""The native training with a rank 1 that computes slowly, as a module for `forked_ranks.py`."""

import itertools
import time
from typing import Any
from unittest.mock import patch

import torch

from ddptrain import native
from ddptrain.config import Config
from ddptrain.dist import World
from ddptrain.model import network
from ddptrain.preemption import StopVote
from ddptrain.report import Report

SECONDS = 0.4  # in a backward pass: far more than another process may hold up rank 0
MEASURED = (*range(13), *range(98, 103))  # the passes that DDP measures, and some beside them


def train(config: Config, world: World, stop: StopVote, report: Report) -> int:
    if world.rank != 1:
        return native.train(config, world, stop, report)
    with patch("ddptrain.native.network", slow_network):
        return native.train(config, world, stop, report)


def slow_network(*arguments: Any, **options: Any) -> torch.nn.Module:
    net = network(*arguments, **options)
    passes = itertools.count()

    def hold_up(_net: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if output.requires_grad and next(passes) in MEASURED:
            output.register_hook(lambda _gradient: time.sleep(SECONDS))  # type: ignore[no-untyped-call]

    net.register_forward_hook(hold_up)
    return net
