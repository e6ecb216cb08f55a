"""The operator's clock in tests within one process: each run has its own, which may stand still."""

import asyncio
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

# A played clock goes on so often, and so much faster than time. It goes on with the event loop: a
# machine that is slow, or stops, does not have anybody wait in vain.
TURN_SECONDS, RATE = 0.005, 50.0


class Clock:
    """The operator's clock, which may stand still; of a run, whose tasks all have this one."""

    def __init__(self) -> None:
        self._stands_at: float | None = None
        self.is_played = False
        """All seconds are this clock's, pauses included."""

    @classmethod
    def of_this_run(cls) -> "Clock":
        """A new one, for this task and those that it starts from here on."""
        clock = cls()
        _clock.set(clock)
        return clock

    def stop(self) -> None:
        """In the middle of a second: times in status are whole ones."""
        self._stands_at = int(time.time()) + 0.5

    def play(self) -> None:
        """Have it go on by turns."""
        self.stop()
        self.is_played = True

    def forward(self, seconds: float) -> None:
        """Let this time pass at once."""
        assert self._stands_at is not None
        self._stands_at += seconds

    async def turn(self) -> None:
        """Wait for the next turn of a played clock."""
        await asyncio.sleep(TURN_SECONDS)
        self.forward(TURN_SECONDS * RATE)

    def time(self) -> float:
        """Unix seconds."""
        return time.time() if self._stands_at is None else self._stands_at

    def now(self) -> datetime:
        """The same for people, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def monotonic(self) -> float:
        """As ever, unless it is played: pauses between looks and writes."""
        return self.time() if self.is_played else time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds of this clock."""
        until = self.monotonic() + seconds
        await asyncio.sleep(0 if self.is_played else seconds)
        while self.is_played and self.monotonic() < until:
            await asyncio.sleep(TURN_SECONDS)

    def real(self, seconds: float) -> float:
        """The seconds that pass meanwhile, on a machine that is not slow."""
        return seconds / RATE if self.is_played else seconds


_clock: ContextVar[Clock] = ContextVar("clock")


def this_run() -> Clock:
    """The clock of the run that this task belongs to."""
    return _clock.get()


class Clocks:
    """What `time` is to the operator's code in these tests: the clock of the run it is in."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_clock.get(), name)


class Pauses:
    """What `asyncio` is to the operator's code that waits for agents."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_clock.get() if name == "sleep" else asyncio, name)
