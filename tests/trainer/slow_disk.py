"""The native training where rank 0's disk is slow, as a module for `forked_ranks.py`."""

import time
from typing import Any
from unittest.mock import patch

from ddptrain import native
from ddptrain.checkpoint import CheckpointFolder
from ddptrain.config import Config
from ddptrain.dist import World
from ddptrain.preemption import StopVote
from ddptrain.report import Report


def train(config: Config, world: World, stop: StopVote, report: Report) -> int:
    """Reading and writing takes half as long again as the others wait for anything else."""
    seconds = 1.5 * config.timeout_seconds

    def slow(do: Any) -> Any:
        def slowly(*arguments: Any) -> Any:
            time.sleep(seconds)
            return do(*arguments)

        return slowly

    with (
        patch.object(CheckpointFolder, "write", slow(CheckpointFolder.write)),
        patch.object(CheckpointFolder, "read_newest", slow(CheckpointFolder.read_newest)),
    ):
        return native.train(config, world, stop, report)
