"""Somebody else's script that trains for ever, and on request uses up its memory.

Each process says when it has made its first step.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

REQUEST = "/tmp/eat"  # exists: take memory until somebody ends it
CHUNK = 64 * 2**20  # bytes


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    is_first, eaten = True, []
    while True:
        model(torch.randn(64, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_first:
            print("first step", dist.get_rank(), time.time(), flush=True)
            is_first = False
        time.sleep(0.05)
        if os.path.exists(REQUEST):
            os.unlink(REQUEST)  # once: the next process may be in the same pod
            while True:
                eaten.append(b"x" * CHUNK)


if __name__ == "__main__":
    main()
