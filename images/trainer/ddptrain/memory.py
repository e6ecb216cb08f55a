"""How much memory is left, a warning before there is none, and a report of where it went."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

WARN_ABOVE = 0.9  # of the limit
# Of a container's own control group, version 2 and then 1: limit, use, and what of it is cache that
# the kernel gives up before it kills anybody.
CGROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
ROOT = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Memory:
    """Bytes in use and the limit at which an allocation fails or the kernel kills."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        """Used of the limit, 0 … 1."""
        return self.used / self.limit

    def __str__(self) -> str:
        return f"{gib(self.used)} of {gib(self.limit)} GiB ({100 * self.share:.0f} %)"


def gib(count: float) -> str:
    """Bytes as GiB, with the digits that matter."""
    return f"{count / 2**30:.1f}" if count >= 2**30 else f"{count / 2**30:.3f}"


def measure(device: torch.device) -> Memory | None:
    """What the GPU has, or the container, or the machine where there is no limit; None: unknown."""
    if device.type == "cuda":
        return of_gpu(*torch.cuda.mem_get_info(device), torch.cuda.memory_stats(device))
    return of_container(ROOT) or of_machine(MEMINFO)


def of_gpu(free: int, total: int, allocator: Mapping[str, int]) -> Memory:
    """What a GPU has, with torch's `memory_stats` of it.

    What torch's allocator keeps for later it gives back before an allocation fails, all but the
    unused parts of blocks that are in use; so that is not in use, whatever the driver says.
    """
    reserved, active, held = (
        allocator.get(f"{name}_bytes.all.current", 0)
        for name in ("reserved", "active", "inactive_split")
    )
    return Memory(total - free - max(0, reserved - active - held), total)


def of_container(root: Path) -> Memory | None:
    """What the control group at `root` may use; None without a limit."""
    for limit_file, used_file, cache_key in CGROUPS:
        try:
            limit = (root / limit_file).read_text().strip()
            used = int((root / used_file).read_text())
            stat = (root / used_file).with_name("memory.stat").read_text()
        except (OSError, ValueError):
            continue
        if not limit.isdecimal() or int(limit) >= 2**60:  # "max"; version 1 has a huge number
            return None
        cache = dict(line.split() for line in stat.splitlines()).get(cache_key, "0")
        return Memory(max(0, used - int(cache)), int(limit))
    return None


def of_machine(meminfo: Path) -> Memory | None:
    """What the whole machine has; None where that is not Linux."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    total, free = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    return Memory(total - free, total)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on the CPU, which has no exception of its own."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def report(
    device: torch.device,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
) -> str:
    """Where the memory is, and what helps: for the log of a training that has run out of it."""
    known = {
        "weights": _size(list(model.parameters()) + list(model.buffers())) if model else 0,
        "gradients": _size([p.grad for p in model.parameters()]) if model else 0,
        "optimizer": _size(_state(optimizer)) if optimizer else 0,
    }
    lines = [f"out of memory on {device}", *(f"  {k}: {gib(v)} GiB" for k, v in known.items())]
    if device.type == "cuda":
        peak, reserved = (
            torch.cuda.max_memory_allocated(device),
            torch.cuda.memory_reserved(device),
        )
        lines.append(
            f"  activations and the rest, at the peak: {gib(peak - sum(known.values()))} GiB"
        )
        lines.append(f"  kept by torch's allocator: {gib(reserved)} GiB")
    else:
        lines.append("  activations and the rest: what was asked for and is not in this list")
    if (now := measure(device)) is not None:
        lines.append(f"  in use: {now}")
    lines.append(
        "  what helps: --accumulation 2 or more (less memory for activations, and the same result "
        "without dropout), --bf16 or --fp16, more processes at the same --batch-size, a smaller "
        "--batch-size"
    )
    return "\n".join(lines)


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
    return [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]


def _size(tensors: list[torch.Tensor | None]) -> int:
    """Bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
