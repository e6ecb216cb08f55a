"""Deals this machine's GPUs out to the nodes of a local job."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpjob import api
from ddpjob.api.base import quantity_value
from ddpjob.api.podtypes import Resources
from ddpjob.errors import InvalidJob
from ddpjob.names import is_gpu
from ddpjob.runner.gpus import MAKERS, Maker, Share, deal, gpus


def shares(job: api.DDPJob, environment: Mapping[str, str], root: Path = Path("/")) -> list[Share]:
    """Return the GPUs of each node, by its rank.

    Raises InvalidJob if the nodes ask for more GPUs than this machine has.
    """
    spec = job.spec
    first = spec.master and spec.master.resources or spec.resources
    wanted = [_wanted(first), *[_wanted(spec.resources)] * (spec.nnodes - 1)]
    names = [name for node in wanted for name in node]
    dealt: dict[Maker, list[tuple[str, ...]]] = {}
    for maker in MAKERS:
        counts = [sum(node[name] for name in node if _is_of(maker, name)) for node in wanted]
        if any(counts):
            devices = gpus(maker, environment, root)
            if sum(counts) > len(devices):
                name = next(name for name in names if _is_of(maker, name))
                rule = f"must be at most {len(devices)} for all nodes together on this machine"
                if setting := environment.get(maker.variable):
                    rule += f" ({maker.variable} is {setting!r})"
                raise InvalidJob(_path(job, name), f"{rule}, got {sum(counts)} in all")
            dealt[maker] = deal(devices, counts)
    for name in names:
        if not any(_is_of(maker, name) for maker in MAKERS):
            rule = "GPUs of this kind cannot be given to the nodes of a local run"
            raise InvalidJob(_path(job, name), rule)
    return [{maker: parts[rank] for maker, parts in dealt.items()} for rank in range(spec.nnodes)]


def describe(dealt: Sequence[Share]) -> str:
    """Return the GPUs of each node as a line of text; empty if no node has a GPU."""
    nodes = [
        f"node {rank} has {','.join(names)}"
        for rank, share in enumerate(dealt)
        for names in share.values()
        if names
    ]
    return f"GPUs: {', '.join(nodes)}" if nodes else ""


def _wanted(resources: Resources) -> dict[str, int]:
    """Return the number of GPUs that a node asks for, by the name of the resource."""
    limits = resources.limits or {}
    counts = {name: int(quantity_value(limits[name])) for name in limits if is_gpu(name)}
    return {name: count for name, count in counts.items() if count > 0}


def _is_of(maker: Maker, resource: str) -> bool:
    return resource.partition("/")[0] == maker.domain


def _path(job: api.DDPJob, resource: str) -> str:
    of_all = resource in (job.spec.resources.limits or {})
    return f"spec.{'' if of_all else 'master.'}resources.limits[{resource}]"
