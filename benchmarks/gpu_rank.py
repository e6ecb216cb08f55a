"""One rank of a training for `benchmarks.gpu_loop`, by torchrun: MODE LEVEL [OPTION …].

MODE `busy`: after a few steps, to wait for the GPU while a batch is made or in a step is an error.
MODE `fails`: rank 1 raises an error in the middle of the training.
"""

import importlib
import itertools
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from ddptrain.data import Samples

FIRST = 20  # calls that may wait: DDP orders its gradients anew, values are cached
BOOM = "rank 1 fails, as it was asked to"

Function = Callable[..., Any]


def busy(do: Function) -> Function:
    """`do`, in which torch makes an error of waiting for the GPU, but for the first calls."""
    calls = itertools.count()

    def unsynchronised(*arguments: Any, **options: Any) -> Any:
        if next(calls) < FIRST:
            return do(*arguments, **options)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return do(*arguments, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return unsynchronised


def fails(do: Function) -> Function:
    """`do`, which raises an error on rank 1 after the first calls."""
    calls = itertools.count()

    def failing(*arguments: Any, **options: Any) -> Any:
        if os.environ["RANK"] == "1" and next(calls) == FIRST:
            raise RuntimeError(BOOM)
        return do(*arguments, **options)

    return failing


def main(mode: str, level: str, *options: str) -> int:
    """Train, with the parts of a step changed; returns the exit code."""
    module = importlib.import_module(f"ddptrain.{level}")
    change = {"busy": busy, "fails": fails}[mode]
    with ExitStack() as changed:
        changed.enter_context(patch.object(Samples, "batch", change(Samples.batch)))
        if hasattr(module, "train_step"):  # the Trainer has its own
            changed.enter_context(patch.object(module, "train_step", change(module.train_step)))
        code: int = module.main(options)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
