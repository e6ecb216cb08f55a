"""The whole loop on the embedded cluster: real controller, real caches, real status writes."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import (
    CONFIGMAPS,
    DDPJOBS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Resource,
)
from ddpjob.controller.controller import load_agent
from ddpjob.controller.events import record_event
from ddpjob.errors import Refused
from ddpjob.json_depth import Body
from ddpjob.plan.decision import Event
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.builders import job_object
from tests.localplay import FAST, NAMESPACE, Watched, end_pod, operating, until


def fails_once(attempt: int, rank: int) -> int | None:
    """Rank 1 of the first attempt fails, the others of it run on; the second attempt succeeds."""
    if attempt == 0:
        return 1 if rank == 1 else None
    return 0


async def submit(cluster: Watched, name: str = "digits", **spec: Any) -> Body:
    return await cluster.create(DDPJOBS, NAMESPACE, job_object(name, **{"nnodes": 3, **spec}))


async def stored(cluster: Watched, name: str = "digits") -> Body:
    return await cluster.get(DDPJOBS, NAMESPACE, name)


async def in_state(cluster: Watched, state: str, name: str = "digits") -> Body:
    async def look() -> Body | None:
        job = await stored(cluster, name)
        return job if job.get("status", {}).get("state") == state else None

    job: Body = await until(look)
    return job


async def pod_names(cluster: Watched) -> list[str]:
    return [p["metadata"]["name"] for p in (await cluster.list(PODS, namespace=NAMESPACE)).items]


async def quiet(cluster: Watched) -> None:
    """Until the operator has made no write for a while."""
    while True:
        before = sum(cluster.writes.values())
        for _ in range(10):  # so that a pause of this whole process does not pass for quiet
            await asyncio.sleep(0.01)
        if sum(cluster.writes.values()) == before:
            return


async def test_a_job_runs_and_succeeds_with_few_writes() -> None:
    cluster = Watched()
    await submit(cluster)
    async with operating(cluster, lambda attempt, rank: 0):
        job = await in_state(cluster, "Succeeded")
        await quiet(cluster)
    assert job["status"]["summary"]["nodes"] == "3/3"
    creates = {key: n for key, n in cluster.writes.items() if key[0] == "create"}
    assert set(creates.values()) == {1} and len(creates) == 6
    assert cluster.writes["delete", "ConfigMap", "digits-agent-" + _digest(creates)] == 1
    assert await pod_names(cluster) == ["digits-0-0", "digits-0-1", "digits-0-2"]


def _digest(writes: dict[tuple[str, str, str], int]) -> str:
    (name,) = [name for _, kind, name in writes if kind == "ConfigMap"]
    return name.rpartition("-")[2]


async def test_a_failed_rank_restarts_the_group_once() -> None:
    cluster = Watched()
    await submit(cluster)
    async with operating(cluster, fails_once):
        job = await in_state(cluster, "Succeeded")
        await quiet(cluster)
    status = job["status"]
    assert (status["attempt"], status["restarts"], status["budget"]["charged"]) == (1, 1, 1)
    assert status["failure"]["pod"] == "digits-0-1"
    assert await pod_names(cluster) == ["digits-0-1", "digits-1-0", "digits-1-1", "digits-1-2"]


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


async def test_suspend_and_resume() -> None:
    cluster = Watched()
    body = await submit(cluster)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        body = await stored(cluster)
        await cluster.update(DDPJOBS, NAMESPACE, _with_spec(body, suspend=True))
        await in_state(cluster, "Suspended")
        assert await pod_names(cluster) == []
        body = await stored(cluster)
        await cluster.update(DDPJOBS, NAMESPACE, _with_spec(body, suspend=False, nnodes=2))
        job = await in_state(cluster, "Running")
        assert await pod_names(cluster) == ["digits-1-0", "digits-1-1"]
    assert job["status"]["restarts"] == 0


async def test_a_network_policy_that_was_edited_while_suspended_is_the_new_one() -> None:
    async def policies() -> list[Any]:
        found = (await cluster.list(NETWORK_POLICIES, namespace=NAMESPACE)).items
        return [policy["spec"]["policyTypes"] for policy in found]

    cluster = Watched()
    await submit(cluster)
    wishes: list[dict[str, Any]] = [{"egress": []}, {"enabled": False}, {"egress": None}]
    seen = []
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        seen.append(await policies())
        for wish in wishes:
            body = _with_spec(await stored(cluster), suspend=True)
            await cluster.update(DDPJOBS, NAMESPACE, body)
            await in_state(cluster, "Suspended")
            body = _with_spec(await stored(cluster), suspend=False, networkPolicy=wish)
            await cluster.update(DDPJOBS, NAMESPACE, body)
            await in_state(cluster, "Running")
            seen.append(await policies())
    assert seen == [[["Ingress"]], [["Ingress", "Egress"]], [], [["Ingress"]]]


class Protected(Watched):
    """An admission policy lets nobody delete a pod of somebody else's, while the attempt lasts."""

    refused = 0

    async def delete(self, resource: Resource, namespace: str, name: str, **options: Any) -> Any:
        if resource == PODS and name == "digits-0-7" and not await left_its_attempt(self):
            self.refused += 1
            raise Refused(403, "Forbidden", "pods of others stay")
        return await super().delete(resource, namespace, name, **options)


