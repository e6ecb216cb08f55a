"""One process of one measurement: steps on synthetic data, timed; memory; a bare all-reduce."""

import json
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import connection, parent_process
from pathlib import Path
from statistics import median
from typing import NoReturn

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ddptrain.compare.table import DDP, PARALLEL, Measurement, Variant, bus_bandwidth
from ddptrain.dist import World, barrier, process_group
from ddptrain.gpt import GPT, GPT2, loss_sum, synthetic_tokens
from ddptrain.memory import is_out_of_memory
from ddptrain.model import CLASSES, network
from ddptrain.precision import autocast, make_scaler
from ddptrain.rng import seed_all

SEED = 1
PROBES, PROBE_STEPS = 3, 4  # rounds of bare all-reduces, of which the fastest counts; in each
LOGGED_STEPS = 5  # after the timed ones, for DDP's log: on GPUs it slows a step
TIMEOUT = timedelta(minutes=10)  # a step of a large model on a slow machine is far below
ERROR, OUT_OF_MEMORY = "error.txt", "out-of-memory"  # files for the parent
SHAPES = {"basicnet": (1, 28, 28), "resnet": (3, 32, 32)}

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Work:
    """What one process is to measure."""

    model: str  # a key of SHAPES, or gpt2
    variant: Variant
    batch_size: int  # samples of all processes together
    length: int  # tokens of a sample; for gpt2 alone
    steps: int
    warmup: int
    precision: str  # a key of precision.NAMES


@dataclass(frozen=True)
class Task:
    """A network, a batch of synthetic samples for it, and a loss that is a sum over them."""

    net: nn.Module
    inputs: torch.Tensor  # (B, C, H, W) float32, or (B, T) int64
    targets: torch.Tensor  # (B,) or (B, T) int64
    loss: Loss


def main(rank: int, work: Work, port: int, folder: str) -> None:
    """Join the others at `port` of this machine, measure, and leave the result in `folder`."""
    die_with_parent()
    os.environ.update(environment(rank, work.variant.processes, port))
    os.environ.pop("DDPJOB_WORLD_SIZE", None)  # that of the job around, if this runs in one
    torch.set_num_threads(work.variant.threads)
    try:
        with process_group(timeout=TIMEOUT) as world:
            measured = measure(work, world)
    except Exception as error:
        fail(error, folder)
    Path(folder, f"{rank}.json").write_text(json.dumps(asdict(measured)))


def environment(rank: int, processes: int, port: int) -> dict[str, str]:
    """What torchrun would set for a rank on this machine, and the way there for gloo."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {
        "GLOO_SOCKET_IFNAME": loopback,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def fail(error: Exception, folder: str) -> NoReturn:
    """Leave in `folder` why this process ends, and end it.

    Only the first error is kept: those of the others follow from it. It ends at once, since an
    interpreter that shuts down waits for what NCCL still has to do with processes that are gone.
    """
    if is_out_of_memory(error) or "out of memory" in str(error):  # NCCL's has no type of its own
        Path(folder, OUT_OF_MEMORY).touch()
    with suppress(FileExistsError), Path(folder, ERROR).open("x") as file:
        traceback.print_exception(error, file=file)
    os._exit(1)


def die_with_parent() -> None:
    """End this process as soon as its parent has ended, however that came about.

    A thread waits for it, since the main thread may be inside a collective, where no signal handler
    of Python runs.
    """
    parent = parent_process()
    assert parent is not None

    def wait(sentinel: int) -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=wait, args=(parent.sentinel,), daemon=True).start()


def measure(work: Work, world: World) -> Measurement:
    """All figures of this rank; each rank calls it, and they go through it together."""
    seed_all(SEED)
    task = share(build(work), world)
    net = task.net.to(world.device).train()
    model = wrap(net, work.variant)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    scaler = make_scaler(world.device, work.precision)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(world.device, work.precision):
            loss = task.loss(model(task.inputs), task.targets)
        # The mean over the global batch, as in native.train_step.
        torch.autograd.backward(scaler.scale(loss * (world.size / work.batch_size)))
        scaler.step(optimizer)
        scaler.update()

    warm = 0
    while warm < work.warmup:  # steps that the scaler skips, until it has its scale, come on top
        scale = scaler.get_scale()
        step()
        warm += scaler.get_scale() >= scale
    seconds = timed(step, work.steps, world)
    peak = peak_bytes(world.device, work.variant.gpus)  # before the probe takes memory too
    gradients = sum(p.numel() * p.element_size() for p in net.parameters())
    return Measurement(
        step_seconds=seconds,
        peak_bytes=peak,
        gradient_bytes=gradients,
        bus_bytes_per_second=probe(gradients, world) if world.size > 1 else None,
        hidden=hidden(model, step) if world.size > 1 else None,
    )


def build(work: Work) -> Task:
    """The network and a global batch for it, the same on every rank of every variant."""
    if work.model == "gpt2":
        tokens = synthetic_tokens(
            work.batch_size, work.length + 1, vocabulary=GPT2.vocabulary, seed=SEED
        )
        return Task(GPT(GPT2), tokens[:, :-1], tokens[:, 1:], loss_sum)
    shape = SHAPES[work.model]
    images = torch.randn(work.batch_size, *shape)
    labels = torch.randint(CLASSES, (work.batch_size,))
    return Task(network(shape), images, labels, nll_sum)


def nll_sum(logs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of log-probabilities (B, 10) for labels (B,), summed over the batch."""
    return F.nll_loss(logs, labels, reduction="sum")


