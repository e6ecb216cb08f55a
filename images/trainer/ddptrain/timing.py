"""How long training takes, on the host's clock, which a GPU would otherwise mislead."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

AHEAD = 4  # steps; far fewer launches than a GPU's queue takes, and enough to keep it busy


class Stopwatch:
    """Seconds since `restart`, but for those in `paused` blocks."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._paused = 0  # blocks that we are in
        self.restart()

    def restart(self) -> None:
        """Begin at 0; within a `paused` block, at its end."""
        self._counted, self._since = 0.0, self._clock()

    @property
    def seconds(self) -> float:
        """What has been counted so far."""
        return self._counted + (0.0 if self._paused else self._clock() - self._since)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in this block does not count."""
        self._counted = self.seconds
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._since = self._clock()


class Pace:
    """Keeps the host at most four steps ahead of the GPU.

    Launching returns at once until the GPU's queue is full, and then waits wherever it happens to
    be: while a batch is made, for example, which would look like waiting for data. Here it waits
    between two steps, for one that is long past, so the GPU always has work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._unfinished: deque[torch.cuda.Event] = deque()

    def step(self) -> None:
        """A step has been launched; wait for the one four steps before it. Nothing on CPUs."""
        if self._device.type != "cuda":
            return
        # Whoever waits for it sleeps meanwhile.
        end = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        end.record()
        self._unfinished.append(end)
        if len(self._unfinished) > AHEAD:
            self._unfinished.popleft().synchronize()

    def catch_up(self) -> None:
        """Wait until the GPU has done all that it was asked for. Nothing on CPUs."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            self._unfinished.clear()
