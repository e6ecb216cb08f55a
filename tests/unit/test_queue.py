"""A job with a queue of Kueue gets pods once Kueue has admitted its Workload, and while it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from ddpjob import names
from ddpjob.api import Admission, DDPJob, PodSetAdmission
from ddpjob.api.admission import Toleration
from ddpjob.cluster import DDPJOBS, PODS, Resource
from ddpjob.controller.workloads import CLASSES, FLAVORS, WORKLOADS
from ddpjob.errors import cluster_error
from ddpjob.json_depth import Body
from ddpjob.plan.model import Decision, Queue, Workload
from ddpjob.plan.workload import admission_of, wish_of, workload_record
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.workload import workload
from tests.builders import (
    NOW,
    UID,
    condition,
    decide,
    deleted,
    job,
    job_object,
    made_pod,
    running,
    see,
    succeeded,
    whole,
    with_status,
    write,
)
from tests.localplay import (
    FAST,
    NAMESPACE,
    OperatorView,
    Watched,
    accepted,
    in_state,
    operating,
    quiet,
    stored,
    until,
    with_spec,
)

WISH = "0123456789abcdef"
NAME = names.workload_name("digits", UID)
ADMISSION = Admission(workload=NAME, uid="w1", cluster_queue="all")
WAITS = Workload(NAME, "team", "w1", 1, "digits", UID, WISH, message="Pending: no quota left")
ADMITTED = replace(WAITS, admitted=True, holds_quota=True, cluster_queue="all")
EVICTED = replace(ADMITTED, evicted=True, message="Preempted: by a higher class")


def queue(found: Workload | None, admission: Admission | None = None, **fields: Any) -> Queue:
    """What is known of the job's Workload."""
    return Queue(True, WISH, found, admission, **fields)


def step(ours: DDPJob, *pods: Any, of: Queue) -> Decision:
    """The decision with that knowledge."""
    return decide(ours, see(*pods, queue=of), NOW)


def admitted(*pods: Any, **spec: Any) -> DDPJob:
    """A job that Kueue has admitted, and whose nodes run."""
    ours, known = job(**spec), queue(ADMITTED, ADMISSION)
    for _ in range(2):
        ours = write(ours, queue=known)
    return write(ours, *(pods or (running(0), running(1))), queue=known)


def test_without_a_workload_there_are_no_pods_and_one_is_made() -> None:
    found = step(job(), of=queue(None))
    assert (found.workload, found.prepare, found.create) == ("replace", False, ())
    assert found.status.state == "Queued"


def test_a_job_waits_with_kueues_words() -> None:
    found = step(job(), of=queue(WAITS))
    assert found.status.state == "Queued" and not found.acts
    assert condition(found.status, "Running") == ("False", "Queued")
    assert found.status.summary.reason == "Queued: Pending: no quota left"
    (event,) = found.events
    assert event.reason == "Queued" and "no quota left" in event.message


def test_what_was_admitted_is_in_the_status_before_anything_is_made() -> None:
    ours = write(job(), queue=queue(WAITS))
    known = see(queue=queue(ADMITTED, ADMISSION), children_ready=False)
    found = decide(ours, known, NOW)
    assert found.status.admission == ADMISSION and found.status.state == "Queued"
    assert [event.reason for event in found.events] == ["Admitted"]
    ours = with_status(ours, found.status)
    assert decide(ours, known, NOW).prepare
    assert step(ours, of=queue(ADMITTED, ADMISSION)).status.state == "Starting"


@pytest.mark.parametrize(
    "found",
    [
        WAITS,
        replace(ADMITTED, admitted=False),
        replace(EVICTED, holds_quota=False),
    ],
    ids=["waits", "quota alone", "evicted"],
)
def test_nothing_less_than_an_admission_is_enough(found: Workload) -> None:
    decision = step(job(), of=queue(found))
    assert not decision.acts and decision.status.state == "Queued"


def test_kueue_out_of_reach_starts_nothing_and_ends_nothing() -> None:
    away = queue(None, trouble="Kueue cannot be asked: 404")
    found = step(job(), of=away)
    assert not found.acts and found.requeue_after == 60.0
    assert "cannot be asked" in (found.status.summary.reason or "")
    assert step(admitted(), running(0), running(1), of=away).status.state == "Running"


def test_a_workload_that_asks_for_something_else_is_made_anew() -> None:
    assert step(job(), of=queue(replace(ADMITTED, wish="other"), None)).workload == "replace"


