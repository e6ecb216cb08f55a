"""One job's loop on the embedded cluster: real controller, real caches, real status writes."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import orjson

from ddpjob.api import DDPJob
from ddpjob.cluster import DDPJOBS, EVENTS, PODS, Listing, Resource
from ddpjob.controller.controller import Controller, load_agent
from ddpjob.controller.memory import MOST_PARTED, Memory, job_record
from ddpjob.errors import Refused
from ddpjob.json_depth import Body
from ddpjob.local.cluster import LocalCluster
from ddpjob.plan.own import Proofs
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from ddpjob.settings import Settings
from tests.builders import (
    NOW,
    STRANGERS,
    decide,
    failed,
    job,
    job_object,
    record_of_job,
    running,
    whole,
    with_status,
)
from tests.localplay import (
    FAST,
    NAMESPACE,
    Refusing,
    Watched,
    accepted,
    end_pod,
    has_restarted,
    in_state,
    operating,
    pod_names,
    quiet,
    stored,
    submit,
    until,
    with_spec,
)


async def test_a_job_runs_and_succeeds_with_few_writes() -> None:
    cluster = Watched()
    await submit(cluster)
    async with operating(cluster, lambda attempt, rank: 0):
        job = await in_state(cluster, "Succeeded")
        await quiet(cluster)
    assert job["status"]["summary"]["nodes"] == "3/3"
    creates = {key: n for key, n in cluster.writes.items() if key[0] == "create"}
    assert set(creates.values()) == {1} and len(creates) == 6
    assert await pod_names(cluster) == ["digits-0-0", "digits-0-1", "digits-0-2"]


def test_who_is_silent_in_one_attempt_is_not_in_the_next() -> None:
    """The answer to the write that began it may be lost, or another operator may have made it."""
    ours = job()
    record = record_of_job(ours)
    controller, memory = Controller(LocalCluster()), Memory()
    controller.reconciler.memories[record.uid] = memory
    controller.take_silent(record, (0, 0), frozenset((1,)))
    later = with_status(ours, ours.status.model_copy(update={"attempt": 1}))
    observe = controller.reconciler._observe
    assert observe(ours, memory).silent == {1} and not observe(later, memory).silent
    controller.take_silent(record, (1, 0), frozenset((2,)))
    controller.take_silent(record, (0, 0), frozenset((1, 3)))
    assert observe(later, memory).silent == {2}
    memory.enter(1, 0, (1, 0))
    assert not observe(ours, memory).silent and observe(later, memory).silent == {2}


def test_how_a_pod_ended_is_seen_when_it_is_gone_before_the_next_decision() -> None:
    """A kubelet needs less than a second from the end of a pod that is deleted to its going."""
    ours = whole()
    controller, memory = Controller(LocalCluster()), Memory()
    controller.reconciler.memories[ours.uid] = memory
    caches = controller.reconciler.caches
    for rank in (0, 1):
        caches.put_pod(running(rank))
    going = failed(1, deleting=True, disruption="Evicted", node="node-1", resource_version=30)
    caches.put_pod(going)
    caches.remove_pod(going.uid)
    observed = controller.reconciler._observe(ours, memory)
    step = decide(ours, observed, NOW)
    assert step.status.failure and step.status.failure.reason == "Evicted"
    assert (step.status.attempt, step.status.round) == (0, 1)
    assert not step.delete
    # Of a pod that somebody else has made, nothing is kept that would have its name.
    theirs = replace(going, uid="another", uid_print="other!", root=STRANGERS)
    caches.put_pod(theirs)
    caches.remove_pod("another")
    assert theirs.uid in memory.parted
    assert len(controller.reconciler._observe(ours, memory).pods) == 2
    assert theirs.uid not in memory.parted
    after = with_status(ours, step.status)
    assert not decide(after, controller.reconciler._observe(after, memory), NOW).delete
    memory.enter(0, 1, (0, 1))
    assert len(controller.reconciler._observe(after, memory).pods) == 1


def test_of_pods_that_are_gone_few_are_kept_and_none_that_may_live() -> None:
    memory = Memory()
    memory.part(running(1, deleting=True))
    memory.part(failed(1))
    memory.part(failed(1, attempt=1, deleting=True))
    assert not memory.parted
    for rank in range(MOST_PARTED + 1):
        memory.part(failed(rank, deleting=True))
    assert len(memory.parted) == MOST_PARTED


def test_what_belongs_to_an_attempt_or_a_round_ends_with_it_whoever_ends_it() -> None:
    """An operator that led meanwhile may have."""
    memory = Memory(secondary_at=1.0, create_error_at=2.0, prepared=(1, (0, 0), None, (), ""))
    memory.enter(0, 0, (0, 0))
    assert (memory.secondary_at, memory.create_error_at) == (1.0, 2.0)
    memory.enter(0, 1, (0, 0))
    assert (memory.secondary_at, memory.create_error_at) == (None, 2.0)
    memory.secondary_at = 3.0
    memory.enter(1, 0, (1, 0))
    assert [memory.secondary_at, memory.create_error_at, memory.prepared] == [None] * 3


async def test_nothing_is_written_at_rest() -> None:
    cluster = Watched()
    await submit(cluster)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        await quiet(cluster)
        before = Counter(cluster.writes)
        cluster.end_watches()
        await asyncio.sleep(0.5)
        assert cluster.writes == before


class Full(Watched):
    """A quota that no pod of rank 1 fits into."""

    async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
        if resource == PODS and orjson.loads(body)["metadata"]["name"].endswith("-1"):
            raise Refused(403, "Forbidden", "exceeded quota")
        return await super().create(resource, namespace, body)


async def test_a_deadline_to_start_does_not_wait_for_the_back_off_of_refused_pods() -> None:
    """With a back-off of an hour."""
    cluster = Full()
    await submit(cluster, startupDeadlineSeconds=3)
    slow = replace(FAST, backoff_first=3600.0, backoff_cap=3600.0)
    async with operating(cluster, lambda attempt, rank: None, slow):
        await until(lambda: has_restarted(cluster))
    failure = (await stored(cluster))["status"]["failure"]
    assert failure["reason"] == "StartupDeadlineExceeded" and "quota" in failure["message"]


async def test_a_finished_job_that_is_invalid_by_now_keeps_its_status() -> None:
    """The cache has a part of it; what is written is the whole."""
    cluster = Watched()
    await submit(cluster, failurePolicy={"maxRestarts": 0})
    async with operating(cluster, lambda attempt, rank: 1):
        before = (await in_state(cluster, "Failed"))["status"]
        await quiet(cluster)
        cluster._admit = lambda resource, body: body
        body = with_spec(await stored(cluster), image="no image")  # as it once was allowed
        kept = await cluster.update(DDPJOBS, NAMESPACE, body)
        odd = {**kept["status"], "summary": {"nodes": "9/9"}}  # so that something is to be written
        await cluster.update_status(DDPJOBS, NAMESPACE, {**kept, "status": odd})

        async def told() -> Body | None:
            found: Body = (await stored(cluster))["status"]
            return found if "Invalid" in {c["reason"] for c in found["conditions"]} else None

        after: Body = await until(told)
    for field in ("failure", "history", "startTime", "worldSize", "budget"):
        assert after[field] == before[field], field


async def test_a_job_that_an_edit_has_broken_still_ends_at_its_deadline() -> None:
    cluster = Watched()
    await submit(cluster, activeDeadlineSeconds=3)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        body = with_spec(await stored(cluster), template={"spec": {"hostNetwork": True}})
        await cluster.update(DDPJOBS, NAMESPACE, body)
        await end_pod(cluster, await cluster.get(PODS, NAMESPACE, "digits-0-1"), 1)
        job = await in_state(cluster, "Failed")
    conditions = {c["type"]: c["reason"] for c in job["status"]["conditions"]}
    assert (conditions["Failed"], conditions["Accepted"]) == ("DeadlineExceeded", "Invalid")


async def test_an_invalid_job_shows_its_error_and_delays_no_other() -> None:
    cluster = Watched()
    await submit(cluster, "poison", template={"spec": {"hostNetwork": True}})
    await submit(cluster, "healthy")
    async with operating(cluster, lambda attempt, rank: 0):
        await in_state(cluster, "Succeeded", "healthy")
        job = await in_state(cluster, "Pending", "poison")
        await quiet(cluster)
    (condition,) = [c for c in job["status"]["conditions"] if c["type"] == "Accepted"]
    assert condition["reason"] == "Invalid" and "hostNetwork" in condition["message"]
    assert not [name for name in await pod_names(cluster) if name.startswith("poison")]


class Older(Watched):
    """A definition that does not know `unknown` of the status, so that the API server drops it."""

    unknown = "pods"

    async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
        if resource == DDPJOBS:
            known = {name: value for name, value in body["status"].items() if name != self.unknown}
            kept = {n: v for n, v in known["summary"].items() if n != self.unknown}
            body = {**body, "status": {**known, "summary": kept}}
        return await super().update_status(resource, namespace, body)


async def test_an_older_definition_is_reported_by_an_event_of_the_job() -> None:
    cluster = Older()
    await submit(cluster)

    async def told() -> list[Body]:
        return (await cluster.list(EVENTS, namespace=NAMESPACE)).items

    async with operating(cluster, lambda attempt, rank: None):
        (event, *more) = await until(told)
        await quiet(cluster)
        assert await pod_names(cluster) == []
    assert not more and (event["type"], event["reason"]) == ("Warning", "OldDefinition")
    assert cluster.writes["status", "DDPJob", "digits"] < 10
    assert "apply manifests/crd.yaml" in event["message"]


async def test_a_refusal_with_a_new_message_each_time_is_not_tried_again_at_once() -> None:
    cluster = Refusing()
    await submit(cluster, nnodes=2)
    async with operating(cluster, lambda attempt, rank: None, settings=Settings()):
        await asyncio.sleep(1.0)
    assert cluster.refused < 20
    assert cluster.writes["status", "DDPJob", "digits"] < 10


class Between(Watched):
    """Another operator restarts the job after the pods have been read, and before the job is."""

    armed = False

    async def list(self, resource: Resource, **options: Any) -> Listing:
        listing = await super().list(resource, **options)
        if self.armed and resource == PODS:
            self.armed = False
            job = await self.get(DDPJOBS, NAMESPACE, "digits")
            own = {"attempt": 1, "roots": [another(job).root]}
            status = {**job["status"], "attempt": 1, "restarts": 1, "state": "Starting"}
            status["pods"] = [own]
            await self.update_status(DDPJOBS, NAMESPACE, {**job, "status": status})
            await self.create(PODS, NAMESPACE, render_pod(job, attempt=1))
        return listing


def render_pod(job: Body, *, attempt: int) -> Body:
    status = {**job["status"], "attempt": attempt}
    stamp = render.pods(DDPJob.parse({**job, "status": status}), load_agent(), Policy())
    found: Body = orjson.loads(stamp.body(0, another(job).of(0)))
    return found


def another(job: Body) -> Proofs:
    """Another operator's, of the job's second attempt."""
    return Proofs(b"another", job["metadata"]["uid"], 1, 0, job["spec"]["nnodes"])


async def test_pods_that_were_read_before_another_operator_began_an_attempt_are_not_its() -> None:
    cluster = Between()
    await cluster.create(DDPJOBS, NAMESPACE, job_object())
    async with operating(cluster, lambda attempt, rank: None):
        job = await in_state(cluster, "Running")
    controller = Controller(cluster.operator(), settings=FAST)
    controller.reconciler.caches.put_job(job_record(job))  # its watches are late
    pod = await cluster.get(PODS, NAMESPACE, "digits-0-0")
    await cluster.delete(PODS, NAMESPACE, "digits-0-0", uid=pod["metadata"]["uid"], grace_seconds=0)
    cluster.armed = True
    await controller.reconciler.reconcile(NAMESPACE, "digits")
    status = (await cluster.get(DDPJOBS, NAMESPACE, "digits"))["status"]
    assert not cluster.armed and (status["attempt"], status["restarts"]) == (1, 1)
    assert await cluster.get(PODS, NAMESPACE, "digits-1-0")


async def test_an_edit_of_a_running_job_is_checked_at_once() -> None:
    cluster = Watched()
    await cluster.create(DDPJOBS, NAMESPACE, job_object())
    async with operating(cluster, lambda attempt, rank: None):
        job = await in_state(cluster, "Running")
        for template, truth in (({"spec": {"hostNetwork": True}}, "False"), ({}, "True")):
            job["spec"]["template"] = template
            job = await cluster.update(DDPJOBS, NAMESPACE, job)

            async def said(truth: str = truth) -> Body | None:
                found = await cluster.get(DDPJOBS, NAMESPACE, "digits")
                return found if accepted(found)["status"] == truth else None

            job = await until(said)
            assert job["status"]["state"] == "Running"
