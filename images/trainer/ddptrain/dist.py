"""Who am I among the processes of this training: the environment contract and the process group.

torchrun (and any `env://` launcher) sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
Without RANK the script is one process, no launcher needed. DDPJOB_* variables are optional:
DDPJOB_BACKEND (nccl: GPUs, gloo: CPUs), DDPJOB_WORLD_SIZE (what the job expects), DDPJOB_ATTEMPT,
DDPJOB_ROUND.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from os import environ
from types import TracebackType
from typing import NoReturn

import torch
import torch.distributed as dist

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

DISK_TIMEOUT = timedelta(hours=1)  # enough for 240 GB at 70 MB/s; a dead rank is noticed at once


class LaunchError(ValueError):
    """The environment does not describe a process group that this process can join."""


@dataclass(frozen=True)
class Launch:
    """What the environment says about this process."""

    rank: int  # 0 … size-1, over all nodes
    size: int  # processes in all, over all nodes
    local_rank: int  # 0 … processes on this node - 1; picks the GPU
    backend: str  # nccl or gloo
    job: str  # tells jobs apart in a shared checkpoint folder; "" outside a DDPJob
    attempt: int  # 0, 1, …: of the job; each has new pods
    launched: bool  # False: one process without a launcher
    round: int = 0  # 0, 1, …: of the attempt; each has new processes in its pods


@dataclass(frozen=True)
class World:
    """A running process group; `control` and `disk` carry CPU tensors and are always gloo."""

    launch: Launch
    device: torch.device
    control: dist.ProcessGroup  # small tensors: nobody keeps the others waiting
    disk: dist.ProcessGroup  # the same ranks, where they wait for the main process's disk

    @property
    def rank(self) -> int:
        """This process's number among all processes of all nodes."""
        return self.launch.rank

    @property
    def size(self) -> int:
        """Number of processes of all nodes."""
        return self.launch.size

    @property
    def is_main(self) -> bool:
        """True in the one process that writes files and speaks."""
        return self.rank == 0


def read_environment(environment: Mapping[str, str], *, gpus: int) -> Launch:
    """What `environment` says, on a machine where `gpus` GPUs are visible.

    Raises LaunchError with the variable, its value and the rule.
    """
    launched = "RANK" in environment
    size = _number(environment, "WORLD_SIZE", 1) if launched else 1
    rank = _number(environment, "RANK", 0)
    _check_size(size, environment)
    if not rank < size:
        raise LaunchError(f"RANK is {rank}, but must be below WORLD_SIZE, which is {size}")
    if launched and size > 1:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if missing:
            raise LaunchError(f"RANK is set but {' and '.join(missing)} is not: use torchrun")

    local_rank = _number(environment, "LOCAL_RANK", 0)
    backend = environment.get("DDPJOB_BACKEND") or ("nccl" if gpus else "gloo")
    if backend not in ("nccl", "gloo"):
        raise LaunchError(f"DDPJOB_BACKEND must be nccl or gloo, got {backend!r}")
    if backend == "nccl" and local_rank >= gpus:
        raise LaunchError(
            f"LOCAL_RANK is {local_rank}, but this process sees {gpus} GPUs: nccl needs one GPU "
            "for each process of a node (fewer processes per node, or DDPJOB_BACKEND=gloo)"
        )
    attempt = _number(environment, "DDPJOB_ATTEMPT", 0)
    number = _number(environment, "DDPJOB_ROUND", 0)
    job = _job(environment, attempt, number)
    return Launch(rank, size, local_rank, backend, job, attempt, launched, number)


def _job(environment: Mapping[str, str], attempt: int, number: int) -> str:
    """The job's uid: the rendezvous' id is UID-ATTEMPT, and UID-ATTEMPT-ROUND from round 1 on."""
    suffix = f"-{attempt}-{number}" if number else f"-{attempt}"
    return environment.get("PET_RDZV_ID", "").removesuffix(suffix)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise LaunchError(f"{name} must be a number of 0 or more, got {text!r}")
    return int(text)


def _check_size(size: int, environment: Mapping[str, str]) -> None:
    """Stop a group of the wrong size: N pods that each train alone would all report success."""
    if not environment.get("DDPJOB_WORLD_SIZE"):
        return
    expected = _number(environment, "DDPJOB_WORLD_SIZE", 1)
    if size == expected:
        return
    if "RANK" not in environment:
        cause = "this process was started without a launcher: use torchrun, or set RANK and friends"
    elif size < expected:
        cause = (
            "the launcher was given fewer nodes or processes than the job has: torchrun needs "
            "--nnodes and --nproc-per-node (or PET_NNODES and PET_NPROC_PER_NODE), and a script "
            "that is started with python alone gives one process a node"
        )
    else:
        cause = "the launcher was given more nodes or processes than the job has"
    raise LaunchError(
        f"the process group has WORLD_SIZE={size}, but the job expects "
        f"DDPJOB_WORLD_SIZE={expected}: {cause}"
    )


@contextmanager
def process_group(*, timeout: timedelta) -> Iterator[World]:
    """Join the process group, and leave it at the end of a block that raises nothing.

    `timeout` bounds the rendezvous and every collective after it but those of `World.disk`. After
    an error the group is left as it is, and an error that ends the process does so at once: its
    connections close, and so the peers learn of it soonest.
    Raises LaunchError for an environment that cannot work.
    """
    launch = read_environment(environ, gpus=torch.cuda.device_count())
    try:
        yield _join(launch, timeout)
    except Exception:
        sys.excepthook = _then_leave(sys.excepthook)
        raise
    dist.destroy_process_group()


def _join(launch: Launch, timeout: timedelta) -> World:
    device, bound = torch.device("cpu"), None
    if launch.backend == "nccl":
        device = bound = torch.device("cuda", launch.local_rank)
        torch.cuda.set_device(device)
    # With its device NCCL connects here, so a GPU that cannot be used is an error here and not in
    # the first backward pass. gloo is bound to none: a device without an index is refused.
    if launch.launched and launch.size > 1:
        dist.init_process_group(launch.backend, timeout=timeout, device_id=bound)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, not in __all__
        dist.init_process_group(
            launch.backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=bound
        )
    # Groups of their own: nccl cannot carry CPU tensors, and gradients need not queue behind them.
    return World(launch, device, _gloo(timeout), _gloo(max(timeout, DISK_TIMEOUT)))


def _gloo(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


def barrier(group: dist.ProcessGroup) -> None:
    """Return once all ranks have called this; `group` is `World.control` or `World.disk`.

    dist.barrier would use a tensor on the GPU that the default group is bound to, as new groups
    are bound to it too, and so wait for what that GPU computes.
    """
    dist.all_reduce(torch.zeros(1), group=group)


def _then_leave(show: ExceptHook) -> ExceptHook:
    """A sys.excepthook: `show` the error, and end the process there and then.

    It comes after `record` has written the error file.
    """

    def leave_after(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        show(kind, error, traceback)
        if not hasattr(sys, "ps1"):  # else somebody types at a prompt, and goes on
            leave(1)

    return leave_after


def leave(code: int) -> NoReturn:
    """End this process with exit code `code`, after atexit's functions.

    All that is left out is the interpreter's own end. There NCCL waits for what it has yet to do
    with ranks that wait for this one, and a thread of gloo's that asks for the interpreter as late
    as that aborts the process ("terminate called without an active exception").
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed by the reader, or by us
            stream.flush()
    os._exit(code)
