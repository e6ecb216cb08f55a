"""Forks ranks from a process that has imported torch: seven of them cost little more than one.

python forked_ranks.py MODULE WORLD [OPTION …]: the exit code is 0 if all ranks' codes are.
"""

import importlib
import os
import socket
import sys

import torch  # noqa: F401  # before the fork


def main(module: str, world: int, options: list[str]) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    train = importlib.import_module(module).main
    ranks = []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            code = train(options)
            sys.stdout.flush()
            os._exit(code)
        ranks.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
