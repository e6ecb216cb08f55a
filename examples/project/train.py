"""Tell two rings of points apart: a script with a package and a settings file of its own.

python train.py                                    # one process
ddpjob run train.py --nnodes 2                     # two, on this machine
ddpjob submit train.py --nnodes 2 --image IMAGE    # on a cluster; this folder is sent along
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from rings import points
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train, and go on from the checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    settings = json.loads(Path("settings.json").read_text())

    if "RANK" in os.environ:
        dist.init_process_group(os.environ.get("DDPJOB_BACKEND"))
    rank = dist.get_rank() if dist.is_initialized() else 0
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    gpu = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", gpu) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    net.to(device)
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"], momentum=0.9)
    inputs, targets = points(settings["points"], seed=rank)
    inputs, targets = inputs.to(device), targets.to(device)

    folder = os.environ.get("DDPJOB_CHECKPOINT_DIR")
    file = Path(folder, "rings.pt") if folder else None
    first = 0
    if file and file.exists():
        state = torch.load(file, map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, epochs):
        for batch in torch.randperm(len(inputs)).split(settings["batch"]):
            optimizer.zero_grad()
            outputs = model(inputs[batch]).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets[batch])
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(
                f"epoch {epoch + 1}/{epochs} loss {loss.item():.4f} of {world_size} ranks",
                flush=True,
            )
            if file:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "epoch": epoch}, file.with_suffix(".tmp"))
                file.with_suffix(".tmp").replace(file)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
