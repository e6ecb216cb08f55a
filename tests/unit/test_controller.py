"""What the caches take for a job and its pods, whatever somebody edits."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from ddpjob import names
from ddpjob.cluster import DDPJOBS, PODS
from ddpjob.controller.controller import Controller
from ddpjob.controller.memory import Memory, job_record
from ddpjob.json_depth import Body
from ddpjob.local.cluster import LocalCluster
from tests.builders import IDENTITY, job, job_object, record_of_job, running
from tests.localplay import (
    FAST,
    NAMESPACE,
    Watched,
    end_pod,
    in_state,
    operating,
    pod_names,
    side_by_side,
    submit,
    until,
    watching,
)


def test_pods_of_other_namespaces_are_not_missed() -> None:
    """Whoever knows a job's uid can name it as owner, and take the label off again."""
    record = record_of_job(job())
    controller, memory = Controller(LocalCluster()), Memory(missed=set())
    controller.reconciler.caches.put_job(record)
    controller.reconciler.memories[record.uid] = memory
    controller._pod_missed(replace(running(1), namespace="evil"))
    assert memory.missed == set()
    controller._pod_missed(running(1))
    assert memory.missed == {(0, 1, 0)}


def test_its_own_status_does_not_cut_a_back_off_short() -> None:
    record = record_of_job(job())
    controller = Controller(LocalCluster())
    controller.reconciler.caches.put_job(record)
    controller.reconciler.memories[record.uid] = Memory(version="7")
    controller.seen(record.namespace, record.name, "8")
    assert len(controller.queue) == 0, "news would pile up for as long as it stands by"
    controller.leading = True
    controller.seen(record.namespace, record.name, "7")
    assert len(controller.queue) == 0
    controller.seen(record.namespace, record.name, "8")
    assert len(controller.queue) == 1


async def test_every_watched_namespace_keeps_its_jobs() -> None:
    cluster = Watched()
    await submit(cluster, namespace="team", nnodes=2)
    await submit(cluster, namespace="other", nnodes=2)
    async with watching(cluster, "team", "other") as controller:
        await in_state(cluster, "Succeeded", namespace="team")
        assert len(controller.jobs) == 2


OTHER = {**IDENTITY["ownerReferences"][0], "uid": "another", "name": "other"}
LOSSES: dict[str, Callable[[Body], object]] = {
    "the label that is watched": lambda meta: meta["labels"].pop(names.MANAGED_BY_LABEL),
    "all labels": lambda meta: meta.pop("labels"),
    "its owner": lambda meta: meta.pop("ownerReferences"),
    "its controller": lambda meta: meta["ownerReferences"][0].pop("controller"),
    "its owner to another job": lambda meta: meta.update(ownerReferences=[OTHER]),
}


async def take_away(cluster: Watched, change: Callable[[Body], object]) -> Body:
    """Take rank 1's pod from the job, which runs; its metadata before that."""
    pod = await cluster.get(PODS, NAMESPACE, "digits-0-1")
    before: Body = copy.deepcopy(pod["metadata"])
    change(pod["metadata"])
    await cluster.update(PODS, NAMESPACE, pod)
    return before


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "while no operator runs"])
async def test_a_running_pod_that_is_taken_from_its_job_is_taken_back(
    loss: str, is_seen: bool
) -> None:
    """It trains on, so it still counts, and its end too."""
    cluster = Watched()
    await submit(cluster, nnodes=2)

    async def is_back() -> bool:
        meta = (await cluster.get(PODS, NAMESPACE, "digits-0-1"))["metadata"]
        return all(meta.get(name) == before[name] for name in ("labels", "ownerReferences"))

    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        await until(lambda: known_uids(cluster))
        if not is_seen:
            cluster.crashed.set()
        before = await take_away(cluster, LOSSES[loss])
        await until(is_back)
        for name in ("digits-0-0", "digits-0-1"):
            await end_pod(cluster, await cluster.get(PODS, NAMESPACE, name), 0)
        job = await in_state(cluster, "Succeeded")
    assert job["status"]["attempt"] == 0 and cluster.writes["create", "Pod", "digits-0-1"] == 1


async def known_uids(cluster: Watched) -> bool:
    """Whether the status knows both pods by their uids."""
    (table,) = (await cluster.get(DDPJOBS, NAMESPACE, "digits"))["status"]["pods"]
    return len(table.get("uids", "").replace(".", "")) == 12


@pytest.mark.parametrize("loss", LOSSES)
async def test_no_attempt_begins_beside_a_pod_that_was_taken_from_its_job(loss: str) -> None:
    cluster, beside = Watched(), list[str]()
    await submit(cluster, nnodes=2)

    async def watch_creations() -> None:
        async for event in cluster.watch(PODS, namespace=NAMESPACE, resource_version="0"):
            pods = (await cluster.list(PODS, namespace=NAMESPACE)).items
            alive = [pod["metadata"]["name"] for pod in pods if is_live(pod)]
            if event.type == "ADDED" and event.object["metadata"]["name"] == "digits-1-0":
                beside.extend(name for name in alive if name.startswith("digits-0-"))

    def is_live(pod: Body) -> bool:
        return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")

    async with (
        side_by_side(watch_creations()),
        operating(cluster, lambda attempt, rank: None),
    ):
        await in_state(cluster, "Running")
        await take_away(cluster, LOSSES[loss])
        await end_pod(cluster, await cluster.get(PODS, NAMESPACE, "digits-0-0"), 1)

        async def begun() -> bool:
            return "digits-1-1" in await pod_names(cluster)

        await until(begun)
    assert beside == []


