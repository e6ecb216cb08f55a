"""The embedded cluster answers as the API server does."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ddpjob.cluster import CONFIGMAPS, DDPJOBS, PODS, Cluster, Resource, WatchEvent
from ddpjob.errors import Conflict, Expired, InvalidJob, NotFound, Refused
from ddpjob.json_depth import Body
from ddpjob.local.cluster import LocalCluster

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def local(**settings: Any) -> LocalCluster:
    return LocalCluster(now=lambda: NOON, **settings)


def job(name: str = "digits", **metadata: Any) -> Body:
    return {"metadata": {"name": name, **metadata}, "spec": {"nnodes": 2}}


def owner(body: Body) -> Body:
    return {"uid": body["metadata"]["uid"], "name": body["metadata"]["name"], "kind": body["kind"]}


def pod(name: str = "p", *, owners: tuple[Body, ...] = (), labels: Body | None = None) -> Body:
    owned = [owner(parent) for parent in owners]
    meta: Body = {"name": name, "labels": labels or {}, "ownerReferences": owned}
    return {"metadata": meta, "spec": {"containers": [], "terminationGracePeriodSeconds": 60}}


async def names(cluster: Cluster, resource: Resource = PODS, labels: str = "") -> list[str]:
    listing = await cluster.list(resource, namespace="default", labels=labels)
    return [item["metadata"]["name"] for item in listing.items]


async def take(events: AsyncIterator[WatchEvent], count: int) -> list[WatchEvent]:
    async with asyncio.timeout(200):
        return [await anext(events) for _ in range(count)]


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\n"])
async def test_a_name_that_is_no_dns_name_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="metadata.name"):
        await local().create(PODS, "default", pod(name))


async def test_what_is_handed_out_or_in_cannot_change_what_is_stored() -> None:
    cluster, sent = local(), job()
    made = await cluster.create(DDPJOBS, "default", sent)
    events = cluster.watch(DDPJOBS, namespace=None, resource_version="0")
    (event,) = await take(events, 1)
    for copy in (sent, made, event.object):
        copy["spec"]["nnodes"] = 99
    assert (await cluster.get(DDPJOBS, "default", "digits"))["spec"]["nnodes"] == 2


async def test_admission_completes_and_refuses() -> None:
    def admit(resource: Resource, body: Body) -> Body:
        if body["spec"]["nnodes"] < 1:
            raise InvalidJob("spec.nnodes", "must be at least 1, got 0", 0)
        return {**body, "spec": {"backend": "auto", **body["spec"]}}

    cluster = local(admit=admit)
    made = await cluster.create(DDPJOBS, "default", job())
    assert made["spec"] == {"backend": "auto", "nnodes": 2}
    with pytest.raises(Refused, match="spec.nnodes: must be at least 1, got 0"):
        await cluster.update(DDPJOBS, "default", {**made, "spec": {"nnodes": 0}})


async def test_a_status_write_needs_the_stored_version_and_touches_the_status_alone() -> None:
    cluster = local()
    made = await cluster.create(DDPJOBS, "default", job())
    written = await cluster.update_status(
        DDPJOBS, "default", {**made, "spec": {"nnodes": 7}, "status": {"attempt": 1}}
    )
    assert written["spec"] == {"nnodes": 2} and written["status"] == {"attempt": 1}
    assert written["metadata"]["generation"] == 1
    without = {"metadata": {"name": "digits"}, "status": {}}
    for stale in (made, without):
        with pytest.raises(Conflict):
            await cluster.update_status(DDPJOBS, "default", stale)


async def test_a_write_that_changes_nothing_is_no_revision() -> None:
    cluster = local()
    made = await cluster.create(DDPJOBS, "default", job())
    first = await cluster.update_status(DDPJOBS, "default", {**made, "status": {"attempt": 1}})
    assert await cluster.update_status(DDPJOBS, "default", first) == first
    assert await cluster.update(DDPJOBS, "default", first) == first


async def test_an_update_counts_a_generation_for_the_spec_only_and_keeps_the_status() -> None:
    cluster = local()
    made = await cluster.create(DDPJOBS, "default", job())
    made = await cluster.update_status(DDPJOBS, "default", {**made, "status": {"attempt": 1}})
    labelled = {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}, "status": {}}
    labelled = await cluster.update(DDPJOBS, "default", labelled)
    assert labelled["metadata"]["generation"] == 1 and labelled["status"] == {"attempt": 1}
    changed = await cluster.update(DDPJOBS, "default", {**labelled, "spec": {"suspend": True}})
    assert changed["metadata"]["generation"] == 2
    with pytest.raises(Conflict):
        await cluster.update(DDPJOBS, "default", {**labelled, "spec": {}})


async def test_a_pods_spec_is_immutable_but_for_its_deadline() -> None:
    cluster = local()
    made = await cluster.create(PODS, "default", pod())
    later = {**made, "spec": {**made["spec"], "activeDeadlineSeconds": 5}}
    made = await cluster.update(PODS, "default", later)
    assert made["spec"]["activeDeadlineSeconds"] == 5
    with pytest.raises(Refused, match="spec.hostname"):
        await cluster.update(PODS, "default", {**made, "spec": {**made["spec"], "hostname": "x"}})


async def test_a_delete_needs_the_right_uid() -> None:
    cluster = local()
    made = await cluster.create(CONFIGMAPS, "default", {"metadata": {"name": "c"}})
    with pytest.raises(Conflict):
        await cluster.delete(CONFIGMAPS, "default", "c", uid="another")
    assert await cluster.delete(CONFIGMAPS, "default", "c", uid=made["metadata"]["uid"]) is None
    with pytest.raises(NotFound):
        await cluster.delete(CONFIGMAPS, "default", "c", uid=made["metadata"]["uid"])


async def test_a_pod_is_marked_first_and_gone_when_its_node_says_so() -> None:
    cluster = local()
    uid = (await cluster.create(PODS, "default", pod()))["metadata"]["uid"]

    async def delete(grace: int | None) -> tuple[Any, ...] | None:
        left = await cluster.delete(PODS, "default", "p", uid=uid, grace_seconds=grace)
        meta = left["metadata"] if left else {}
        asked = meta.get("deletionGracePeriodSeconds")
        return (asked, meta["deletionTimestamp"], meta["generation"]) if left else None

    assert await delete(None) == (60, "2026-01-02T12:01:00Z", 2)
    assert await delete(90) == (60, "2026-01-02T12:01:00Z", 2)
    assert await delete(5) == (5, "2026-01-02T12:00:05Z", 3)
    assert await delete(0) is None
    assert await names(cluster) == []


async def test_what_an_object_owned_goes_with_it_and_pods_keep_their_grace() -> None:
    cluster = local()
    parent = await cluster.create(DDPJOBS, "default", job())
    second = await cluster.create(DDPJOBS, "default", job("second"))
    await cluster.create(PODS, "default", pod("child", owners=(parent,)))
    await cluster.create(PODS, "default", pod("shared", owners=(parent, second)))
    await cluster.create(PODS, "default", pod("other"))
    config = {"metadata": {"name": "c", "ownerReferences": [owner(parent)]}}
    await cluster.create(CONFIGMAPS, "default", config)
    await cluster.delete(DDPJOBS, "default", "digits", uid=parent["metadata"]["uid"])
    assert await names(cluster, CONFIGMAPS) == []
    pods = (await cluster.list(PODS, namespace="default")).items
    marked = [p["metadata"]["name"] for p in pods if "deletionTimestamp" in p["metadata"]]
    assert marked == ["child"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", ["a", "b", "c"]),
        ("x=1", ["a"]),
        ("x=1,y=", ["a"]),
        ("ddpjob.dev/job=digits", ["c"]),
    ],
)
async def test_lists_select_by_labels(selector: str, expected: list[str]) -> None:
    cluster = local()
    await cluster.create(PODS, "default", pod("b", labels={"x": "2"}))
    await cluster.create(PODS, "default", pod("a", labels={"x": "1", "y": ""}))
    await cluster.create(PODS, "default", pod("c", labels={"ddpjob.dev/job": "digits"}))
    assert await names(cluster, labels=selector) == expected


async def test_a_watch_tells_of_changes_past_and_coming() -> None:
    cluster = local()
    made = await cluster.create(DDPJOBS, "default", job())
    events = cluster.watch(DDPJOBS, namespace="default", resource_version="0")
    assert [e.type for e in await take(events, 1)] == ["ADDED"]
    waiting = asyncio.ensure_future(take(events, 2))
    await asyncio.sleep(0)
    await cluster.create(DDPJOBS, "other", job())
    made = await cluster.update_status(DDPJOBS, "default", {**made, "status": {"attempt": 1}})
    await cluster.delete(DDPJOBS, "default", "digits", uid=made["metadata"]["uid"])
    modified, deleted = await waiting
    assert (modified.type, modified.object) == ("MODIFIED", made)
    assert deleted.type == "DELETED" and deleted.object["status"] == {"attempt": 1}
    assert deleted.object["metadata"]["resourceVersion"] == "4"


async def test_a_watch_from_before_the_history_is_expired() -> None:
    cluster = local(history=2)
    for name in ("a", "b", "c"):
        await cluster.create(PODS, "default", pod(name))
    events = await take(cluster.watch(PODS, namespace=None, resource_version="1"), 2)
    assert [e.object["metadata"]["name"] for e in events] == ["b", "c"]
    with pytest.raises(Expired):
        await take(cluster.watch(PODS, namespace=None, resource_version="0"), 1)


async def test_a_bookmark_breaks_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpjob.local.store.BOOKMARK_SECONDS", 0.001)
    events = await take(local().watch(PODS, namespace=None, resource_version="0"), 2)
    assert [event.type for event in events] == ["BOOKMARK", "BOOKMARK"]


async def test_an_ended_watch_can_go_on_where_it_stood() -> None:
    cluster = local()
    await cluster.create(PODS, "default", pod("a"))
    events = cluster.watch(PODS, namespace=None, resource_version="0")
    await take(events, 1)
    ended = asyncio.ensure_future(take(events, 1))
    await asyncio.sleep(0)
    cluster.end_watches()
    with pytest.raises(StopAsyncIteration):
        await ended
    await cluster.create(PODS, "default", pod("b"))
    (event,) = await take(cluster.watch(PODS, namespace=None, resource_version="1"), 1)
    assert event.object["metadata"]["name"] == "b"


async def test_a_watcher_that_replays_every_event_holds_what_a_list_holds() -> None:
    cluster, chance = local(), random.Random(4)
    seen: dict[str, Body] = {}
    events = cluster.watch(PODS, namespace=None, labels="x=0", resource_version="0")
    for step in range(300):
        name = f"p{chance.randrange(6)}"
        found = [p for p in (await cluster.list(PODS, namespace=None)).items]
        now = next((p for p in found if p["metadata"]["name"] == name), None)
        if now is None:
            await cluster.create(PODS, "default", pod(name, labels={"x": str(step % 3)}))
        elif chance.random() < 0.3:
            grace = chance.choice([0, 5, 60])
            uid = now["metadata"]["uid"]
            await cluster.delete(PODS, "default", name, uid=uid, grace_seconds=grace)
        else:
            now["metadata"]["labels"] = {"x": str(step % 3)}
            await cluster.update(PODS, "default", now)
    await cluster.create(PODS, "default", pod("last", labels={"x": "0"}))
    while "last" not in seen:
        (event,) = await take(events, 1)
        name = event.object["metadata"]["name"]
        if event.type == "DELETED":
            del seen[name]
        else:
            assert (event.type == "ADDED") == (name not in seen)
            seen[name] = event.object
    listed = (await cluster.list(PODS, namespace=None, labels="x=0")).items
    assert [seen[name] for name in sorted(seen)] == listed
