"""Train a small network on small images with plain PyTorch DDP: the whole loop, nothing hidden.

    python -m ddptrain.native                                        # one process
    torchrun --standalone --nproc-per-node 2 -m ddptrain.native      # two processes, one machine
    torchrun --nnodes 2 --node-rank 0 --master-addr HOST -m ddptrain.native   # two machines: HOST
    torchrun --nnodes 2 --node-rank 1 --master-addr HOST -m ddptrain.native   # and the other

It uses NCCL where there are GPUs and gloo where there are none. Without --data-dir it trains on the
bundled digits: expect a test accuracy of 0.99.
The batch size is that of all processes together, so their number does not change the result.
Exit codes: 0 trained, 1 error, 2 wrong option, 75 stopped by SIGTERM and saved, 143 not saved.
"""

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.amp import GradScaler
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from ddptrain import checkpoint, loaders, rng
from ddptrain.config import Config, open_folder
from ddptrain.data import Samples, global_batch_size, indices, load, steps_per_epoch
from ddptrain.dist import World, leave
from ddptrain.entry import PREEMPTED_AND_SAVED, TERMINATED, run
from ddptrain.model import network
from ddptrain.precision import autocast, make_scaler
from ddptrain.preemption import StopVote
from ddptrain.report import Report
from ddptrain.sharing import State

log = logging.getLogger("ddptrain")


def train(config: Config, world: World, stop: StopVote, report: Report) -> int:
    """Train, evaluate and save; returns the exit code, the same on all ranks."""
    # Data: whole on every rank; in each step a rank takes its share of the global batch.
    data = load(config.data, config.data_dir, world.device)
    log.info(f"data: {data}")
    train_size = len(data.train)
    epoch_steps = steps_per_epoch(train_size, config.batch_size)
    total_steps = min(config.epochs * epoch_steps, config.max_steps or sys.maxsize)

    # Model: equal weights on all ranks, then for each rank a dropout of its own.
    rng.seed_all(config.seed)
    net = network(data.train.shape, dropout=config.dropout).to(world.device)
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr, weight_decay=0.01)
    scaler = make_scaler(world.device, config.precision)
    warm_up(model, data.train.any_image())
    rng.seed_all(config.seed, 0, world.rank)

    # Checkpoint: what decides which batch comes next must be as it was; the rest may change.
    fixed = {"seed": config.seed, "batch_size": config.batch_size, "data": data.sha256}
    state: State = {"model": net, "optimizer": optimizer, "scaler": scaler, "config": fixed}
    folder = open_folder(config, world)
    saving = checkpoint.is_kept(folder, world)
    first_step = 0
    if saving:
        first_step = checkpoint.load(folder, world, **state)
    total_steps = max(total_steps, first_step)  # less was asked for than has been trained already

    # Loop: `step` counts through all epochs, so it is the only position there is to resume.
    report.begin(model, optimizer, scaler, epoch_steps=epoch_steps, total_steps=total_steps)
    shares = (
        indices(
            train_size,
            seed=config.seed,
            epoch=step // epoch_steps,
            step=step % epoch_steps,
            global_batch=config.batch_size,
            rank=world.rank,
            world=world.size,
        )
        for step in range(first_step, total_steps)
    )
    counts = None  # correct and tested samples, of the last evaluation
    batches = report.timed(data.train.batch(share) for share in shares)
    for step, batch in enumerate(batches, start=first_step):
        batch_size = global_batch_size(train_size, step % epoch_steps, config.batch_size)
        loss = train_step(
            *(model, optimizer, batch, batch_size, world),
            accumulation=config.accumulation,
            precision=config.precision,
            scaler=scaler,
        )
        done = step + 1
        report.step(done, loss, len(batch[1]), batch_size)
        if report.epoch_ends(done):
            with report.paused():
                counts = evaluate(net, data.test, world)
                report.evaluated(done, *counts)

        stopping = stop.agreed(world) and done < total_steps
        if saving and (stopping or done % config.checkpoint_every == 0 or done == total_steps):
            with report.paused():
                checkpoint.save(folder, world, step=done, **state)
        if stopping:
            log.info(f"stopped by SIGTERM after step {done}/{total_steps}")
            return PREEMPTED_AND_SAVED if saving else TERMINATED
    stop.close()

    # Result: a finished training that is resumed has no steps left, so nothing is evaluated yet.
    report.finish(*(counts or evaluate(net, data.test, world)))
    return 0


def train_step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    batch_size: int,
    world: World,
    *,
    accumulation: int = 1,
    precision: str = "no",
    scaler: GradScaler | None = None,
) -> torch.Tensor:
    """One optimizer step on this rank's `batch`; returns its loss, summed over the samples.

    `batch_size` counts the samples of all ranks. Shares may differ in size or be empty. The share
    goes through the model in `accumulation` parts at most, after the last of which the ranks add up
    their gradients, once. Without dropout the result is that of one part, up to rounding; dropout
    draws other masks for parts.
    With `precision` fp16 it needs a `scaler`. A step that the scaler skips counts like any other,
    for a schedule of the learning rate too, since a resume finds the next batch by that number.
    """
    scaler = scaler or GradScaler(enabled=False)
    images, labels = batch  # (B, C, H, W) float32, (B,) int64
    parts = list(zip(images.chunk(accumulation), labels.chunk(accumulation), strict=True))
    total = torch.zeros((), device=world.device)
    optimizer.zero_grad()
    for number, (part, truth) in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else model.no_sync():
            with autocast(world.device, precision):
                loss = F.nll_loss(model(part), truth, reduction="sum")
            # DDP divides the sum of the gradients by the number of ranks. With this factor what
            # comes out is the mean over the global batch, exactly; a mean of the ranks' means would
            # not be.
            torch.autograd.backward(scaler.scale(loss * (world.size / batch_size)))
        total += loss.detach()
    # Clipping would go here, after scaler.unscale_(optimizer). An infinite gradient of one rank is
    # in the sum that all ranks have, so all skip the same steps and keep the same scale.
    scaler.step(optimizer)
    scaler.update()
    return total


def evaluate(net: torch.nn.Module, samples: Samples, world: World) -> tuple[int, int]:
    """Correctly classified samples and samples, over all ranks; each is counted exactly once."""
    mine = torch.arange(len(samples), device=world.device)[world.rank :: world.size]
    starts = range(0, len(mine), 1024)
    return loaders.evaluate(net, (samples.batch(mine[s : s + 1024]) for s in starts), world)


def warm_up(model: torch.nn.Module, image: torch.Tensor) -> None:
    """One pass forward and back with `image` (1, C, H, W): DDP orders its gradients anew after it.

    A resumed run would otherwise add them up in the first order where the run it continues used
    the second, and with three ranks or more the last bits would differ.
    """
    torch.autograd.backward(model(image).sum())
    model.zero_grad()


@record
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank from start to end; returns its exit code."""
    return run("ddptrain.native", train, arguments)


if __name__ == "__main__":
    leave(main() or 0)
