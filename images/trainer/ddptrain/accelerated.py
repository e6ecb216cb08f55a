"""The training of `ddptrain.native` with Hugging Face Accelerate: same data order, same numbers.

    python -m ddptrain.accelerated                                     # one process
    torchrun --standalone --nproc-per-node 2 -m ddptrain.accelerated   # two processes
    accelerate launch --multi_gpu --num_processes 2 -m ddptrain.accelerated   # the same
    notebook_launcher(ddptrain.accelerated.main, [["--epochs", "2"]], num_processes=2)

The processes are joined before Accelerate sees them, on CPUs too, and their number is checked.
`diff native.py accelerated.py` shows what Accelerate takes over: wrapping the model, sharding the
data, gathering predictions. Options, checkpoints and output are those of `native`, and each can
resume from the other's checkpoint.

A script of your own that leaves the joining to Accelerate needs ACCELERATE_USE_CPU=true on CPUs, as
a DDPJob sets it: without it each process trains alone.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.utils import DistributedDataParallelKwargs
from torch.amp import GradScaler
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import BatchSampler, DataLoader, Sampler

from ddptrain import checkpoint, rng
from ddptrain.config import Config, open_folder
from ddptrain.data import Samples, epoch_order, global_batch_size, load, steps_per_epoch
from ddptrain.dist import LaunchError, World, leave
from ddptrain.entry import PREEMPTED_AND_SAVED, TERMINATED, run
from ddptrain.model import network
from ddptrain.native import warm_up
from ddptrain.precision import make_scaler
from ddptrain.preemption import StopVote
from ddptrain.report import Report
from ddptrain.sharing import State

log = logging.getLogger("ddptrain")


def train(config: Config, world: World, stop: StopVote, report: Report) -> int:
    """Train, evaluate and save; returns the exit code, the same on all ranks."""
    scaler = make_scaler(world.device, config.precision)
    accelerator = accelerate(config, world)
    use_scaler(scaler, accelerator)

    # Data: the loader yields global batches, of which prepare() gives every rank a slice.
    data = load(config.data, config.data_dir, world.device)
    log.info(f"data: {data}")
    train_size = len(data.train)
    epoch_steps = steps_per_epoch(train_size, config.batch_size)
    total_steps = min(config.epochs * epoch_steps, config.max_steps or sys.maxsize)
    order = EpochOrder(train_size, config.seed)
    train_loader = loader(data.train, BatchSampler(order, config.batch_size, drop_last=False))
    in_order = BatchSampler(range(len(data.test)), 128 * world.size, drop_last=False)
    test_loader = loader(data.test, in_order)

    # Model: equal weights on all ranks, then for each rank a dropout of its own.
    rng.seed_all(config.seed)
    net = network(data.train.shape, dropout=config.dropout)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.lr, weight_decay=0.01)
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        net, optimizer, train_loader, test_loader
    )
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

    # Loop: `done` counts through all epochs, so it is the only position there is to resume.
    report.begin(model, optimizer, scaler, epoch_steps=epoch_steps, total_steps=total_steps)
    done, counts = first_step, None  # correct and tested samples, of the last evaluation
    while done < total_steps:
        epoch, skipped = divmod(done, epoch_steps)
        order.set_epoch(epoch)
        # Accelerate's loader sets an epoch too as it begins, of its own count: 0 in a resumed run.
        train_loader.set_epoch(epoch)
        left = skip_first_batches(train_loader, skipped) if skipped else train_loader
        for step, batch in enumerate(report.timed(left), start=skipped):
            batch_size = global_batch_size(train_size, step, config.batch_size)
            loss, counted = train_step(
                *(accelerator, model, optimizer, batch, batch_size, world),
                accumulation=config.accumulation,
            )
            done += 1
            report.step(done, loss, counted, batch_size)
            if report.epoch_ends(done):
                with report.paused():
                    counts = evaluate(accelerator, model, test_loader)
                    report.evaluated(done, *counts)

            stopping = stop.agreed(world) and done < total_steps
            if saving and (stopping or done % config.checkpoint_every == 0 or done == total_steps):
                with report.paused():
                    checkpoint.save(folder, world, step=done, **state)
            if stopping:
                log.info(f"stopped by SIGTERM after step {done}/{total_steps}")
                return PREEMPTED_AND_SAVED if saving else TERMINATED
            if done == total_steps:
                break
    stop.close()

    # Result: a finished training that is resumed has no steps left, so nothing is evaluated yet.
    report.finish(*(counts or evaluate(accelerator, model, test_loader)))
    return 0


def train_step(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    batch_size: int,
    world: World,
    *,
    accumulation: int = 1,
) -> tuple[torch.Tensor, int]:
    """One optimizer step on this rank's `batch`; its loss, summed over its samples, which follow.

    `batch_size` counts the samples of all ranks. The share goes through the model in `accumulation`
    parts at most, after the last of which the ranks add up their gradients, once. Without dropout
    the result is that of one part, up to rounding; dropout draws other masks for parts.
    """
    images, labels = batch  # (B, C, H, W) float32, (B,) int64
    # So that all ranks get equal shares, Accelerate fills an epoch's last batch up with samples
    # that have been in the epoch before. They must not count, or the result would depend on the
    # number of ranks.
    counted = min(len(labels), max(0, batch_size - len(labels) * world.rank))
    images, labels = images[:counted], labels[:counted]
    parts = list(zip(images.chunk(accumulation), labels.chunk(accumulation), strict=True))
    total = torch.zeros((), device=world.device)
    optimizer.zero_grad()
    for number, (part, truth) in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else accelerator.no_sync(model):
            loss = F.nll_loss(model(part), truth, reduction="sum")
            # DDP divides the sum of the gradients by the number of ranks: with this factor what
            # comes out is the mean over the global batch.
            accelerator.backward(loss * (world.size / batch_size))
        total += loss.detach()
    optimizer.step()
    return total, counted


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, model: torch.nn.Module, samples: DataLoader[torch.Tensor]
) -> tuple[int, int]:
    """Correctly classified samples and samples, over all ranks; each is counted exactly once."""
    model.eval()
    correct = tested = 0
    for images, labels in samples:
        predicted = model(images).argmax(dim=1)
        # Leaves out the samples that were added to fill the last batch up. An accuracy of each
        # rank's own predictions over the whole test set would be 1/W of the truth.
        predicted, labels = accelerator.gather_for_metrics((predicted, labels))
        correct += int((predicted == labels).sum())
        tested += len(labels)
    model.train()
    return correct, tested


def accelerate(config: Config, world: World) -> Accelerator:
    """Accelerate, on the process group that exists.

    Raises LaunchError where it would train something else than the other levels.
    """
    if config.batch_size % world.size:
        raise LaunchError(
            f"--batch-size is {config.batch_size}, but must be a multiple of the number of "
            f"processes, {world.size}: Accelerate gives each an equal part"
        )
    accelerator = Accelerator(
        cpu=world.device.type == "cpu",
        mixed_precision=config.precision,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    if accelerator.num_processes != world.size:
        raise LaunchError(
            f"Accelerate sees {accelerator.num_processes} processes, but there are {world.size}: "
            "an Accelerator has been made in this process before"
        )
    return accelerator


def use_scaler(scaler: GradScaler, accelerator: Accelerator) -> None:
    """Have Accelerate scale the loss with `scaler`, which is the one in our checkpoints.

    It has one of its own on GPUs. On CPUs it would take fp16 for float32, and not say so.
    """
    if scaler.is_enabled():
        accelerator.scaler, accelerator.native_amp = scaler, True


class EpochOrder(Sampler[int]):
    """All samples in the order of an epoch, the same on all ranks."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed, self._epoch = samples, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """From the next iteration on, the order is that of `epoch`."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        return iter(epoch_order(self._samples, self._seed, self._epoch).tolist())


def loader(samples: Samples, batches: BatchSampler) -> DataLoader[torch.Tensor]:
    """A DataLoader that takes whole batches from memory."""

    def collate(chosen: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return samples.batch(torch.tensor(chosen))

    # A generator of its own: each iteration draws a seed for workers, even where there are none.
    return DataLoader(
        range(len(samples)),  # type: ignore[arg-type]
        batch_sampler=batches,
        collate_fn=collate,
        generator=torch.Generator(),
    )


@record
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank from start to end; returns its exit code."""
    return run("ddptrain.accelerated", train, arguments)


if __name__ == "__main__":
    leave(main() or 0)