async def test_a_stray_whose_deletion_is_refused_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is there before the job's own pods, whose creation is the same step as its deletion."""
    caplog.set_level(logging.INFO, "ddpjob")
    monkeypatch.setattr("ddpjob.plan.strays.STRAY_SECONDS", 0.0)
    cluster = Protected()
    job = DDPJob.parse(await submit(cluster))
    ours = orjson.loads(render.pods(job, load_agent(), Policy()).body(1))
    ours["metadata"]["name"] = "digits-0-7"
    await cluster.create(PODS, NAMESPACE, ours)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        assert cluster.refused
        await end_pod(cluster, await cluster.get(PODS, NAMESPACE, "digits-0-1"), 1)
        await until(lambda: left_its_attempt(cluster))
    assert cluster.refused <= 3
    told = [line for line in caplog.text.splitlines() if "pods of others stay" in line]
    assert told and not [line for line in told if "retry_in" in line], "it is an error of no step"


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
        await until(lambda: left_its_attempt(cluster))
    failure = (await stored(cluster))["status"]["failure"]
    assert failure["reason"] == "StartupDeadlineExceeded" and "quota" in failure["message"]


async def left_its_attempt(cluster: Watched) -> bool:
    status = (await stored(cluster)).get("status") or {}
    return bool(status.get("restarts") == 1)


async def test_a_finished_job_that_is_invalid_by_now_keeps_what_it_says() -> None:
    """The cache has a part of it; what is written is the whole."""
    cluster = Watched()
    await submit(cluster, failurePolicy={"maxRestarts": 0})
    async with operating(cluster, lambda attempt, rank: 1):
        before = (await in_state(cluster, "Failed"))["status"]
        await quiet(cluster)
        cluster._admit = lambda resource, body: body
        body = _with_spec(await stored(cluster), image="no image")  # as it once was allowed
        kept = await cluster.update(DDPJOBS, NAMESPACE, body)
        odd = {**kept["status"], "summary": {"nodes": "9/9"}}  # so that something is to be written
        await cluster.update_status(DDPJOBS, NAMESPACE, {**kept, "status": odd})

        async def told() -> Body | None:
            found: Body = (await stored(cluster))["status"]
            return found if "Invalid" in {c["reason"] for c in found["conditions"]} else None

        after: Body = await until(told)
    for field in ("failure", "history", "startTime", "worldSize", "budget"):
        assert after[field] == before[field], field