@pytest.mark.parametrize("found", [None, replace(ADMITTED, uid="w2"), EVICTED])
def test_a_job_that_loses_its_quota_is_suspended_uncharged(found: Workload | None) -> None:
    ours = admitted()
    decision = step(ours, running(0), running(1), of=queue(found))
    status = decision.status
    assert condition(status, "Suspended") == ("False", "Suspending") and status.admission is None
    assert (status.attempt, status.budget.charged, status.restarts) == (1, 0, 0)
    ours = with_status(ours, status)
    ending = step(ours, running(0), running(1), of=queue(found))
    assert deleted(ending) == {"digits-0-0", "digits-0-1"}
    assert {each.grace_seconds for each in ending.delete} == {None}, "with their whole grace"
    ended = step(ours, of=queue(found)).status
    assert ended.state == "Suspended"
    back = step(with_status(ours, ended), of=queue(found))
    wanted = "release" if found is EVICTED else "replace" if found is None else None
    assert (back.status.state, back.workload) == ("Queued", wanted)


def test_an_absent_workload_is_confirmed_first() -> None:
    decision = decide(
        admitted(), see(running(0), running(1), queue=queue(None), confirmed=False), NOW
    )
    assert decision.confirm and decision.status.attempt == 0


def test_a_restart_keeps_what_was_admitted() -> None:
    known = queue(ADMITTED, ADMISSION)
    lost = step(admitted(), running(0), of=known)  # rank 1's pod is gone
    assert (lost.status.attempt, lost.status.admission) == (1, ADMISSION)


@pytest.mark.parametrize("found", [None, replace(ADMITTED, wish="other")])
def test_no_attempt_begins_on_less_than_it_asks_for(found: Workload | None) -> None:
    """Somebody has edited `template` while it ran, or has given the job its label only then."""
    known = queue(ADMITTED, ADMISSION)
    ours = write(admitted(), running(0), queue=known)
    if found is None:
        ours = with_status(ours, ours.status.model_copy(update={"admission": None}))
    waits = step(ours, running(0), of=queue(found)).status
    assert waits.state == "Restarting" and waits.attempt == 2
    assert condition(waits, "Suspended") == ("False", "Suspending")


def test_a_status_that_kueue_does_not_take_holds_nothing_up() -> None:
    found = step(admitted(), running(0), running(1), of=queue(ADMITTED, ADMISSION, hears=False))
    assert found.workload is None and found.requeue_after == 60.0


def test_kueue_is_told_whether_all_pods_run() -> None:
    ours, known = admitted(), queue(ADMITTED, ADMISSION)
    pods = (running(0), running(1))
    assert step(ours, *pods, of=known).workload == "ready"
    ready = queue(replace(ADMITTED, pods_ready=True), ADMISSION)
    assert step(ours, *pods, of=ready).workload is None
    again = step(ours, running(0), of=ready).status
    assert step(with_status(ours, again), of=ready).workload == "unready"


def test_the_quota_goes_back_when_no_pod_runs_any_more() -> None:
    known = queue(ADMITTED, ADMISSION)
    one, other = succeeded(0), succeeded(1)
    over = write(admitted(), one, other, queue=known)
    over = write(over, one, other, queue=known)
    assert over.status.state == "Succeeded"
    assert step(over, one, other, of=known).workload == "delete"
    assert step(over, one, running(1), of=known).workload is None
    paused = admitted(suspend=True)
    ours = write(write(paused, running(0), running(1), queue=known), queue=known)
    assert ours.status.state == "Suspended" and step(ours, of=known).workload == "delete"


def test_a_job_that_runs_without_kueue_is_left_alone() -> None:
    assert step(whole(), running(0), running(1), of=queue(None)).status.attempt == 0
    label_gone = step(whole(), running(0), running(1), of=Queue(False, workload=ADMITTED))
    assert label_gone.workload == "delete" and label_gone.status.state == "Running"


def labelled(**spec: Any) -> DDPJob:
    """A job with a queue."""
    ours = job(**spec)
    metadata = ours.metadata.model_copy(update={"labels": {names.QUEUE_LABEL: "team-a"}})
    return ours.model_copy(update={"metadata": metadata})


CLASS = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}


