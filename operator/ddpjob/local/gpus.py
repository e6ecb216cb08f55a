"""This machine's GPUs, and which of them the processes of a node see.

A device plugin gives each pod devices of its own. Here a variable of the driver's library hides
those of the other nodes.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

# nvidia-smi takes seconds on a machine of eight GPUs without persistence mode.
LISTING_SECONDS = 20.0
_NAME = re.compile(r"[0-9]{1,9}|(GPU|MIG)-[-/0-9A-Za-z]+")
_UUID = re.compile(r"(GPU \d+:|\s+MIG) .*\(UUID: ((?:GPU|MIG)-[^\s()]+)\)\s*")


@dataclass(frozen=True)
class Maker:
    """Whose GPUs they are."""

    domain: str
    """Of the resources that ask for them."""
    variable: str
    """Names those that a process sees."""
    nothing: str
    """The variable's value that hides all."""


NVIDIA = Maker("nvidia.com", "CUDA_VISIBLE_DEVICES", "")
# ROCm ignores an empty value, so -1 hides all devices.
AMD = Maker("amd.com", "HIP_VISIBLE_DEVICES", "-1")
MAKERS = (NVIDIA, AMD)

# The devices of one node, by their names or numbers.
Share = Mapping[Maker, Sequence[str]]


def gpus(maker: Maker, environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the maker's devices that a process in `environment` sees, by files below `root`."""
    if (setting := environment.get(maker.variable)) is not None:
        return named(setting)
    if maker == NVIDIA:
        return _smi(environment) or _numbers(_nvidia_files(root))
    # Numbers of HIP's count within this one.
    if (setting := environment.get("ROCR_VISIBLE_DEVICES")) is not None:
        return _numbers(len(named(setting)))
    return _numbers(_amd_files(root))


def named(setting: str) -> tuple[str, ...]:
    """Return the devices that such a variable names; behind another word, as -1, none is seen."""
    return tuple(takewhile(_NAME.fullmatch, map(str.strip, setting.split(","))))


def deal(devices: Sequence[str], counts: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the devices of each node, the first ones for the first node. There must be enough."""
    left = iter(devices)
    return [tuple(islice(left, count)) for count in counts]


def variables(share: Share, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that show a node its share and hide all other devices.

    Where the job sets such a variable in `own`, its numbers count within the share, as they count
    within a pod's devices on a cluster.
    """
    found = dict[str, str]()
    for maker in MAKERS:
        devices = share.get(maker, ())
        if (setting := own.get(maker.variable)) is not None:
            uuids = {device: device for device in devices if not device.isdecimal()}
            known = {str(number): device for number, device in enumerate(devices)} | uuids
            devices = [known[name] for name in named(setting) if name in known]
        found[maker.variable] = ",".join(devices) or maker.nothing
    return found


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
        text = subprocess.check_output(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            timeout=LISTING_SECONDS,
        )
        return listed(text.decode(errors="replace"))
    return ()


def _nvidia_files(root: Path) -> int:
    """By the driver's files: a container has those of its own devices alone in /dev."""
    nodes = [path for path in (root / "dev").glob("nvidia*") if path.name[6:].isdecimal()]
    return len(nodes) or len(list((root / "proc/driver/nvidia/gpus").glob("*")))


def _amd_files(root: Path) -> int:
    """How many nodes of the kernel driver are GPUs; a CPU's has 0 for its GPU."""
    ids = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    return sum(path.read_text().strip() not in ("", "0") for path in ids)


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
