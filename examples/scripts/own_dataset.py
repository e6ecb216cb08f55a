"""Train on a dataset and transforms of your own: here torchvision's MNIST, turned and shifted.

    python own_dataset.py --data-dir /data                                      # one process
    torchrun --standalone --nproc-per-node 2 own_dataset.py --data-dir /data    # two

/data/MNIST/raw holds the four files of MNIST, unpacked. As a job: examples/own-dataset.yaml.
What you would replace by your own: `datasets`, the network, the optimizer.
"""

import argparse
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torchvision import transforms
from torchvision.datasets import MNIST

from ddptrain import checkpoint, loaders, rng
from ddptrain.config import positive, seed
from ddptrain.data import global_batch_size, steps_per_epoch
from ddptrain.dist import World, process_group
from ddptrain.model import BasicNet
from ddptrain.native import train_step, warm_up
from ddptrain.preemption import StopVote

log = logging.getLogger("ddptrain")


def datasets(root: str) -> tuple[MNIST, MNIST]:
    """The train set, whose images differ a little in each epoch, and the test set as it is."""
    pixels = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    moved = transforms.RandomAffine(degrees=10, translate=(0.1, 0.1))
    train_set = MNIST(root, train=True, transform=transforms.Compose([moved, *pixels]))
    return train_set, MNIST(root, train=False, transform=transforms.Compose(pixels))


def train(options: argparse.Namespace, world: World) -> int:
    """Train, evaluate and save; returns the exit code, the same on all ranks."""
    stop = StopVote()
    stop.listen()
    train_set, test_set = datasets(options.data_dir)
    epoch_steps = steps_per_epoch(len(train_set), options.batch_size)

    # Model: anything that returns log-probabilities; its dropout differs from rank to rank.
    rng.seed_all(options.seed)
    net = BasicNet(side=28).to(world.device)
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    warm_up(model, torch.zeros(1, 1, 28, 28, device=world.device))
    rng.seed_all(options.seed, 0, world.rank)

    # Checkpoint: go on where the last run stopped, if it had the same data and seed.
    folder = None
    if options.checkpoint_dir and world.is_main:
        path = Path(options.checkpoint_dir)
        folder = checkpoint.CheckpointFolder.of(path, world.launch, keep=3)
        folder.claim()
    saving = checkpoint.is_kept(folder, world)
    fixed = {"seed": options.seed, "batch_size": options.batch_size, "samples": len(train_set)}
    state = {"model": net, "optimizer": optimizer, "config": fixed}
    first_step = checkpoint.load(folder, world, **state) if saving else 0
    total_steps = max(options.epochs * epoch_steps, first_step)

    test_loader = loaders.evaluation_loader(test_set, world=world, workers=options.workers)
    batches = loaders.batches(
        train_set,
        batch_size=options.batch_size,
        seed=options.seed,
        first_step=first_step,
        total_steps=total_steps,
        world=world,
        workers=options.workers,
    )
    counts = None  # correct and tested samples, of the last evaluation
    for step, batch in enumerate(batches, start=first_step):
        batch_size = global_batch_size(len(train_set), step % epoch_steps, options.batch_size)
        loss = train_step(model, optimizer, batch, batch_size, world)
        done = step + 1
        if done % epoch_steps == 0:
            counts = loaders.evaluate(net, test_loader, world)
            correct, tested = counts
            mean = float(loss) / max(1, len(batch[1]))  # of rank 0's last share
            log.info(f"step {done}/{total_steps} loss {mean:.4f} correct {correct}/{tested}")
        stopping = stop.agreed(world) and done < total_steps
        if saving and (stopping or done % 100 == 0 or done == total_steps):
            checkpoint.save(folder, world, step=done, **state)
        if stopping:
            return 75 if saving else 143  # as ddptrain: asked to stop, and saved or not
    stop.close()
    if not checkpoint.is_finite(net):
        raise FloatingPointError("weights are NaN or infinite: nothing has been learned")
    correct, tested = counts or loaders.evaluate(net, test_loader, world)
    log.info(f"test accuracy {correct / tested:.4f} ({correct}/{tested}) after {total_steps} steps")
    return 0


@record
def main() -> int:
    """Run one rank from start to end; returns its exit code."""
    parser = argparse.ArgumentParser()
    for name in ("data", "checkpoint"):
        folder = os.environ.get(f"DDPJOB_{name.upper()}_DIR")
        parser.add_argument(f"--{name}-dir", default=folder, required=not folder and name == "data")
    parser.add_argument("--epochs", type=positive, default=5)
    parser.add_argument("--batch-size", type=positive, default=64, help="of all processes together")
    parser.add_argument("--workers", type=int, default=1, help="that load, for each process")
    parser.add_argument("--seed", type=seed, default=1)
    options = parser.parse_args()
    if options.workers < 0:
        parser.error(f"--workers must be 0 or more, got {options.workers}")
    if not Path(options.data_dir, "MNIST", "raw").is_dir():
        fetch = f"python -m ddptrain fetch mnist --to {options.data_dir}"
        parser.error(f"--data-dir: {options.data_dir} has no MNIST/raw: {fetch}")
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    with process_group(timeout=timedelta(minutes=5)) as world:
        log.setLevel(logging.INFO if world.is_main else logging.WARNING)
        return train(options, world)


if __name__ == "__main__":
    sys.exit(main())