def test_the_workload_asks_for_all_pods_and_is_the_same_in_all_attempts() -> None:
    limits = {"resources": {"limits": {"cpu": 2}}}
    ours = labelled(nnodes=3, **limits)
    body = workload(ours, Policy(), CLASS, 7)
    (main,) = body["spec"]["podSets"]
    assert (main["name"], main["count"]) == ("main", 3)
    assert main["template"]["spec"]["containers"][0]["resources"] == limits["resources"]
    assert (body["spec"]["queueName"], body["spec"]["priority"]) == ("team-a", 7)
    assert body["spec"]["priorityClassRef"] == CLASS
    later = with_status(ours, ours.status.model_copy(update={"attempt": 4, "avoided_nodes": ["n"]}))
    assert workload(later, Policy(), CLASS, 7) == body
    bigger = workload(ours, Policy(), {}, 0) | {"spec": {**body["spec"], "podSets": []}}
    assert wish_of(bigger["spec"]) != wish_of(body["spec"])


def test_rank_0_that_differs_is_a_part_of_its_own() -> None:
    ours = labelled(nnodes=3, master={"resources": {"limits": {"memory": "9Gi"}}})
    sets = workload(ours, Policy(), {}, 0)["spec"]["podSets"]
    assert [(each["name"], each["count"]) for each in sets] == [("first", 1), ("others", 2)]


def test_topology_requests_pass_through() -> None:
    asked = {
        "kueue.x-k8s.io/podset-required-topology": "rack",
        "kueue.x-k8s.io/podset-slice-required-topology": "host",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    ours = labelled(template={"metadata": {"annotations": asked}})
    (main,) = workload(ours, Policy(), {}, 0)["spec"]["podSets"]
    assert main["topologyRequest"] == {
        "required": "rack",
        "podSetSliceRequiredTopology": "host",
        "podSetSliceSize": 2,
        "podIndexLabel": names.RANK_LABEL,
    }


def seen(**status: Any) -> Workload:
    """The record of the job's Workload with this status."""
    body = workload(labelled(), Policy(), {}, 0)
    metadata = {**body["metadata"], "uid": "w1", "resourceVersion": "5"}
    found = workload_record({**body, "metadata": metadata, "status": status})
    assert found is not None
    return found


def says(kind: str, truth: str, reason: str = "", message: str = "") -> Body:
    """A condition."""
    return {"type": kind, "status": truth, "reason": reason, "message": message}


PREEMPTED = says("Evicted", "True", "Preempted", "by x")


ASSIGNED: Body = {"name": "main", "count": 2, "flavors": {"cpu": "spot", "memory": "spot"}}
GRANTED: Body = {"clusterQueue": "all", "podSetAssignments": [ASSIGNED]}


def test_flavors_and_checks_become_what_pods_ask_of_their_nodes() -> None:
    taint = {"key": "spot", "operator": "Exists"}
    update = {
        "name": "main",
        "labels": {"zone": "b", names.JOB_LABEL: "other"},
        "nodeSelector": {"pool": "p1"},
    }
    checks = [{"name": "provision", "podSetUpdates": [update]}]
    tas = {**ASSIGNED, "topologyAssignment": {"levels": ["host"]}}
    granted = {**GRANTED, "podSetAssignments": [tas]}
    record = seen(admission=granted, admissionChecks=checks, conditions=[says("Admitted", "True")])
    assert record.admitted and record.holds_quota
    flavors = {"spot": {"nodeLabels": {"kind": "spot"}, "tolerations": [taint]}}
    admission = admission_of(record, flavors)
    assert admission.pod_sets == [
        PodSetAdmission(
            name="main",
            labels={"zone": "b", names.JOB_LABEL: "other", "kueue.x-k8s.io/podset": "main"},
            annotations={"kueue.x-k8s.io/workload": NAME},
            node_selector={"kind": "spot", "pool": "p1"},
            tolerations=[Toleration.model_validate(taint)],
            gated=True,
        )
    ]
    own = {
        "template": {"spec": {"nodeSelector": {"disk": "ssd"}, "schedulingGates": [{"name": "a"}]}}
    }
    ours = labelled(**own)
    made = made_pod(with_status(ours, ours.status.model_copy(update={"admission": admission})), 1)
    assert made["spec"]["nodeSelector"] == {"disk": "ssd", "kind": "spot", "pool": "p1"}
    assert taint in made["spec"]["tolerations"]
    assert made["spec"]["schedulingGates"] == [{"name": "a"}, {"name": "kueue.x-k8s.io/topology"}]
    assert made["metadata"]["labels"]["zone"] == "b"
    assert made["metadata"]["labels"][names.JOB_LABEL] == "digits", "ours are ours"
    assert made["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == NAME


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([], "Kueue has not looked at it yet"),
        ([says("QuotaReserved", "False", "Pending", "no quota")], "Pending: no quota"),
        ([says("QuotaReserved", "True")], "quota is reserved; admission checks are not done yet"),
        ([says("QuotaReserved", "True"), PREEMPTED], "Preempted: by x"),
        ([says("QuotaReserved", "False", "Pending", "later"), PREEMPTED], "Pending: later"),
    ],
)
def test_it_waits_for_what_kueue_has_said_last(conditions: list[Body], words: str) -> None:
    assert seen(conditions=conditions).message == words


