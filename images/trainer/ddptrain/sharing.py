"""What the main process has read from its disk, on every rank: each has it in memory once."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddptrain.dist import World

State = dict[str, Any]
TENSORS = ("model", "optimizer")  # the parts of a checkpoint that are large


def outline(state: State | None, world: World) -> State | None:
    """The main process's `state` on every rank; on the others, large tensors lack their numbers."""
    if world.size == 1:
        return state
    sent = state and state | {
        part: _each_tensor(state[part], lambda tensor: tensor.to("meta"))
        for part in TENSORS
        if part in state
    }
    received = [sent]
    dist.broadcast_object_list(received, src=0, group=world.disk, device=torch.device("cpu"))
    return state if world.is_main else received[0]


def share(part: State, world: World) -> State:
    """A part of the `outline` with all its numbers, which come from the main process."""

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor if world.is_main else torch.empty(tensor.shape, dtype=tensor.dtype)
        whole = whole.contiguous()
        if whole.numel() > 0:
            dist.broadcast(whole.view(-1).view(torch.uint8), src=0, group=world.disk)
        return whole

    shared: State = part if world.size == 1 else _each_tensor(part, filled)
    return shared


def _each_tensor(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`tree`, of dictionaries, lists and tuples, with each tensor changed, in their order."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        changed = copy.copy(tree)  # a model's state keeps versions of its modules beside the items
        for key, value in tree.items():
            changed[key] = _each_tensor(value, change)
        return changed
    if isinstance(tree, list | tuple):
        return type(tree)(_each_tensor(value, change) for value in tree)
    return tree