@pytest.mark.parametrize(("deleted", "owners"), [(None, 1), ("2026-01-01T00:00:00Z", 0)])
async def test_a_pod_of_a_job_that_is_deleted_without_it_stays_free(
    deleted: str | None, owners: int
) -> None:
    """`kubectl delete --cascade=orphan` takes the owners away first."""
    cluster = Watched()
    await submit(cluster, nnodes=1)
    async with operating(cluster, lambda attempt, rank: None):
        job = await in_state(cluster, "Running")
    pod = await cluster.get(PODS, NAMESPACE, "digits-0-0")
    await cluster.update(PODS, NAMESPACE, {**pod, "metadata": without_owners(pod["metadata"])})
    job["metadata"]["deletionTimestamp"] = deleted
    controller = Controller(cluster.operator(), settings=FAST)
    controller.reconciler.caches.put_job(job_record(job))
    await controller.reconciler.reconcile(NAMESPACE, "digits")
    pod = await cluster.get(PODS, NAMESPACE, "digits-0-0")
    assert len(pod["metadata"].get("ownerReferences", [])) == owners


def without_owners(metadata: Body) -> Body:
    return {name: value for name, value in metadata.items() if name != "ownerReferences"}


@pytest.mark.parametrize("label", [names.RANK_LABEL, names.ATTEMPT_LABEL, names.JOB_LABEL])
async def test_a_pods_place_is_in_its_name_and_not_in_its_labels(label: str) -> None:
    cluster = Watched()
    await cluster.create(DDPJOBS, NAMESPACE, job_object(nnodes=1))
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        pod = await cluster.get(PODS, NAMESPACE, "digits-0-0")
        if label == names.JOB_LABEL:
            del pod["metadata"]["labels"][label]
        else:
            pod["metadata"]["labels"][label] = "7"
        await cluster.update(PODS, NAMESPACE, pod)
        cluster.crashed.set()  # so that a fresh operator sees it too
        await until(lambda: not cluster.crashed.is_set())
        await asyncio.sleep(0.3)
        assert await pod_names(cluster) == ["digits-0-0"]
        pod = await cluster.get(PODS, NAMESPACE, "digits-0-0")
        await end_pod(cluster, pod, 0)
        job = await in_state(cluster, "Succeeded")
        assert job["status"]["restarts"] == 0


async def test_old_news_of_a_deleted_job_does_not_hide_the_next_one_of_its_name() -> None:
    cluster = Watched()
    controller = Controller(cluster)
    first = await submit(cluster, nnodes=1)
    uid = first["metadata"]["uid"]
    controller._job_cache.put(job_record(first))
    edited = await cluster.get(DDPJOBS, NAMESPACE, "digits")
    edited["metadata"]["labels"] = {"a": "b"}
    changed = await cluster.update(DDPJOBS, NAMESPACE, edited)
    await cluster.delete(DDPJOBS, NAMESPACE, "digits", uid=uid)
    second = await submit(cluster, nnodes=1)
    controller._job_cache.put(job_record(second))  # read anew, while the watch is behind
    controller._job_cache.put(job_record(changed))
    controller._job_cache.remove(uid, job_record(second).resource_version - 1)
    controller._job_cache.put(job_record(second))
    assert controller.jobs[NAMESPACE, "digits"].uid == second["metadata"]["uid"]


async def test_the_next_job_of_a_name_does_not_wait_for_what_the_one_before_failed() -> None:
    controller, record = Controller(LocalCluster()), record_of_job(job())
    key = record.namespace, record.name
    controller._job_cache.put(record)
    assert max(controller.queue.retry(key) for _ in range(9)) > 10
    controller._job_cache.remove(record.uid)
    assert controller.queue.retry(key) <= 0.5


async def test_a_job_whose_time_to_live_was_taken_away_just_now_stays() -> None:
    cluster = Watched()
    controller = Controller(cluster)
    body = await submit(cluster, nnodes=1, ttlSecondsAfterFinished=60)
    status = {
        **{"state": "Succeeded", "completionTime": "2020-01-01T00:00:00Z"},
        **{"summary": {"nodes": "0/0", "attempt": "0.0"}},
        **{"goodput": {"since": "2020-01-01T00:00:00Z"}},
    }
    body = await cluster.update_status(DDPJOBS, NAMESPACE, {**body, "status": status})
    controller._job_cache.put(job_record(body))
    body["spec"].pop("ttlSecondsAfterFinished")
    await cluster.update(DDPJOBS, NAMESPACE, body)  # the watch is behind
    for _ in range(3):
        await controller.reconciler.reconcile(NAMESPACE, "digits")
    assert await cluster.get(DDPJOBS, NAMESPACE, "digits")
