"""What a job owns is created once, made anew where somebody has changed it, and nobody else's."""

import logging
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import CONFIGMAPS, DDPJOBS, NETWORK_POLICIES, PODS, SERVICES, Resource
from ddpjob.controller.controller import Controller, load_agent
from ddpjob.controller.memory import job_record
from ddpjob.errors import Refused
from ddpjob.json_depth import Body
from ddpjob.plan.podrecord import pod_record
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.objects import owner_of
from tests.builders import job_object, running
from tests.localplay import (
    NAMESPACE,
    Refusing,
    Watched,
    accepted,
    end_pod,
    has_restarted,
    in_state,
    keep_running,
    operating,
    pod_names,
    quiet,
    side_by_side,
    stored,
    submit,
    until,
    with_spec,
)


class Protected(Watched):
    """An admission policy lets nobody delete a pod of somebody else's, while the attempt lasts."""

    refused = 0

    async def delete(self, resource: Resource, namespace: str, name: str, **options: Any) -> Any:
        if resource == PODS and name == "digits-0-7" and not await has_restarted(self):
            self.refused += 1
            raise Refused(403, "Forbidden", "pods of others stay")
        return await super().delete(resource, namespace, name, **options)


async def test_a_stray_whose_deletion_is_refused_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is there before the job's own pods, whose creation is the same step as its deletion."""
    caplog.set_level(logging.INFO, "ddpjob")
    monkeypatch.setattr("ddpjob.plan.cleanup.STRAY_SECONDS", 0.0)
    cluster = Protected()
    job = DDPJob.parse(await submit(cluster))
    ours = orjson.loads(render.pods(job, load_agent(), Policy()).body(1))
    ours["metadata"]["name"] = "digits-0-7"
    await cluster.create(PODS, NAMESPACE, ours)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        assert cluster.refused
        await end_pod(cluster, await cluster.get(PODS, NAMESPACE, "digits-0-1"), 1)
        await until(lambda: has_restarted(cluster))
    assert cluster.refused <= 3
    told = [line for line in caplog.text.splitlines() if "pods of others stay" in line]
    assert told and not [line for line in told if "retry_in" in line], "it is an error of no step"


