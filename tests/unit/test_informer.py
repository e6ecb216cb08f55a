"""A cache is right again after a watch that says nothing any more."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ddpjob.cluster import DDPJOBS, Resource, WatchEvent, informer
from ddpjob.cluster.informer import Informer, Store
from ddpjob.cluster.local import LocalCluster
from ddpjob.reconcile import JobRecord, job_record
from tests.builders import job_object
from tests.localplay import NAMESPACE, until


class Deaf(LocalCluster):
    """Its first watch opens, and then brings nothing: no event, no bookmark, no end."""

    def __init__(self) -> None:
        super().__init__()
        self.watches = 0

    async def watch(self, resource: Resource, **options: Any) -> AsyncIterator[WatchEvent]:
        self.watches += 1
        if self.watches == 1:
            await asyncio.Event().wait()
        async for event in super().watch(resource, **options):
            yield event


async def test_a_silent_watch_is_taken_for_dead_and_what_it_hid_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(informer, "STALE_SECONDS", 0.3)
    cluster = Deaf()
    store: Store[JobRecord] = Store(lambda old, new: None)
    watching = Informer(cluster, DDPJOBS, store, job_record, namespace=NAMESPACE)
    task = asyncio.create_task(watching.run())
    try:
        await asyncio.wait_for(watching.synced.wait(), 10)
        heard = watching.last_heard
        await cluster.create(DDPJOBS, NAMESPACE, job_object("unseen"))
        await until(lambda: len(store) == 1)
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert cluster.watches >= 2 and watching.last_heard > heard
