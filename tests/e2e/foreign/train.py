"""Somebody else's script: DDP from the environment, no progress file, no @record, no checkpoint."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--raise-on-rank", type=int)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    truth = torch.arange(16.0).unsqueeze(1) / 16
    for step in range(options.steps):
        inputs = torch.randn(64, 16)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        time.sleep(0.1)
        if step == options.steps // 2 and rank == options.raise_on_rank:
            raise ValueError(f"rank {rank} has seen enough")
    if rank == 0:
        print(f"world {world} host {os.uname().nodename} loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
