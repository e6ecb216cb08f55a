"""What there is to compare on: cores, GPUs, and their names and versions for the report."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """What there is to compute with."""

    cores: int
    gpus: int
    hardware: str
    versions: str


def count_gpus() -> int:
    """GPUs to use: all that are visible, unless DDPJOB_BACKEND wants CPUs."""
    return 0 if os.environ.get("DDPJOB_BACKEND") == "gloo" else torch.cuda.device_count()


def count_cores(quota: Path = CPU_QUOTA) -> int:
    """Cores this process may use: those it is bound to, or fewer where a container has a quota."""
    bound = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    cores = len(bound) or os.cpu_count() or 1
    try:
        share, period = quota.read_text().split()
    except (OSError, ValueError):  # no container, or control groups of version 1
        return cores
    return cores if share == "max" else max(1, min(cores, int(share) // int(period)))


def examine(cores: int, gpus: int) -> Machine:
    """Name what is there. Called after the measurements: it takes memory on the first GPU."""
    hardware = f"{cpu_model()}, {cores} cores, {platform.system()}"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    if gpus:
        names = [torch.cuda.get_device_name(number) for number in range(gpus)]
        hardware += "".join(f", {names.count(name)} × {name}" for name in dict.fromkeys(names))
        versions += f", CUDA {torch.version.cuda}"
        versions += f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"  # type: ignore[no-untyped-call]
    return Machine(cores, gpus, hardware, versions)


def cpu_model(info: Path = CPU_INFO) -> str:
    """The processor's name as the system has it."""
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()
