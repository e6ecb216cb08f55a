"""Stop all ranks at the same step when any of them is asked to stop (SIGTERM)."""

import signal
import time
from collections.abc import Callable
from types import FrameType

import torch
import torch.distributed as dist

from ddptrain.dist import World

SECONDS = 1.0  # between two votes, as far as steps allow: little of any grace period
MOST_STEPS = 64  # between two votes, should steps become much slower than they were


class StopVote:
    """All ranks' agreement on when to stop.

    Now and then the ranks compare their flags with one small all-reduce on the CPU, which runs
    while the next step computes: its result is read one step later, so nobody waits for it and no
    GPU is synchronised. All ranks read the same result at the same step. A vote also says how many
    steps later the next one is, by the rank that wants it soonest: about a second, at most 64
    steps, and at most twice as many as before. Steps of a second or more each have a vote.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked = False
        self._vote: tuple[dist.Work, torch.Tensor] | None = None
        self._every = 1  # steps from the last vote to the next, the same on all ranks
        self._left = 1  # of these
        self._voted: float | None = None  # when

    def listen(self) -> None:
        """From now on SIGTERM does no more than ask for a stop."""
        signal.signal(signal.SIGTERM, self._ask)

    def agreed(self, world: World) -> bool:
        """True, on all ranks alike, if any rank had been asked by the last vote; once per step."""
        if self.close():
            return True
        self._left -= 1
        if self._left > 0:
            return False
        # The largest flag, and of the wishes the smallest.
        ballot = torch.tensor([int(self._asked), -self._wish()])
        work = dist.all_reduce(ballot, dist.ReduceOp.MAX, group=world.control, async_op=True)
        assert work is not None
        self._vote = work, ballot
        return False

    def close(self) -> bool:
        """Wait for the vote in flight, if any, and return its result; all ranks or none."""
        if self._vote is None:
            return False
        work, ballot = self._vote
        self._vote = None
        work.wait()
        stop, wish = ballot.tolist()
        self._every = self._left = -wish
        return bool(stop)

    def _wish(self) -> int:
        """In how many steps this rank would vote again, by what the last ones took."""
        before, self._voted = self._voted, self._clock()
        if before is None:
            return 1
        step = max(1e-9, self._voted - before) / self._every
        return max(1, min(int(SECONDS / step), MOST_STEPS, 2 * self._every))

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True
