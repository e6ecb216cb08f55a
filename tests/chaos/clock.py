"""The operator's clock in tests within one process: each run has its own, which may stand still."""

import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any


class Clock:
    """The operator's clock, which may stand still; of a run, whose tasks all have this one."""

    def __init__(self) -> None:
        self._stands_at: float | None = None

    @classmethod
    def of_this_run(cls) -> "Clock":
        """A new one, for this task and those that it starts from here on."""
        clock = cls()
        _clock.set(clock)
        return clock

    def stop(self) -> None:
        """In the middle of a second: times in status are whole ones."""
        self._stands_at = int(time.time()) + 0.5

    def forward(self, seconds: float) -> None:
        """Let this time pass at once."""
        assert self._stands_at is not None
        self._stands_at += seconds

    def time(self) -> float:
        """Unix seconds."""
        return time.time() if self._stands_at is None else self._stands_at

    def now(self) -> datetime:
        """The same for people, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def monotonic(self) -> float:
        """As ever: pauses between looks and writes."""
        return time.monotonic()


_clock: ContextVar[Clock] = ContextVar("clock")


class Clocks:
    """What `time` is to the operator's code in these tests: the clock of the run it is in."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_clock.get(), name)