@pytest.mark.parametrize("change", [{"name": "other"}, {"ownerReferences": []}])
def test_a_workload_of_another_name_or_owner_is_none_of_the_job(change: Body) -> None:
    body = workload(labelled(), Policy(), {}, 0)
    metadata = {**body["metadata"], "uid": "w1", "resourceVersion": "5", **change}
    assert workload_record({**body, "metadata": metadata}) is None


QUEUES = replace(FAST, kueue=True)


class Kueue:
    """Plays Kueue on an embedded cluster."""

    def __init__(self, cluster: Watched) -> None:
        self.cluster = cluster

    async def workload(self) -> Body | None:
        """The job's Workload, if there is one."""
        found = (await self.cluster.list(WORKLOADS, namespace=NAMESPACE)).items
        return found[0] if found else None

    async def put(self, **status: Any) -> None:
        """Change these fields of its status, once it is there."""
        found = await until(self.workload)
        body = {**found, "status": {**found.get("status", {}), **status}}
        await self.cluster.update_status(WORKLOADS, NAMESPACE, body)

    async def admit(self) -> None:
        """Admit it."""
        done = [says("QuotaReserved", "True"), says("Admitted", "True")]
        await self.put(admission=GRANTED, conditions=done)

    async def evict(self) -> None:
        """Ask for its quota back."""
        found = await until(self.workload)
        evicted = says("Evicted", "True", "Preempted", "by a higher class")
        await self.put(conditions=[*found["status"]["conditions"], evicted])


@asynccontextmanager
async def with_kueue(
    script: Any = lambda attempt, rank: None, cluster: Watched | None = None
) -> AsyncIterator[Kueue]:
    """A controller with Kueue, and a job with a queue."""
    cluster = cluster or Watched()
    spec = {"nodeLabels": {"kind": "spot"}}
    await cluster.create(FLAVORS, NAMESPACE, {"metadata": {"name": "spot"}, "spec": spec})
    await cluster.create(CLASSES, NAMESPACE, {"metadata": {"name": "high"}, "value": 9})
    body = job_object(nnodes=3)
    body["metadata"]["labels"] = {names.QUEUE_LABEL: "team-a", names.PRIORITY_LABEL: "high"}
    await cluster.create(DDPJOBS, NAMESPACE, body)
    async with operating(cluster, script, QUEUES):
        yield Kueue(cluster)


async def pods(cluster: Watched) -> list[Body]:
    return list((await cluster.list(PODS, namespace=NAMESPACE)).items)


async def test_a_queued_job_is_admitted_evicted_and_comes_back() -> None:
    async with with_kueue() as kueue:
        cluster = kueue.cluster
        await in_state(cluster, "Queued")
        made = await until(kueue.workload)
        assert made["spec"]["priority"] == 9 and not await pods(cluster)
        await kueue.admit()
        await in_state(cluster, "Running")
        assert {pod["spec"]["nodeSelector"]["kind"] for pod in await pods(cluster)} == {"spot"}

        async def told(truth: str) -> bool:
            found = await kueue.workload() or {}
            conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
            return conditions.get("PodsReady") == truth

        await until(lambda: told("True"))
        await kueue.evict()
        await in_state(cluster, "Queued")

        async def released() -> Body | None:
            found = await kueue.workload() or {"status": {"admission": GRANTED}}
            return None if "admission" in found["status"] else found

        found = await until(released)
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert (conditions["QuotaReserved"], conditions["Requeued"]) == ("False", "True")
        assert not await pods(cluster)
        await kueue.admit()
        again = await in_state(cluster, "Running")
        assert (again["status"]["attempt"], again["status"]["restarts"]) == (1, 0)
        assert found["metadata"]["uid"] == again["status"]["admission"]["uid"]


async def test_a_finished_job_gives_its_workload_back() -> None:
    async with with_kueue(lambda attempt, rank: 0) as kueue:
        await kueue.admit()
        await in_state(kueue.cluster, "Succeeded")

        async def gone() -> bool:
            return await kueue.workload() is None

        await until(gone)