def widened(body: Body) -> Body:
    """The NetworkPolicy, with one peer that somebody has opened to all namespaces."""
    found: Body = orjson.loads(orjson.dumps(body))
    found["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {}
    return found


def opened(body: Body) -> Body:
    """The NetworkPolicy, with a rule more."""
    found: Body = orjson.loads(orjson.dumps(body))
    found["spec"]["ingress"].append({})
    return found


@pytest.mark.parametrize("forge", [widened, opened])
async def test_a_network_policy_that_somebody_else_has_made_is_made_anew(
    forge: Callable[[Body], Body],
) -> None:
    """By the right name, labels and owner, before the job makes it itself."""
    cluster = Watched()
    made = DDPJob.parse(await submit(cluster, suspend=True))
    ours = render.network_policy(made, Policy()) or {}
    theirs = await cluster.create(NETWORK_POLICIES, NAMESPACE, forge(ours))
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Suspended")
        body = await stored(cluster)
        await cluster.update(DDPJOBS, NAMESPACE, with_spec(body, suspend=False))
        await in_state(cluster, "Running")
    found = await cluster.get(NETWORK_POLICIES, NAMESPACE, ours["metadata"]["name"])
    assert found["metadata"]["uid"] != theirs["metadata"]["uid"]
    assert found["spec"] == ours["spec"]


async def tokens(cluster: Watched) -> set[str]:
    """What the pods of the jobs have; that of rank 0 alone is read."""
    found = (await cluster.list(PODS, namespace=NAMESPACE, keep=pod_record)).items
    return {pod.token for pod in found if pod.rank == 0}


async def test_a_token_is_made_once_for_a_job_and_found_by_every_operator() -> None:
    cluster = Watched()
    await submit(cluster, failurePolicy={"restartStrategy": "Recreate"})
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
    (token,) = await tokens(cluster)
    async with operating(cluster, lambda attempt, rank: None):
        await end_pod(cluster, await cluster.get(PODS, NAMESPACE, "digits-0-1"), 1)
        await until(lambda: has_restarted(cluster))
        await in_state(cluster, "Running")
    assert "digits-1-0" in await pod_names(cluster) and await tokens(cluster) == {token}
    service = await cluster.get(SERVICES, NAMESPACE, "digits")
    assert names.as_token(token) == service["metadata"]["annotations"][names.TOKEN_ANNOTATION]


async def test_the_token_of_an_earlier_version_is_read_from_the_jobs_own_config_map() -> None:
    cluster = Watched()
    body = await submit(cluster)
    desk, record, pod = Controller(cluster), job_record(body), running(0)
    content = {"token": b64encode(b"t" * 32).decode()}
    for name in ("digits-agent-0123abcd", "other"):
        await cluster.create(
            CONFIGMAPS, NAMESPACE, {"metadata": {"name": name}, "binaryData": content}
        )
    assert await desk.old_token(record, replace(pod, old_agent="digits-agent-0123abcd")) == "t" * 32
    for name in ("", "other", "digits-agent-..", "digits-agent-99999999"):
        assert await desk.old_token(record, replace(pod, old_agent=name)) == ""


@pytest.mark.parametrize("token", ["", "short", "t" * 31 + " ", "\xe9" * 32])
async def test_a_token_that_is_none_of_ours_is_not_used(token: str) -> None:
    cluster = Watched()
    made = DDPJob.parse(await submit(cluster))
    await cluster.create(SERVICES, NAMESPACE, render.service(made, token))
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
    (found,) = await tokens(cluster)
    assert names.as_token(found) and found != token


async def test_the_agent_is_there_while_a_pod_waits_for_its_volumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes with the job that has made it, and others may delete it too."""
    monkeypatch.setattr("ddpjob.controller.children.AGENT_SECONDS", 0.02)
    monkeypatch.setattr("ddpjob.controller.reconcile.AGENT_SECONDS", 0.02)
    cluster = Watched()
    for name in ("first", "second"):
        await submit(cluster, name)
    async with side_by_side(keep_running(cluster)):
        for name in ("first", "second"):
            await in_state(cluster, "Starting", name)
        made = await until(lambda: agent_of(cluster))
        assert cluster.writes["create", "ConfigMap", made["metadata"]["name"]] == 1
        await cluster.delete(
            CONFIGMAPS, NAMESPACE, made["metadata"]["name"], uid=made["metadata"]["uid"]
        )
        again = await until(lambda: agent_of(cluster))
        assert again["metadata"]["uid"] != made["metadata"]["uid"]
        (owner,) = again["metadata"]["ownerReferences"]
        await cluster.delete(DDPJOBS, NAMESPACE, owner["name"], uid=owner["uid"])
        last = await until(lambda: agent_of(cluster, but=owner["uid"]))
        assert last["binaryData"] == made["binaryData"] and last["immutable"] is True


async def test_an_agent_that_belongs_to_no_job_any_more_is_made_anew() -> None:
    """Kubernetes' garbage collector would take it away under the pods of the next job."""
    cluster = Watched()
    job = DDPJob.parse(await submit(cluster))
    other = await cluster.create(SERVICES, NAMESPACE, {"metadata": {"name": "other"}})
    body = render.config_map(job, load_agent())
    owner = {"name": "other", "uid": other["metadata"]["uid"]}  # the one here collects at once
    body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Service", **owner}]
    left = await cluster.create(CONFIGMAPS, NAMESPACE, body)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
    found = await agent_of(cluster)
    assert found and found["metadata"]["uid"] != left["metadata"]["uid"]
    assert found["metadata"]["ownerReferences"] == [owner_of(job)]


async def agent_of(cluster: Watched, *, but: str = "") -> Body | None:
    """The ConfigMap with the agent, unless this job owns it."""
    for found in (await cluster.list(CONFIGMAPS, namespace=NAMESPACE)).items:
        if found["metadata"]["ownerReferences"][0]["uid"] != but:
            return dict(found)
    return None


@pytest.mark.parametrize(
    "resource", [SERVICES, CONFIGMAPS, NETWORK_POLICIES], ids=lambda r: str(r.kind)
)
async def test_an_object_of_a_childs_name_that_is_not_the_jobs_is_left_alone(resource: Any) -> None:
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


async def test_a_quota_that_is_contended_is_no_taken_name() -> None:
    cluster = Refusing()
    cluster.code, cluster.reason, cluster.text = 409, "Conflict", "resourcequotas: modified"
    await submit(cluster, nnodes=2)
    async with operating(cluster, lambda attempt, rank: None):
        await until(lambda: cluster.refused > 14)
        found = await cluster.get(DDPJOBS, NAMESPACE, "digits")
    assert "NameTaken" not in [c["reason"] for c in found["status"]["conditions"]]


async def test_a_service_whose_selector_was_edited_is_reported_and_not_used() -> None:
    cluster = Watched()
    await cluster.create(DDPJOBS, NAMESPACE, job_object())
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        service = await cluster.get(SERVICES, NAMESPACE, "digits")
        service["spec"]["ports"][0]["port"] = 1234  # a headless one has no use for it
        service["spec"]["selector"] = {"app": "other"}
        service = await cluster.update(SERVICES, NAMESPACE, service)
        pod = await cluster.get(PODS, NAMESPACE, "digits-0-0")
        await cluster.delete(PODS, NAMESPACE, "digits-0-0", uid=pod["metadata"]["uid"])

        async def told() -> bool:
            said = accepted(await cluster.get(DDPJOBS, NAMESPACE, "digits"))
            return said["reason"] == "NameTaken" and "was edited" in said["message"]

        await until(told)
        assert not [n for n in await pod_names(cluster) if n.startswith("digits-1")]
        uid = service["metadata"]["uid"]
        await cluster.delete(SERVICES, NAMESPACE, "digits", uid=uid)
        job = await in_state(cluster, "Running")
        assert job["status"]["restarts"] == 1


async def test_an_upgrade_with_another_agent_leaves_a_running_job_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pods have their own agent to the end."""
    cluster = Watched()
    await submit(cluster)
    with monkeypatch.context() as earlier:
        agent = render.Agent(b"of an earlier version")
        earlier.setattr("ddpjob.controller.controller.load_agent", lambda: agent)
        async with operating(cluster, lambda attempt, rank: None):
            await in_state(cluster, "Running")
            await quiet(cluster)
    before = await cluster.list(PODS, namespace=NAMESPACE)
    async with operating(cluster, lambda attempt, rank: 0):
        job = await in_state(cluster, "Succeeded")
        await quiet(cluster)
    after = await cluster.list(PODS, namespace=NAMESPACE)
    assert [p["metadata"]["uid"] for p in after.items] == [
        p["metadata"]["uid"] for p in before.items
    ]
    assert job["status"]["restarts"] == 0
