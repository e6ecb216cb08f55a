"""Two operators that both work, with no Lease between them: nothing is lost, nothing happens twice.

One of them may be behind with what it sees of jobs or of pods, as two watches of two processes are.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from ddpjob.cluster import DDPJOBS, PODS, Resource, WatchEvent
from ddpjob.controller.controller import Controller
from tests.chaos.embedded import live, playing, run
from tests.chaos.trail import Trailed
from tests.chaos.workloads import QUEUES, SILENCES, WORKLOADS, Workload
from tests.localplay import OperatorView, side_by_side

BEHIND_SECONDS = 0.05  # long enough for an attempt to begin and to fail


class Behind:
    """An operator's connection on which the events of one kind arrive late."""

    def __init__(self, view: OperatorView, kind: Resource) -> None:
        self._view, self._kind = view, kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    async def watch(self, resource: Resource, **options: Any) -> AsyncIterator[WatchEvent]:
        loop = asyncio.get_running_loop()
        line: asyncio.Queue[tuple[float, WatchEvent]] = asyncio.Queue()

        async def follow() -> None:
            async for event in self._view.watch(resource, **options):
                line.put_nowait((loop.time() + BEHIND_SECONDS, event))

        following = asyncio.create_task(follow())
        try:
            while True:
                due, event = await line.get()
                if resource == self._kind:
                    await asyncio.sleep(due - loop.time())
                yield event
        finally:
            following.cancel()


@asynccontextmanager
async def both_operating(
    cluster: Trailed, workload: Workload, behind: Resource | None
) -> AsyncIterator[None]:
    views: list[Any] = [cluster.operator(), cluster.operator()]
    if behind is not None:
        views[1] = Behind(views[1], behind)
    controllers = (Controller(view, settings=workload.settings).run() for view in views)
    async with playing(cluster, workload), side_by_side(*controllers):
        yield


@pytest.mark.deep
@pytest.mark.parametrize("behind", [None, PODS, DDPJOBS], ids=["even", "pods late", "jobs late"])
@pytest.mark.parametrize(
    "workload", (*WORKLOADS, *QUEUES, *SILENCES), ids=lambda workload: str(workload.name)
)
async def test_two_operators_do_what_one_does(workload: Workload, behind: Resource | None) -> None:
    def both(cluster: Trailed) -> AbstractAsyncContextManager[None]:
        return both_operating(cluster, workload, behind)

    # Beside each other: most of a run's time is waiting for quiet.
    lives = (live(workload, None, both) for _ in range(3))
    reference, *runs = await asyncio.gather(run(workload, None), *lives)
    for found in runs:
        assert found.breaches == []
        assert found.end == reference.end