def share(task: Task, world: World) -> Task:
    """`task` with this rank's part of the batch, on this rank's device."""
    mine = slice(world.rank, None, world.size)
    inputs, targets = (whole[mine].to(world.device) for whole in (task.inputs, task.targets))
    return Task(task.net, inputs.contiguous(), targets.contiguous(), task.loss)


def wrap(net: nn.Module, variant: Variant) -> nn.Module:
    """`net` in the wrapper that the variant is about."""
    if variant.kind == PARALLEL:
        return DataParallel(net, device_ids=list(range(variant.gpus)))
    if variant.kind == DDP:
        return DistributedDataParallel(net, gradient_as_bucket_view=True)
    return net


def timed(step: Callable[[], None], steps: int, world: World) -> float:
    """Mean seconds of a step of this rank; all ranks start at once.

    Nothing waits for the GPU in between: a training does not either.
    """
    barrier(world.control)
    began = now(world.device)
    for _ in range(steps):
        step()
    return (now(world.device) - began) / steps


def now(device: torch.device) -> float:
    """Seconds on a clock, when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_bytes(device: torch.device, gpus: int) -> int:
    """Most memory that this process has had in use: on its GPUs the fullest, else resident.

    On Linux from /proc: getrusage would count what the parent had when it started this process.
    """
    if device.type == "cuda":
        return max(map(torch.cuda.max_memory_allocated, range(device.index, device.index + gpus)))
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)


def probe(size: int, world: World) -> float:
    """Bus bandwidth, bytes per second, of a bare all-reduce of `size` bytes: the best of a few."""
    numbers = torch.zeros(size // 4, device=world.device)  # float32

    def all_reduce() -> None:
        dist.all_reduce(numbers)

    all_reduce()  # the first one connects
    fastest = min(timed(all_reduce, PROBE_STEPS, world) for _ in range(PROBES))
    return bus_bandwidth(size, fastest, world.size)


def hidden(model: nn.Module, step: Callable[[], None]) -> float | None:
    """Of the time from a step's first all-reduce to the end of its last, the share in backward.

    From DDP's log, which is no public interface of torch: None where it has no such figures.
    """
    if not isinstance(model, DistributedDataParallel):
        return None
    model._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
    shares = []
    step()  # the log is one step behind
    for _ in range(LOGGED_STEPS):
        step()
        log = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        overlap = log.get("backward_compute_comm_overlap_time", 0)
        whole = log.get("backward_comm_time", 0)
        if whole > 0:
            shares.append(overlap / whole)
    return median(shares) if shares else None
