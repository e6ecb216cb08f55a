"""Faults found by review, each with the smallest story that showed it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import DDPJOBS, PODS, SERVICES, Listing, Resource
from ddpjob.controller.controller import Controller, load_agent
from ddpjob.controller.jobrecord import job_record
from ddpjob.errors import InvalidJob, cluster_error
from ddpjob.json_depth import Body
from ddpjob.plan.observed import Observed, PodRecord
from ddpjob.plan.proof import Proofs
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from ddpjob.settings import Settings
from tests.builders import (
    NOW,
    decide,
    failed,
    job,
    job_object,
    pod,
    running,
    succeeded,
    with_status,
)
from tests.localplay import (
    FAST,
    NAMESPACE,
    OperatorView,
    Watched,
    end_pod,
    operating,
    play_pods,
    until,
)


def see(*pods: PodRecord) -> Observed:
    return Observed(pods=pods, confirmed=True, children_ready=True, spec_hash="hash")


def write(current: Any, *pods: PodRecord) -> Any:
    return with_status(current, decide(current, see(*pods), NOW).status)


def whole(**spec: Any) -> Any:
    """A job both of whose nodes run."""
    started = write(write(job(**spec)), pod(0), pod(1))
    return write(started, running(0), running(1))


async def in_state(cluster: Watched, state: str, namespace: str = NAMESPACE) -> Body:
    async def look() -> Body | None:
        found = await cluster.get(DDPJOBS, namespace, "digits")
        return found if found.get("status", {}).get("state") == state else None

    found: Body = await until(look)
    return found


async def submitted(cluster: Watched, namespace: str = NAMESPACE) -> None:
    await cluster.create(DDPJOBS, namespace, job_object("digits", nnodes=2))


class Refusing(Watched):
    """Answers every creation of a pod with `code`; the words differ each time."""

    code, reason, text = 403, "Forbidden", "denied (request {n})"
    refused = 0

    def operator(self) -> OperatorView:
        outer = self

        class View(OperatorView):
            async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
                if resource == PODS:
                    outer.refused += 1
                    text = outer.text.format(n=outer.refused)
                    raise cluster_error(outer.code, outer.reason, text)
                return await super().create(resource, namespace, body)

        return View(self)


@contextlib.asynccontextmanager
async def watching(cluster: Watched, *namespaces: str) -> AsyncIterator[Controller]:
    controller = Controller(cluster.operator(), namespaces=namespaces, settings=FAST)
    tasks = [
        asyncio.create_task(controller.run()),
        asyncio.create_task(play_pods(cluster, lambda attempt, rank: 0)),
    ]
    try:
        yield controller
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_every_watched_namespace_keeps_its_jobs() -> None:
    cluster = Watched()
    await submitted(cluster, "team")
    await submitted(cluster, "other")
    async with watching(cluster, "team", "other") as controller:
        await in_state(cluster, "Succeeded", "team")
        assert len(controller.jobs) == 2


@pytest.mark.parametrize("ended", [failed, succeeded])
def test_a_deeply_nested_message_stops_nothing(ended: Any) -> None:
    deep = '{"version":1,"reason":"X","a":' + "[" * 3000
    status = decide(whole(), see(ended(0, message=deep), running(1)), NOW).status
    assert status.attempt == 1 or status.succeeded_ranks == "0"


async def test_a_refusal_in_ever_new_words_is_not_a_storm() -> None:
    cluster = Refusing()
    await submitted(cluster)
    async with operating(cluster, lambda attempt, rank: None, settings=Settings()):
        await asyncio.sleep(1.0)
    assert cluster.refused < 20
    assert cluster.writes["status", "DDPJob", "digits"] < 10


async def test_a_quota_that_is_contended_is_no_taken_name() -> None:
    cluster = Refusing()
    cluster.code, cluster.reason, cluster.text = 409, "Conflict", "resourcequotas: modified"
    await submitted(cluster)
    async with operating(cluster, lambda attempt, rank: None):
        await until(lambda: cluster.refused > 14)
        found = await cluster.get(DDPJOBS, NAMESPACE, "digits")
    assert "NameTaken" not in [c["reason"] for c in found["status"]["conditions"]]


async def test_a_pod_taken_from_its_job_is_gone_for_it() -> None:
    cluster = Watched()
    await submitted(cluster)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        body = await cluster.get(PODS, NAMESPACE, "digits-0-1")
        body["metadata"]["ownerReferences"] = []
        await cluster.update(PODS, NAMESPACE, body)

        async def restarted() -> bool:
            found = await cluster.get(DDPJOBS, NAMESPACE, "digits")
            return bool(found["status"]["attempt"] == 1)

        await until(restarted, 5.0)
        await in_state(cluster, "Running")
    assert cluster.writes["delete", "Pod", "digits-0-1"] == 0


async def pod_names(cluster: Watched) -> list[str]:
    return [p["metadata"]["name"] for p in (await cluster.list(PODS, namespace=NAMESPACE)).items]


def accepted(job: Body) -> Body:
    """The condition of that name."""
    found: Body = next(c for c in job["status"]["conditions"] if c["type"] == "Accepted")
    return found


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


async def test_a_service_that_leads_elsewhere_is_told_and_not_used() -> None:
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
    return Proofs(b"another", job["metadata"]["uid"], 1, job["spec"]["nnodes"])


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


async def test_an_edit_of_a_running_job_is_judged_at_once() -> None:
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


async def test_a_pod_that_loses_its_label_and_gets_it_back_is_seen_again() -> None:
    cluster = Watched()
    await submitted(cluster)

    async def old_pods() -> bool:
        pods = (await cluster.list(PODS, namespace=NAMESPACE)).items
        return not any(p["metadata"]["name"].startswith("digits-0-") for p in pods)

    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
        body = await cluster.get(PODS, NAMESPACE, "digits-0-1")
        label = body["metadata"]["labels"].pop(names.MANAGED_BY_LABEL)
        body = await cluster.update(PODS, NAMESPACE, body)
        await asyncio.sleep(0.3)
        body["metadata"]["labels"][names.MANAGED_BY_LABEL] = label
        await cluster.update(PODS, NAMESPACE, body)
        await until(old_pods, 5.0)


def test_a_suspended_job_ends_sidecars_and_late_pods() -> None:
    asked = with_status(job(suspend=True), whole().status)
    leaving = write(asked, running(0), running(1))
    step = decide(leaving, see(succeeded(0, ended=False)), NOW)
    assert [d.pod.name for d in step.delete] == ["digits-0-0"]
    suspended = write(leaving)
    assert suspended.status.state == "Suspended"
    assert [d.pod.name for d in decide(suspended, see(running(1)), NOW).delete] == ["digits-0-1"]


def test_a_failed_job_has_no_running_nodes() -> None:
    over = decide(whole(failurePolicy={"maxRestarts": 0}), see(running(0), failed(1)), NOW).status
    assert over.state == "Failed"
    assert (over.nodes.running, over.nodes.failed, over.summary.nodes) == (0, 1, "0/2")


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": {"annotations": {
            "container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}}},
        {"spec": {"securityContext": {"windowsOptions": {"hostProcess": True}}}},
    ],
)  # fmt: skip
def test_other_spellings_of_unconfined_are_refused_too(template: Body) -> None:
    with pytest.raises(InvalidJob):
        render.pods(job(template=template), load_agent(), Policy())


async def test_a_watch_that_always_expires_is_no_storm_of_lists() -> None:
    class Expiring(Watched):
        lists = 0

        def operator(self) -> OperatorView:
            outer = self

            class View(OperatorView):
                async def list(self, *arguments: Any, **options: Any) -> Any:
                    outer.lists += 1
                    return await outer.list(*arguments, **options)

                async def watch(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
                    await asyncio.sleep(0)
                    raise cluster_error(410, "Expired", "too old")
                    yield

            return View(self)

    cluster = Expiring()
    async with watching(cluster, NAMESPACE):
        await asyncio.sleep(1.0)
    assert cluster.lists < 30


def test_master_may_have_another_label_that_is_called_like_a_list_of_the_pod() -> None:
    def template(value: Any) -> Body:
        return {"metadata": {"labels": {"env": value}}, "spec": {"nodeSelector": {"ports": value}}}

    whole = job(template=template("all"), master={"template": template("first")})
    pods = render.pods(whole, load_agent(), Policy())
    for rank, value in enumerate(("first", "all")):
        body = orjson.loads(pods.body(rank))
        assert body["metadata"]["labels"]["env"] == value
        assert body["spec"]["nodeSelector"] == {"ports": value}


def test_unknown_fields_called_like_a_list_of_the_pod_are_replaced_as_a_whole() -> None:
    lists: tuple[list[Any], list[Any]] = [1], [{"name": []}]
    one, two = ({"spec": {"unknown": {"env": items}}} for items in lists)
    pods = render.pods(job(template=one, master={"template": two}), load_agent(), Policy())
    assert orjson.loads(pods.body(0))["spec"]["unknown"] == {"env": [{"name": []}]}


def test_misshapen_options_for_windows_are_refused() -> None:
    with pytest.raises(InvalidJob, match="windowsOptions: must be an object"):
        template = {"spec": {"securityContext": {"windowsOptions": "x"}}}
        render.pods(job(template=template), load_agent(), Policy())
