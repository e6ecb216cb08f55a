"""A cache is right again after a watch or a list that fails, and after a pod has changed hands."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from ddpjob.cluster import DDPJOBS, PODS, Resource, WatchEvent, informer
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.informer import Cache, Informer
from ddpjob.cluster.kube import KubeCluster
from ddpjob.controller.memory import JobRecord, job_record
from ddpjob.controller.workloads import WORKLOADS
from ddpjob.errors import ClusterError, cluster_error
from ddpjob.local.cluster import LocalCluster
from ddpjob.plan.model import PodRecord
from ddpjob.plan.podrecord import pod_record
from tests.builders import IDENTITY, job_object
from tests.garbled import EVENT, LIST, NO_EVENTS, NO_LISTS, answering
from tests.localplay import NAMESPACE, side_by_side, until


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
    async with side_by_side(watching.run()):
        await asyncio.wait_for(watching.synced.wait(), 200)
        heard = watching.last_event_at
        await cluster.create(DDPJOBS, NAMESPACE, job_object("unseen"))
        await until(lambda: len(store) == 1)
    assert cluster.watches >= 2 and watching.last_event_at > heard


class Without(LocalCluster):
    """Its API server has not heard of the resource, and says so in plain text."""

    async def list(self, *arguments: Any, **options: Any) -> Any:
        raise cluster_error(404, "Not Found", "404 page not found\n")


async def test_an_api_that_is_not_there_is_named() -> None:
    with pytest.raises(ClusterError, match=r"^404 Not Found: 404 page not found$"):
        await Without().list(WORKLOADS)
    store: Cache[JobRecord] = Cache(lambda old, new: None)
    watching = Informer(Without(), WORKLOADS, store, job_record, namespace=None)
    async with side_by_side(watching.run()):
        await asyncio.wait_for(watching.looked.wait(), 200)
        assert watching.error == "the API server has no workloads of kueue.x-k8s.io/v1beta2"


async def test_what_is_ours_no_more_is_forgotten() -> None:
    cluster = LocalCluster()
    seen: list[PodRecord | None] = []
    pods: Cache[PodRecord] = Cache(lambda old, new: seen.append(new))
    async with side_by_side(Informer(cluster, PODS, pods, pod_record, namespace=NAMESPACE).run()):
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


@pytest.mark.parametrize("garbage", NO_LISTS)
async def test_an_answer_that_is_no_list_is_asked_for_again(garbage: bytes) -> None:
    await _comes_through([garbage, LIST], [EVENT])


@pytest.mark.parametrize("garbage", NO_EVENTS)
async def test_a_watch_that_brings_garbage_begins_again(garbage: bytes) -> None:
    await _comes_through([LIST], [garbage, EVENT])


async def _comes_through(lists: Sequence[bytes], watches: Sequence[bytes]) -> None:
    came = asyncio.Event()
    store: Cache[JobRecord] = Cache(lambda old, new: came.set())
    async with answering(lists, watches) as url:
        cluster = KubeCluster(Credentials(url))
        informer = Informer(cluster, DDPJOBS, store, job_record, namespace=None)
        task = asyncio.create_task(informer.run())
        waiting = asyncio.create_task(came.wait())
        await asyncio.wait({task, waiting}, timeout=200, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.exception()
        assert len(store) == 1
        for one in (task, waiting):
            one.cancel()
        await asyncio.wait({task, waiting})
        await cluster.close()


class Expiring(LocalCluster):
    """Its watches are always too old."""

    lists = 0

    async def list(self, *arguments: Any, **options: Any) -> Any:
        self.lists += 1
        return await super().list(*arguments, **options)

    async def watch(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        raise cluster_error(410, "Expired", "too old")
        yield


async def test_a_watch_that_always_expires_is_no_storm_of_lists() -> None:
    cluster = Expiring()
    store: Cache[JobRecord] = Cache(lambda old, new: None)
    async with side_by_side(Informer(cluster, DDPJOBS, store, job_record, namespace=None).run()):
        await asyncio.sleep(1.0)
    assert 1 < cluster.lists < 15
