"""Somebody else's script that trains for ever, and on request fails.

Each process says when it has made its first step. With CHECKPOINT_MB it loads so much before, from
a file of its own at /disk, which it makes the first time. A file `eat` in the folder REQUESTS asks
for an end of its memory, and a file `raise` for an exception.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

REQUESTS = os.environ.get("REQUESTS", "/tmp")
CHUNK = 64 * 2**20  # bytes


def load_checkpoint(size_mb: int) -> None:
    path = f"/disk/{os.environ['RANK']}.pt"
    if not os.path.exists(path):
        torch.save({"weights": torch.zeros(size_mb * 250_000)}, path + ".tmp")
        os.rename(path + ".tmp", path)
    state = torch.load(path, weights_only=True)
    assert state["weights"].nbytes == size_mb * 10**6


def is_asked(request: str) -> bool:
    """Once: the next process may be in the same pod."""
    try:
        os.unlink(f"{REQUESTS}/{request}")
    except FileNotFoundError:
        return False
    return True


def main() -> None:
    if "CHECKPOINT_MB" in os.environ:
        load_checkpoint(int(os.environ["CHECKPOINT_MB"]))
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    is_first, eaten = True, list[bytes]()
    while True:
        model(torch.randn(64, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_first:
            line = f"first step {dist.get_rank()} {time.time()}\n"
            os.write(1, line.encode())  # in one piece: another rank writes to the same log
            is_first = False
        time.sleep(0.05)
        if is_asked("raise"):
            raise RuntimeError("as asked")
        while eaten or is_asked("eat"):
            eaten.append(b"x" * CHUNK)


if __name__ == "__main__":
    main()
