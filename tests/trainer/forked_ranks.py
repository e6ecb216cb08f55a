"""Forks ranks from a process that has imported torch, and has them train several times in a row.

python forked_ranks.py WORLD MODULE [OPTION …] [-- MODULE [OPTION …]] …, with MASTER_PORT: starting
ranks costs more than most trainings of the tests, and seven forked ones cost little more than one.
"""

import importlib
import os
import sys
from datetime import timedelta
from itertools import groupby

from ddptrain.config import parse
from ddptrain.dist import process_group
from ddptrain.preemption import StopVote
from ddptrain.report import Report

BETWEEN = "=== next"


def main(world: int, runs: list[list[str]]) -> int:
    os.environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    for module, *_ in runs:
        importlib.import_module(module)  # before the fork, once for all
    ranks = []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            os._exit(train(rank, runs))
        ranks.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in ranks)


def train(rank: int, runs: list[list[str]]) -> int:
    """All runs of one rank, in one process group; the first exit code that is not 0."""
    import logging

    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("ddptrain").setLevel(logging.WARNING if rank else logging.INFO)
    # The group is that of all runs, and so is its time-out: the least that one of them asks for.
    configs = [parse(module, options) for module, *options in runs]
    seconds = min([60.0, *(config.timeout_seconds for config in configs)])
    try:
        with process_group(timeout=timedelta(seconds=seconds)) as world:
            for (module, *_), config in zip(runs, configs, strict=True):
                if rank == 0:
                    print(BETWEEN, flush=True)
                run = importlib.import_module(module).train
                with Report(config, world) as report:
                    if code := run(config, world, StopVote(), report):
                        return int(code)
        return 0
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    groups = groupby(sys.argv[2:], lambda word: word == "--")
    sys.exit(main(int(sys.argv[1]), [list(words) for between, words in groups if not between]))
