"""Which of this machine's GPUs the processes of a node see. Pure.

A device plugin gives each pod devices of its own. Here a variable of the driver's library hides
those of the other nodes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

_NAME = re.compile(r"[0-9]{1,9}|(GPU|MIG)-[-/0-9A-Za-z]+")


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


def named(setting: str) -> tuple[str, ...]:
    """Return the devices that such a variable names, as CUDA reads it.

    What follows another word (an empty one, -1, NoDevFiles) is not seen, and nothing is where one
    stands twice.
    """
    found: list[str] = []
    for name in map(str.strip, setting.split(",")):
        if not _NAME.fullmatch(name):
            break
        found.append(name)
    return tuple(found) if len(set(found)) == len(found) else ()


def visible(setting: str | None, present: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that a process sees if the variable has this value, or None if not set.

    `present` are the machine's, in their order. Where it is empty they are not known, and the
    variable is believed. Names that it gives are believed always.
    """
    if setting is None:
        return tuple(present)
    found: list[str] = []
    for name in named(setting):
        if not (name.isdecimal() and present):
            found.append(name)
        elif int(name) < len(present):
            found.append(present[int(name)])
        else:
            break  # of a device that is not there, and those behind it, nothing is seen
    return tuple(found)


def deal(devices: Sequence[str], counts: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the devices of each node, the first ones for the first node. There must be enough."""
    assert sum(counts) <= len(devices)
    left = iter(devices)
    return [tuple(islice(left, count)) for count in counts]


def variables(share: Share, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that show a node its share and hide all other devices.

    Where the job sets such a variable in `own`, its numbers count within the share, as they count
    within a pod's devices on a cluster.
    """
    return {
        maker.variable: ",".join(_chosen(own.get(maker.variable), share.get(maker, ())))
        or maker.nothing
        for maker in MAKERS
    }


def _chosen(setting: str | None, devices: Sequence[str]) -> Iterator[str]:
    if setting is None:
        yield from devices
        return
    for name in named(setting):
        if name.isdecimal():
            found = [devices[int(name)]] if int(name) < len(devices) else []
        else:
            found = [device for device in devices if device.startswith(name)]
        if len(found) != 1:
            return
        yield found[0]