def widened(body: Body) -> Body:
    """The NetworkPolicy, with one peer that somebody has opened to all namespaces."""
    found: Body = orjson.loads(orjson.dumps(body))
    found["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {}
    return found


def emptied(body: Body) -> Body:
    """The ConfigMap, with an agent of somebody else's."""
    return {**body, "data": {**body["data"], "agent.py": "import theirs"}}


def unlocked(body: Body) -> Body:
    """The ConfigMap, so that it can be changed while the pods run."""
    return {name: value for name, value in body.items() if name != "immutable"}


def opened(body: Body) -> Body:
    """The NetworkPolicy, with a rule more."""
    found: Body = orjson.loads(orjson.dumps(body))
    found["spec"]["ingress"].append({})
    return found


@pytest.mark.parametrize(
    ("resource", "forge"),
    [
        (NETWORK_POLICIES, widened),
        (NETWORK_POLICIES, opened),
        (CONFIGMAPS, emptied),
        (CONFIGMAPS, unlocked),
    ],
)
async def test_what_somebody_else_has_made_in_the_jobs_name_is_made_anew(
    resource: Resource, forge: Callable[[Body], Body]
) -> None:
    """By the right name, labels and owner, before the job makes it itself."""
    cluster = Watched()
    made = DDPJob.parse(await submit(cluster, suspend=True))
    ours = render.config_map(made, load_agent())
    if resource == NETWORK_POLICIES:
        ours = render.network_policy(made, Policy()) or {}
    theirs = await cluster.create(resource, NAMESPACE, forge(ours))
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Suspended")
        body = await stored(cluster)
        await cluster.update(DDPJOBS, NAMESPACE, _with_spec(body, suspend=False))
        await in_state(cluster, "Running")
    found = await cluster.get(resource, NAMESPACE, ours["metadata"]["name"])
    assert found["metadata"]["uid"] != theirs["metadata"]["uid"]
    for part in ("spec", "data", "immutable"):
        assert found.get(part) == ours.get(part)


async def test_a_job_that_an_edit_has_broken_still_ends_at_its_deadline() -> None:
    cluster = Watched()
    await submit(cluster, activeDeadlineSeconds=3)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        body = _with_spec(await stored(cluster), template={"spec": {"hostNetwork": True}})
        await cluster.update(DDPJOBS, NAMESPACE, body)
        await end_pod(cluster, await cluster.get(PODS, NAMESPACE, "digits-0-1"), 1)
        job = await in_state(cluster, "Failed")
    conditions = {c["type"]: c["reason"] for c in job["status"]["conditions"]}
    assert (conditions["Failed"], conditions["Accepted"]) == ("DeadlineExceeded", "Invalid")


def _with_spec(body: Body, **changes: Any) -> Body:
    return {**body, "spec": {**body["spec"], **changes}}


async def test_deleting_a_job_leaves_nothing_and_frees_its_name() -> None:
    cluster = Watched()
    body = await submit(cluster)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        await cluster.delete(DDPJOBS, NAMESPACE, "digits", uid=body["metadata"]["uid"])
        again = await submit(cluster)
        await in_state(cluster, "Running")
        pods = (await cluster.list(PODS, namespace=NAMESPACE)).items
    uids = {pod["metadata"]["labels"][names.JOB_UID_LABEL] for pod in pods}
    assert uids == {again["metadata"]["uid"]} and len(pods) == 3


@pytest.mark.parametrize(
    "resource", [SERVICES, CONFIGMAPS, NETWORK_POLICIES], ids=lambda r: str(r.kind)
)
async def test_a_foreign_object_of_our_name_is_left_alone(resource: Any) -> None:
    cluster = Watched()
    probe = Watched()
    await submit(probe)
    async with operating(probe, lambda attempt, rank: None):
        await in_state(probe, "Running")
    (ours,) = (await probe.list(resource, namespace=NAMESPACE)).items
    name = ours["metadata"]["name"]
    foreign = await cluster.create(resource, NAMESPACE, {"metadata": {"name": name}})
    await submit(cluster)

    async def refused() -> bool:
        conditions = (await stored(cluster)).get("status", {}).get("conditions", [])
        return any(c["reason"] == "NameTaken" for c in conditions)

    async with operating(cluster, lambda attempt, rank: 0):
        await until(refused)
        assert await pod_names(cluster) == []
        assert await cluster.get(resource, NAMESPACE, name) == foreign
        await cluster.delete(resource, NAMESPACE, name, uid=foreign["metadata"]["uid"])
        await in_state(cluster, "Succeeded")


async def test_a_poison_job_says_why_and_hurts_no_other() -> None:
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


def shape(cluster: Watched, job: Body, pods: list[str]) -> tuple[Any, ...]:
    status = job["status"]
    creates = {
        (v, k, n): c for (v, k, n), c in cluster.writes.items() if v == "create" and k == "Pod"
    }
    return status["state"], status["attempt"], status["restarts"], status["budget"], pods, creates


async def one_run(kill_at: tuple[int, str] | None) -> tuple[tuple[Any, ...], int]:
    """End state and number of writes of: create, rank 1 fails, restart, succeed."""
    cluster = Watched()
    cluster.kill_at = kill_at
    await submit(cluster)
    async with operating(cluster, fails_once):
        job = await in_state(cluster, "Succeeded")
        await quiet(cluster)
    return shape(cluster, job, await pod_names(cluster)), sum(cluster.writes.values())


async def test_dying_before_or_after_any_write_changes_nothing() -> None:
    """Exhaustive: each write in turn is the operator's last, once unmade and once unanswered."""
    reference, writes = await one_run(None)
    assert writes > 10
    for number in range(writes):
        for when in ("before", "after"):
            found, _ = await one_run((number, when))
            # A write that was tried and not made is tried again: only what was stored counts.
            assert found[:5] == reference[:5], (number, when)


async def test_an_event_that_exists_is_not_created_again() -> None:
    cluster = Watched()
    job = DDPJob.parse(await submit(cluster))
    for message in ("rank 1 failed", "rank 1 failed", "rank 2 failed"):
        await record_event(cluster, job, Event("Restarting", message))
    events = (await cluster.list(EVENTS, namespace=NAMESPACE)).items
    assert sorted(e["message"] for e in events) == ["rank 1 failed", "rank 2 failed"]


class Older(Watched):
    """A definition that does not know `status.pods`, so that the API server drops it."""

    async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
        if resource == DDPJOBS:
            known = {name: value for name, value in body["status"].items() if name != "pods"}
            body = {**body, "status": known}
        return await super().update_status(resource, namespace, body)


async def test_an_older_definition_is_told_by_an_event_of_the_job() -> None:
    cluster = Older()
    await submit(cluster)

    async def told() -> list[Body]:
        return (await cluster.list(EVENTS, namespace=NAMESPACE)).items

    async with operating(cluster, lambda attempt, rank: None):
        (event, *more) = await until(told)
        assert await pod_names(cluster) == []
    assert not more and (event["type"], event["reason"]) == ("Warning", "OldDefinition")
    assert "apply manifests/crd.yaml" in event["message"]
