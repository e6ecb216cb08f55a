"""Finds this machine's GPUs: what the caller's environment shows, else what the drivers list."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddpjob.runner.devices import NVIDIA, Maker, named, visible

# nvidia-smi takes seconds on a machine of eight GPUs without persistence mode.
LISTING_SECONDS = 20.0
_UUID = re.compile(r"(GPU \d+:|\s+MIG) .*\(UUID: ((?:GPU|MIG)-[^\s()]+)\)\s*")


def gpus(maker: Maker, environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the maker's devices that a process in `environment` sees, by files below `root`."""
    if maker == NVIDIA:
        present = _smi(environment) or _nvidia_files(root)
    else:
        rocr = environment.get("ROCR_VISIBLE_DEVICES")  # numbers of HIP's count within it
        present = _numbers(len(named(rocr)) if rocr is not None else _amd_files(root))
        if rocr is not None and not present:
            return ()
    return visible(environment.get(maker.variable), present)


def listed(text: str) -> tuple[str, ...]:
    """Return the devices in the output of `nvidia-smi -L`: numbers, or UUIDs if one has MIG.

    A GPU with MIG devices stands for these.
    """
    found: list[list[str]] = []  # of each GPU its own UUID, then those of its parts
    for match in filter(None, map(_UUID.fullmatch, text.splitlines())):
        if match[1].startswith("GPU"):
            found.append([match[2]])
        elif found:
            found[-1].append(match[2])
    if all(len(gpu) == 1 for gpu in found):
        return _numbers(len(found))
    return tuple(name for gpu in found for name in gpu[1:] or gpu)


def _smi(environment: Mapping[str, str]) -> tuple[str, ...]:
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ()
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environment),
            timeout=LISTING_SECONDS,
            check=True,
        )
        return listed(ended.stdout.decode(errors="replace"))
    return ()


def _nvidia_files(root: Path) -> tuple[str, ...]:
    """By the driver's files: a container has those of its own devices alone in /dev."""
    nodes = [path for path in (root / "dev").glob("nvidia*") if path.name[6:].isdecimal()]
    return _numbers(len(nodes) or len(list((root / "proc/driver/nvidia/gpus").glob("*"))))


def _amd_files(root: Path) -> int:
    """How many nodes of the kernel driver are GPUs; a CPU's has 0 for its GPU."""
    found = 0
    for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"):
        with suppress(OSError):
            found += path.read_text().strip() not in ("", "0")
    return found


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
