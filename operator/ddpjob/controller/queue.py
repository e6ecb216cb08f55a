"""A queue of keys: each at most once in line, at most once in work, and later again if asked."""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class KeyedQueue(Generic[Key]):
    """`get`, work, `done`.

    A key that is added while in work comes again afterwards; two workers never share one.
    """

    def __init__(self, *, first: float = 0.5, cap: float = 60.0) -> None:
        """`first` and `cap` bound the back-off of `retry`, in seconds."""
        self._first, self._cap = first, cap
        self._line: deque[tuple[Key, float]] = deque()  # since when each is there (monotonic)
        self._waiting: set[Key] = set()
        self._in_work: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._held_until: dict[Key, float] = {}  # loop time
        self._ready = asyncio.Event()

    def add(self, key: Key) -> None:
        """Put `key` in line, unless it is there; later, while a `retry` wants a pause at least."""
        if (held := self._held_until.get(key)) is not None:
            pause = held - asyncio.get_running_loop().time()
            if pause > 0:
                self.add_after(key, pause)
                return
            del self._held_until[key]
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._in_work:
            self._line_up(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Put `key` in line after `seconds`, unless it gets there before."""
        if key in self._waiting:
            return
        loop = asyncio.get_running_loop()
        old = self._timers.get(key)
        if old is not None:
            if old.when() <= loop.time() + seconds:
                return
            old.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: Key) -> None:
        del self._timers[key]  # first: `add` may set another, where this one was a little early
        self.add(key)

    def retry(self, key: Key, at_least: float = 0.0, at_most: float = math.inf) -> float:
        """Put `key` in line after its back-off, which is returned, in seconds.

        A deadline in `at_most` seconds cuts the back-off short, and so does whoever adds the key
        meanwhile, but not below `at_least` seconds.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(self._first * 2.0 ** min(failures, 30), self._cap)
        pause = max(at_least, min(pause * random.uniform(0.5, 1.0), at_most))
        if at_least:
            self._held_until[key] = asyncio.get_running_loop().time() + at_least
            if key in self._in_work and key in self._waiting:  # news that came meanwhile
                self._waiting.discard(key)
                pause = at_least
        self.add_after(key, pause)
        return pause

    def succeeded(self, key: Key) -> None:
        """The next `retry` of `key` begins with the shortest pause again."""
        self._failures.pop(key, None)
        self._held_until.pop(key, None)

    async def get(self) -> Key:
        """The next key; call `done` with it."""
        while not self._line:
            self._ready.clear()
            await self._ready.wait()
        key, _ = self._line.popleft()
        self._waiting.discard(key)
        self._in_work.add(key)
        return key

    def done(self, key: Key) -> None:
        """The work on `key` is over; it goes in line again if it was added meanwhile."""
        self._in_work.discard(key)
        if key in self._waiting:
            self._line_up(key)

    def _line_up(self, key: Key) -> None:
        self._line.append((key, time.monotonic()))
        self._ready.set()

    @property
    def oldest_seconds(self) -> float:
        """For how long the first key in line has been there; 0 without one."""
        return time.monotonic() - self._line[0][1] if self._line else 0.0

    def __len__(self) -> int:
        return len(self._line)
