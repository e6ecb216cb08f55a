"""Which rank the others wait for.

A step takes equally long on all ranks, as they meet in the all-reduce: who computes faster waits
there for who computes slower. So the slowest rank is the one that has waited least.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddptrain.dist import World

NOTABLE = 0.2  # of a step: a smaller difference is noise
# And so is this: on CPUs, of machines that do other things too. GPUs compute alone, in steps of
# milliseconds, and what varies there is when the host launches them.
NOTABLE_SECONDS = {"cpu": 0.02, "cuda": 0.0005}


@dataclass(frozen=True)
class Found:
    """The slowest rank of one measured step, and what was seen of it."""

    rank: int
    text: str


class Straggler:
    """Looks now and then; one slow step is an accident, the same rank twice is worth a word."""

    def __init__(self) -> None:
        self._measured = -1  # the last step that was looked at
        self._found: Found | None = None

    def hint(self, model: torch.nn.Module, world: World) -> str | None:
        """A sentence on the slowest rank; None where none stands out. All ranks call it.

        The times are DDP's own: it measures the first ten steps and then every hundredth.
        """
        step, waited, total = _times(model)
        if step <= self._measured:
            return None
        self._measured = step
        mine = torch.tensor([waited, total], dtype=torch.float64)
        everybody = [torch.empty_like(mine) for _ in range(world.size)]
        dist.all_gather(everybody, mine, group=world.control)
        times = [(float(w), float(t)) for w, t in everybody]
        noise = NOTABLE_SECONDS[world.device.type]
        before, self._found = self._found, slowest(times, noise)
        if self._found and before and self._found.rank == before.rank:
            return self._found.text
        return None


def slowest(times: list[tuple[float, float]], noise: float) -> Found | None:
    """The rank that stands out, of (seconds waited, seconds in all) of each rank in one step.

    Differences below `noise`, in seconds, mean nothing.
    """
    waits = [waited for waited, _ in times]
    least, most = min(waits), max(waits)
    step = max(total for _, total in times)
    if most - least < max(NOTABLE * step, noise):
        return None
    rank = waits.index(least)
    return Found(
        rank,
        f"rank {rank} is slow: of a step's {1000 * step:.3g} ms it waits {1000 * least:.2g} ms for "
        f"the others, and rank {waits.index(most)} waits {1000 * most:.3g} ms",
    )


def _times(model: torch.nn.Module) -> tuple[int, float, float]:
    """The last step that was measured; seconds this rank waited in it; seconds it took. Or -1."""
    if not isinstance(model, DistributedDataParallel):
        return -1, 0.0, 0.0
    data = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    if "backward_comm_time" not in data:
        return -1, 0.0, 0.0
    forward, backward, communication, overlap = (
        1e-9 * data[f"{part}_time"]
        for part in (
            *("forward_compute", "backward_compute"),
            *("backward_comm", "backward_compute_comm_overlap"),
        )
    )
    waited = max(0.0, communication - overlap)
    return int(data["iteration"]), waited, forward + backward + waited
