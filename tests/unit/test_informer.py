"""A cache is right again after a watch that says nothing, and after a pod that is no more ours."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ddpjob.cluster import DDPJOBS, PODS, Resource, WatchEvent, informer
from ddpjob.cluster.informer import Cache, Informer
from ddpjob.cluster.local import LocalCluster
from ddpjob.controller.jobrecord import JobRecord, job_record
from ddpjob.plan.observed import PodRecord, pod_record
from tests.builders import IDENTITY, job_object
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
    store: Cache[JobRecord] = Cache(lambda old, new: None)
    watching = Informer(cluster, DDPJOBS, store, job_record, namespace=NAMESPACE)
    task = asyncio.create_task(watching.run())
    try:
        await asyncio.wait_for(watching.synced.wait(), 10)
        heard = watching.last_event_at
        await cluster.create(DDPJOBS, NAMESPACE, job_object("unseen"))
        await until(lambda: len(store) == 1)
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert cluster.watches >= 2 and watching.last_event_at > heard


async def test_what_is_ours_no_more_is_forgotten() -> None:
    cluster = LocalCluster()
    seen: list[PodRecord | None] = []
    pods: Cache[PodRecord] = Cache(lambda old, new: seen.append(new))
    task = asyncio.create_task(Informer(cluster, PODS, pods, pod_record, namespace=NAMESPACE).run())
    try:
        names = {"name": "digits-0-1", "ownerReferences": IDENTITY["ownerReferences"]}
        body = {"metadata": {**names, "namespace": NAMESPACE}, "spec": {}}
        await cluster.create(PODS, NAMESPACE, body)
        await until(lambda: len(pods) == 1)
        made = await cluster.get(PODS, NAMESPACE, "digits-0-1")
        seen.clear()
        made["metadata"]["labels"] = {"ddpjob.dev/rank": "7"}
        labelled = await cluster.update(PODS, NAMESPACE, made)
        await until(lambda: seen)
        assert seen[-1] and (seen[-1].attempt, seen[-1].rank) == (0, 1)
        del labelled["metadata"]["ownerReferences"]
        await cluster.update(PODS, NAMESPACE, labelled)
        await until(lambda: len(pods) == 0)
    finally:
        task.cancel()
        await asyncio.wait([task])
