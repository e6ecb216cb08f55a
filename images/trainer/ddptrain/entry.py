"""One rank from start to end: what surrounds the training loop of every level."""

import logging
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

from ddptrain.checkpoint_file import CheckpointError
from ddptrain.config import Config, parse
from ddptrain.dist import LaunchError, World, process_group
from ddptrain.files import DataError
from ddptrain.history import LogDirError
from ddptrain.preemption import StopVote
from ddptrain.report import AccuracyMissed, Diverged, Report

PREEMPTED_AND_SAVED = 75  # EX_TEMPFAIL: the same command goes on from here
TERMINATED = 128 + 15  # what a shell reports for SIGTERM

EXPLAINED = (DataError, LaunchError, CheckpointError, LogDirError, AccuracyMissed, Diverged)

log = logging.getLogger("ddptrain")


def run(
    program: str,
    train: Callable[[Config, World, StopVote, Report], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Read the options, join the other ranks, `train`; returns the exit code.

    `arguments` are those of the command line if None.
    """
    config = parse(program, arguments)
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    try:
        with process_group(timeout=timedelta(seconds=config.timeout_seconds)) as world:
            log.setLevel(logging.INFO if world.is_main else logging.WARNING)
            log.info(f"world size {world.size}, {world.launch.backend} on {world.device.type}")
            stop = StopVote()
            stop.listen()
            with Report(config, world) as report:
                return train(config, world, stop, report)
    except EXPLAINED:
        sys.tracebacklimit = 0  # what is to be done is in the message, not in our lines
        raise