class Deaf(Watched):
    """Takes no status of a Workload; once it is `gone`, there is no such API any more."""

    gone = False
    said = 0

    def operator(self) -> OperatorView:
        outer = self

        class View(OperatorView):
            async def get(self, resource: Resource, namespace: str, name: str) -> Body:
                if resource == WORKLOADS and outer.gone:
                    raise cluster_error(404, "NotFound", "could not find the requested resource")
                return await outer.get(resource, namespace, name)

            async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
                if resource == WORKLOADS:
                    outer.said += 1
                    raise cluster_error(500, "InternalError", "the webhook is away")
                return await super().update_status(resource, namespace, body)

        return View(self)


async def test_a_kueue_that_hears_nothing_or_is_uninstalled_ends_no_job() -> None:
    cluster = Deaf()
    async with with_kueue(cluster=cluster) as kueue:
        await kueue.admit()
        await in_state(cluster, "Running")
        await until(lambda: cluster.said)
        cluster.gone = True
        found = await until(kueue.workload)
        meta = found["metadata"]
        await cluster.delete(WORKLOADS, NAMESPACE, meta["name"], uid=meta["uid"])
        await quiet(cluster)
        assert (await stored(cluster))["status"]["state"] == "Running" and cluster.said == 1


class Pruning(Watched):
    """Drops a field of each Workload, as an API server does that does not know it."""

    async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
        if resource == WORKLOADS:
            sent = orjson.loads(orjson.dumps(body))
            sent["spec"]["podSets"][0]["template"]["spec"].pop("restartPolicy")
            return await super().create(resource, namespace, sent)
        return await super().create(resource, namespace, body)


async def test_a_workload_that_is_not_as_it_was_made_is_not_made_again_at_once() -> None:
    cluster = Pruning()
    async with with_kueue(cluster=cluster):

        async def told() -> bool:
            status = (await stored(cluster)).get("status") or {}
            reasons = {each["reason"] for each in status.get("conditions", [])}
            return "CreateRefused" in reasons

        await until(told)
        made = sum(count for (verb, kind, _), count in cluster.writes.items() if kind == "Workload")
        assert made <= 4


async def test_a_job_that_becomes_invalid_gives_its_quota_back() -> None:
    async with with_kueue() as kueue:
        await kueue.admit()
        cluster = kueue.cluster
        await in_state(cluster, "Running")
        ours = await stored(cluster)
        await cluster.update(DDPJOBS, NAMESPACE, with_spec(ours, suspend=True))
        await in_state(cluster, "Suspended")
        ours = await stored(cluster)
        wrong = {"spec": {"hostNetwork": True}}
        await cluster.update(DDPJOBS, NAMESPACE, with_spec(ours, suspend=False, template=wrong))

        async def refused() -> bool:
            return bool(accepted(await stored(cluster))["status"] == "False")

        await until(refused)
        assert await kueue.workload() is None
        ours = await stored(cluster)
        await cluster.update(DDPJOBS, NAMESPACE, with_spec(ours, template={}))
        await in_state(cluster, "Queued")
        assert accepted(await stored(cluster))["status"] == "True"


async def test_an_edit_of_what_is_asked_for_makes_another_workload() -> None:
    async with with_kueue() as kueue:
        first = await until(kueue.workload)
        ours = await stored(kueue.cluster)
        await kueue.cluster.update(DDPJOBS, NAMESPACE, with_spec(ours, nnodes=5))

        async def other() -> bool:
            found = await kueue.workload()
            return bool(found and found["metadata"]["uid"] != first["metadata"]["uid"])

        await until(other)
        ours = await stored(kueue.cluster)
        second = await until(kueue.workload)
        changed = with_spec(ours, failurePolicy={"maxRestarts": 9})
        await kueue.cluster.update(DDPJOBS, NAMESPACE, changed)
        await quiet(kueue.cluster)
        assert (await until(kueue.workload))["metadata"]["uid"] == second["metadata"]["uid"]


async def test_without_the_setting_a_label_means_nothing() -> None:
    cluster = Watched()
    body = job_object(nnodes=3)
    body["metadata"]["labels"] = {names.QUEUE_LABEL: "team-a"}
    await cluster.create(DDPJOBS, NAMESPACE, body)
    async with operating(cluster, lambda attempt, rank: None):
        await in_state(cluster, "Running")
    assert not {kind for _, kind, _ in cluster.writes} & {"Workload", "PodGroup"}
