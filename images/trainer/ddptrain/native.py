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
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from ddptrain import checkpoint, rng
from ddptrain.config import Config, open_folder, progress_path
from ddptrain.data import Samples, global_batch_size, indices, load, steps_per_epoch
from ddptrain.dist import World
from ddptrain.entry import PREEMPTED_AND_SAVED, TERMINATED, AccuracyMissed, run
from ddptrain.model import network
from ddptrain.preemption import StopVote
from ddptrain.progress import ProgressFile

log = logging.getLogger("ddptrain")


def train(config: Config, world: World, stop: StopVote) -> int:
    """Train, evaluate and save; returns the exit code, the same on all ranks."""
    # Data: whole on every rank; in each step a rank takes its share of the global batch.
    data = load(config.data, config.data_dir, world.device)
    log.info(
        f"data: {data.name}, {len(data.train)} to train, {len(data.test)} to test, "
        f"sha256 {data.sha256}"
    )
    train_size = len(data.train)
    epoch_steps = steps_per_epoch(train_size, config.batch_size)
    total_steps = min(config.epochs * epoch_steps, config.max_steps or sys.maxsize)

    # Model: equal weights on all ranks, then for each rank a dropout of its own.
    rng.seed_all(config.seed)
    net = network(data.train.shape, dropout=config.dropout).to(world.device)
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr, weight_decay=0.01)
    warm_up(model, data.train)
    rng.seed_all(config.seed, 0, world.rank)

    # Checkpoint: what decides which batch comes next must be as it was; the rest may change.
    fixed = {"seed": config.seed, "batch_size": config.batch_size, "data": data.sha256}
    folder = open_folder(config, world)
    saving = checkpoint.is_kept(folder, world)
    first_step = 0
    if saving:
        first_step = checkpoint.load(folder, world, model=net, optimizer=optimizer, config=fixed)
    total_steps = max(total_steps, first_step)  # less was asked for than has been trained already

    # Loop: `step` counts through all epochs, so it is the only position there is to resume.
    progress = ProgressFile(progress_path(world))
    began = epoch_began = time.perf_counter()
    loss_sum = torch.zeros((), device=world.device)  # over this rank's samples of this epoch
    seen = 0  # samples of this epoch, over all ranks
    train_loss = speed = None
    for step in range(first_step, total_steps):
        epoch, epoch_step = divmod(step, epoch_steps)
        share = indices(
            train_size,
            seed=config.seed,
            epoch=epoch,
            step=epoch_step,
            global_batch=config.batch_size,
            rank=world.rank,
            world=world.size,
        )
        batch_size = global_batch_size(train_size, epoch_step, config.batch_size)
        batch = data.train.batch(share)
        loss = train_step(
            *(model, optimizer, batch, batch_size, world),
            accumulation=config.accumulation,
            bf16=config.bf16,
        )
        loss_sum += loss
        seen += batch_size
        done = step + 1

        if progress.due():
            progress.write(
                step=done,
                total_steps=total_steps,
                epoch=done / epoch_steps,
                loss=float(loss) / len(share),  # rank 0's share stands for the batch
                samples_per_second=seen / (time.perf_counter() - epoch_began),
            )

        if epoch_step + 1 == epoch_steps or done == total_steps:
            dist.all_reduce(loss_sum)
            train_loss = float(loss_sum) / seen
            speed = seen / (time.perf_counter() - epoch_began)
            correct, tested = evaluate(net, data.test, world)
            log.info(
                f"epoch {epoch + 1}/{config.epochs} step {done}/{total_steps} "
                f"train loss {train_loss:.4f} test accuracy {correct / tested:.4f} "
                f"{speed:.0f} samples/s"
            )
            loss_sum.zero_()
            seen, epoch_began = 0, time.perf_counter()

        stopping = stop.agreed(world) and done < total_steps
        if saving and (stopping or done % config.checkpoint_every == 0 or done == total_steps):
            checkpoint.save(folder, world, step=done, model=net, optimizer=optimizer, config=fixed)
        if stopping:
            log.info(f"stopped by SIGTERM after step {done}/{total_steps}")
            return PREEMPTED_AND_SAVED if saving else TERMINATED
    stop.close()

    # Result: evaluated again, as a finished training that is resumed has no steps left.
    correct, tested = evaluate(net, data.test, world)
    accuracy = correct / tested
    progress.write(
        step=total_steps,
        total_steps=total_steps,
        epoch=total_steps / epoch_steps,
        loss=train_loss,
        samples_per_second=speed,
        metrics={"test_accuracy": accuracy},
    )
    log.info(
        f"test accuracy {accuracy:.4f} ({correct}/{tested}) after {total_steps} steps, "
        f"world size {world.size}, {time.perf_counter() - began:.1f} s"
    )
    if accuracy < config.target_accuracy:
        raise AccuracyMissed(f"test accuracy {accuracy:.4f} is below {config.target_accuracy}")
    return 0


def train_step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    batch_size: int,
    world: World,
    *,
    accumulation: int = 1,
    bf16: bool = False,
) -> torch.Tensor:
    """One optimizer step on this rank's `batch`; returns its loss, summed over the samples.

    `batch_size` counts the samples of all ranks. Shares may differ in size or be empty. The share
    goes through the model in `accumulation` parts at most, after the last of which the ranks add up
    their gradients, once.
    """
    images, labels = batch  # (B, C, H, W) float32, (B,) int64
    parts = list(zip(images.chunk(accumulation), labels.chunk(accumulation), strict=True))
    total = torch.zeros((), device=world.device)
    optimizer.zero_grad()
    for number, (part, truth) in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else model.no_sync():
            with torch.autocast(world.device.type, torch.bfloat16, enabled=bf16):
                loss = F.nll_loss(model(part), truth, reduction="sum")
            # DDP divides the sum of the gradients by the number of ranks. With this factor what
            # comes out is the mean over the global batch, exactly; a mean of the ranks' means would
            # not be.
            torch.autograd.backward(loss * (world.size / batch_size))
        total += loss.detach()
    optimizer.step()
    return total


@torch.no_grad()
def evaluate(net: torch.nn.Module, samples: Samples, world: World) -> tuple[int, int]:
    """Correctly classified samples and samples, over all ranks; each is counted exactly once."""
    net.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=world.device)  # correct, tested
    mine = torch.arange(len(samples))[world.rank :: world.size]
    for start in range(0, len(mine), 1024):
        images, labels = samples.batch(mine[start : start + 1024])
        counts[0] += (net(images).argmax(dim=1) == labels).sum()
        counts[1] += len(labels)
    net.train()
    dist.all_reduce(counts)
    correct, tested = counts.tolist()
    return correct, tested


def warm_up(model: torch.nn.Module, samples: Samples) -> None:
    """One forward and backward pass for nothing: DDP orders its gradients anew after the first.

    A resumed run would otherwise add them up in the first order where the run it continues used
    the second, and with three ranks or more the last bits would differ.
    """
    images, _ = samples.batch(torch.zeros(1, dtype=torch.int64))
    torch.autograd.backward(model(images).sum())
    model.zero_grad()


@record
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank from start to end; returns its exit code."""
    return run("ddptrain.native", train, arguments)


if __name__ == "__main__":
    sys.exit(main())
