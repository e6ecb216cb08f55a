"""The DDPJobs of a server as they are, and when each has come to a state: a watch in a thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ddpjob import names
from tests.cluster.client import Access, Client


@dataclass(frozen=True)
class Seen:
    """What a job's status said from this moment on."""

    time: float
    """Unix time."""
    job: str
    """`namespace/name`."""
    state: str
    attempt: int
    round: int


class JobWatch:
    """A context manager; `jobs` and `seen` grow while it is entered."""

    def __init__(self, server: Access) -> None:
        self._server = server
        self.jobs: dict[str, Mapping[str, Any]] = {}
        """Statuses by `namespace/name`."""
        self.seen: list[Seen] = []
        """Each change of a job's state, attempt or round."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._follower.cancel)
        self._thread.join()

    def count(self, holds: Callable[[Mapping[str, Any]], bool]) -> int:
        """Of how many jobs this holds, given the status."""
        return sum(map(holds, list(self.jobs.values())))

    def first(self, holds: Callable[[Seen], bool]) -> dict[str, float]:
        """Since when it has held of each job of which it has."""
        found: dict[str, float] = {}
        for seen in list(self.seen):
            if holds(seen):
                found.setdefault(seen.job, seen.time)
        return found

    def _run(self) -> None:
        self._follower = self._loop.create_task(self._follow())
        try:
            self._loop.run_until_complete(self._follower)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    async def _follow(self) -> None:
        async with Client(self._server) as client:
            path = f"/apis/{names.API_VERSION}/{names.PLURAL}"
            async for kind, found in client.follow(path):
                self._take(kind, found)

    def _take(self, kind: str, found: Mapping[str, Any]) -> None:
        meta, status = found["metadata"], found.get("status", {})
        key = f"{meta['namespace']}/{meta['name']}"
        if kind == "DELETED":
            self.jobs.pop(key, None)
            return
        old, self.jobs[key] = self.jobs.get(key, {}), status
        if _place(old) != _place(status) or not old:
            self.seen.append(Seen(time.time(), key, *_place(status)))


def _place(status: Mapping[str, Any]) -> tuple[str, int, int]:
    return status.get("state", ""), status.get("attempt", 0), status.get("round", 0)
