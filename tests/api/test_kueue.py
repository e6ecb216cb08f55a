"""Jobs in the queues of a real Kueue, with its webhooks, its pod integration and its own chart."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ddpjob import names
from ddpjob.cluster import PODS
from ddpjob.controller.workloads import WORKLOADS
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs, conditions
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import MERGE, Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import USER, OperatorProcess
from tests.cluster.schedulers import Kueue
from tests.cluster.tiers import ROOT, skipping_where_unavailable

pytestmark = pytest.mark.builds("kueue")

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
NODES = ("spot-node", "other-node")
CLASSES = {"low": 10, "high": 100}
TAINT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
HOST = "kubernetes.io/hostname"
WAIT_FOR_PODS = {
    "timeout": "5s",
    "requeuingStrategy": {"backoffBaseSeconds": 2, "backoffLimitCount": 5},
}
INTEGRATIONS = {
    "frameworks": ["batch/job", "pod"],
    "externalFrameworks": ["DDPJob.v1alpha1.ddpjob.dev"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A control plane with DDPJobs."""
    with skipping_where_unavailable():
        made = ApiServer()
    with made as server:
        server.install_crd(ROOT / "charts" / "ddpjob" / "files" / "crd.yaml")
        yield server


@pytest.fixture(scope="module")
def kueue(server: ApiServer) -> Iterator[Kueue]:
    """Kueue with its pod integration, as its chart has it, and one queue for two CPUs.

    The queue is named `default`: pods without a queue would be taken for its jobs.
    """
    with skipping_where_unavailable():
        made = Kueue(server, integrations=INTEGRATIONS)
    with made as kueue:
        flavor: Body = {"nodeLabels": {"kind": "spot"}, "nodeTaints": [TAINT]}
        flavor["tolerations"] = [{**TAINT, "operator": "Equal"}]
        put(server, "ResourceFlavor", "spot", {"spec": flavor})
        quota = {"name": "cpu", "nominalQuota": "2"}
        group = {"coveredResources": ["cpu"], "flavors": [{"name": "spot", "resources": [quota]}]}
        preemption = {"withinClusterQueue": "LowerPriority"}
        spec = {"namespaceSelector": {}, "resourceGroups": [group], "preemption": preemption}
        put(server, "ClusterQueue", "all", {"spec": spec})
        for name, value in CLASSES.items():
            put(server, "WorkloadPriorityClass", name, {"value": value})
        yield kueue
        print(kueue.component.log.read_text()[-5000:])


PLURALS = {
    "ResourceFlavor": "resourceflavors",
    "ClusterQueue": "clusterqueues",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "Topology": "topologies",
}


def put(server: ApiServer, kind: str, name: str, body: Body) -> None:
    """Make an object of Kueue's that is in no namespace."""
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}
    server.request("POST", f"{KUEUE}/{PLURALS[kind]}", {**head, **body})


@pytest.fixture
def operator(server: ApiServer, kueue: Kueue, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator with Kueue, and the chart's rights for it."""
    values = ("kueue.enabled=true",)
    with OperatorProcess(server, tmp_path, "--kueue", values=values) as operator:
        operator.wait_until_ready()
        yield operator
    print(operator.log.read_text()[-5000:])


class Queued(Jobs):
    """DDPJobs of a namespace with a LocalQueue, each with two pods of one CPU."""

    async def queue(self, name: str, cluster_queue: str) -> None:
        """Make a LocalQueue."""
        body: Body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
        body |= {"metadata": {"name": name}, "spec": {"clusterQueue": cluster_queue}}
        path = f"{KUEUE}/namespaces/{self.namespace}/localqueues"
        await self.client.request("POST", path, body)

    async def submit(
        self, name: str, priority: str = "", *, queue: str = "default", **spec: Any
    ) -> None:
        body = job_object(name, nnodes=2, resources={"limits": {"cpu": 1}}, **spec)
        labels = {names.QUEUE_LABEL: queue}
        labels |= {names.PRIORITY_LABEL: priority} if priority else {}
        body["metadata"]["labels"] = labels
        await self.client.request("POST", self.path, body)

    async def workload(self, name: str) -> Body | None:
        """The job's Workload, if there is one."""
        found = await self.client.request("GET", WORKLOADS.path(self.namespace))
        return next(
            (
                each
                for each in found["items"]
                if each["metadata"]["ownerReferences"][0]["name"] == name
            ),
            None,
        )

    async def workload_until(self, name: str, holds: Any) -> Body:
        """The job's Workload once this holds of it."""
        async with asyncio.timeout(180):
            while not ((found := await self.workload(name)) and holds(found)):
                await asyncio.sleep(0.05)
        return found

    async def pods_of(self, name: str) -> list[Body]:
        return [
            pod for pod in await self.pods_as_they_are() if pod["metadata"]["name"].startswith(name)
        ]

    def reason(self, job: Body) -> str:
        return str(job.get("status", {}).get("summary", {}).get("reason", ""))


@pytest.fixture
async def queued(
    server: ApiServer, operator: OperatorProcess
) -> AsyncIterator[tuple[Queued, ScriptedKubelet]]:
    """A namespace with a queue, and nodes of two kinds."""
    async with in_queue(server) as found:
        yield found


@asynccontextmanager
async def in_queue(server: ApiServer) -> AsyncIterator[tuple[Queued, ScriptedKubelet]]:
    name = f"team-{time.monotonic_ns()}"
    server.create_namespace(name)
    async with (
        Client(server) as client,
        fake_nodes(client, *NODES),
        ScriptedKubelet(client, NODES) as kubelet,
    ):
        spot = {"metadata": {"labels": {"kind": "spot"}}, "spec": {"taints": [TAINT]}}
        await client.request("PATCH", "/api/v1/nodes/spot-node", spot, content_type=MERGE)
        jobs = Queued(client, name)
        await jobs.queue("default", "all")
        try:
            yield jobs, kubelet
        finally:
            for each in (jobs.path, PODS.path(name)):
                await client.request("DELETE", each)
            while (await client.request("GET", WORKLOADS.path(name)))["items"]:
                await asyncio.sleep(0.1)


def true(workload: Body, kind: str) -> bool:
    """Whether this condition of a Workload is True."""
    found = workload.get("status", {}).get("conditions", [])
    return any(c["type"] == kind and c["status"] == "True" for c in found)


async def test_quota_for_one_of_two_jobs_and_then_for_the_other(
    queued: tuple[Queued, ScriptedKubelet], server: ApiServer, record_property: Any
) -> None:
    jobs, kubelet = queued
    await jobs.submit("first")
    await jobs.in_state("Running", "first")
    await jobs.submit("second")
    waiting = await jobs.until(lambda job: "insufficient" in jobs.reason(job), "second")
    assert waiting["status"]["state"] == "Queued" and not await jobs.pods_of("second")
    record_property("seen", f"the one that waits: `{jobs.reason(waiting)}`")
    record_property("waits", server.kubectl("get", "ddpjob", "-n", jobs.namespace))
    for pod in await jobs.pods_of("first"):
        assert pod["spec"]["nodeSelector"] == {"kind": "spot"}
        assert pod["spec"]["nodeName"] == "spot-node"
        assert any(each.get("key") == "spot" for each in pod["spec"]["tolerations"])
        assert not any("kueue" in key for key in pod["metadata"]["labels"])
        assert not pod["metadata"].get("finalizers") and not pod["spec"].get("schedulingGates")
    ready = await jobs.workload_until("first", lambda found: true(found, "PodsReady"))
    assert not ready["metadata"].get("finalizers")
    for node_rank in (0, 1):
        kubelet.finish(jobs.namespace, f"first-0-{node_rank}")
    await jobs.in_state("Succeeded", "first")
    await jobs.in_state("Running", "second")
    assert await jobs.workload("first") is None


async def test_a_higher_class_takes_the_quota_and_gives_it_back(
    queued: tuple[Queued, ScriptedKubelet], record_property: Any
) -> None:
    jobs, kubelet = queued
    await jobs.submit("low", "low")
    await jobs.in_state("Running", "low")
    first = await jobs.workload("low")
    await jobs.submit("high", "high")
    await jobs.in_state("Running", "high")
    low = await jobs.in_state("Queued", "low")
    status = low["status"]
    assert (status["attempt"], status["restarts"], status["budget"]["charged"]) == (1, 0, 0)
    record_property("seen", f"the one that was preempted: `{jobs.reason(low)}`")
    suspended = {c["type"]: c["message"] for c in status["conditions"]}["Suspended"]
    record_property("seen", f"condition Suspended: `{suspended}`")
    for node_rank in (0, 1):
        kubelet.finish(jobs.namespace, f"high-0-{node_rank}")
    again = await jobs.in_state("Running", "low")
    assert again["status"]["admission"]["uid"] == (first or {})["metadata"]["uid"]
    assert {pod["metadata"]["name"] for pod in await jobs.pods_of("low")} >= {"low-1-0", "low-1-1"}


async def test_deactivation_and_a_deleted_workload(
    queued: tuple[Queued, ScriptedKubelet], record_property: Any
) -> None:
    jobs, _ = queued
    await jobs.submit("digits")
    await jobs.in_state("Running")
    found = await jobs.workload("digits")
    assert found is not None
    path = f"{WORKLOADS.path(jobs.namespace)}/{found['metadata']['name']}"
    await jobs.client.request("PATCH", path, {"spec": {"active": False}}, content_type=MERGE)
    await jobs.in_state("Queued")
    waiting = await jobs.until(lambda job: "deactivated" in jobs.reason(job))
    record_property("seen", f"deactivated: `{jobs.reason(waiting)}`")
    released = await jobs.workload_until("digits", lambda each: "admission" not in each["status"])
    assert released["metadata"]["uid"] == found["metadata"]["uid"], "it is kept"
    await jobs.client.request("PATCH", path, {"spec": {"active": True}}, content_type=MERGE)
    await jobs.in_state("Running")
    await jobs.client.request("DELETE", path)
    again = await jobs.until(
        lambda job: job["status"]["attempt"] == 2 and job["status"].get("admission")
    )
    assert again["status"]["restarts"] == 0
    assert again["status"]["admission"]["uid"] != found["metadata"]["uid"]


async def test_a_user_suspends_edits_and_resumes(queued: tuple[Queued, ScriptedKubelet]) -> None:
    jobs, _ = queued
    await jobs.submit("digits")
    await jobs.in_state("Running")
    await jobs.patch(suspend=True)
    await jobs.in_state("Suspended")
    while await jobs.workload("digits") is not None:
        await asyncio.sleep(0.05)
    await jobs.patch(suspend=False, nnodes=1)
    await jobs.in_state("Running")
    (main,) = (await jobs.workload("digits") or {})["spec"]["podSets"]
    assert main["count"] == 1


async def test_an_operator_that_dies_finds_its_admission_again(
    queued: tuple[Queued, ScriptedKubelet], operator: OperatorProcess
) -> None:
    jobs, _ = queued
    await jobs.submit("first")
    await jobs.submit("second")
    for _ in range(8):
        operator.kill()
        operator.start()
        await asyncio.sleep(1.0)
    operator.wait_until_ready()
    await jobs.until(
        lambda job: job.get("status", {}).get("state") in ("Running", "Queued"), "second"
    )
    states = [(await jobs.get(name))["status"]["state"] for name in ("first", "second")]
    while sorted(states) != ["Queued", "Running"]:
        await asyncio.sleep(0.2)
        states = [(await jobs.get(name))["status"]["state"] for name in ("first", "second")]
    assert len(await jobs.pods()) == 2


async def test_kueue_away_holds_nothing_that_runs_and_starts_nothing(
    queued: tuple[Queued, ScriptedKubelet], kueue: Kueue
) -> None:
    jobs, kubelet = queued
    await jobs.submit("first")
    await jobs.in_state("Running", "first")
    kueue.component.kill()  # its webhooks are gone, too
    try:
        await jobs.submit("second")
        refused = await jobs.until(lambda job: "webhook" in message(job), "second")
        assert refused["status"]["state"] == "Queued" and not await jobs.pods_of("second")
        assert (await jobs.get("first"))["status"]["state"] == "Running"
    finally:
        kueue.start()
    for node_rank in (0, 1):
        kubelet.finish(jobs.namespace, f"first-0-{node_rank}")
    await jobs.in_state("Running", "second")


def message(job: Body, kind: str = "Running") -> str:
    """The message of a condition."""
    found = job.get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in found if c["type"] == kind), "")


async def test_a_job_without_the_label_is_none_of_kueues(
    queued: tuple[Queued, ScriptedKubelet], server: ApiServer
) -> None:
    """In a namespace without a queue of the name `default`, which Kueue has all pods wait in."""
    name = f"free-{time.monotonic_ns()}"
    server.create_namespace(name)
    jobs = Queued(queued[0].client, name)
    await jobs.create("plain", resources={"limits": {"cpu": 1}})
    await jobs.in_state("Running", "plain")
    assert await jobs.workload("plain") is None
    for pod in await jobs.pods_of("plain"):
        assert not pod["metadata"].get("finalizers")
    await jobs.delete("plain")


async def test_pods_that_do_not_start_in_time_come_back_later(
    queued: tuple[Queued, ScriptedKubelet], server: ApiServer, kueue: Kueue, record_property: Any
) -> None:
    """The nodes have no room for the first attempt, so it is never ready."""
    jobs, _ = queued
    kueue.start(waitForPodsReady=WAIT_FOR_PODS)
    try:
        await jobs.submit("digits", template={"spec": {"nodeSelector": {"room": "yes"}}})
        late = await jobs.until(lambda job: "PodsReady" in message(job, "Suspended"))
        record_property("seen", f"condition Suspended: `{message(late, 'Suspended')}`")
        assert late["status"]["attempt"] == 1 and late["status"]["restarts"] == 0
        found = await jobs.workload_until("digits", lambda each: "requeueState" in each["status"])
        assert found["status"]["requeueState"]["count"] == 1
        room = {"metadata": {"labels": {"room": "yes"}}}
        await jobs.client.request("PATCH", "/api/v1/nodes/spot-node", room, content_type=MERGE)
        again = await jobs.in_state("Running")
        assert again["status"]["admission"]["uid"] == found["metadata"]["uid"]
    finally:
        kueue.start()


async def test_kueue_chooses_the_places_of_a_topology(
    queued: tuple[Queued, ScriptedKubelet], server: ApiServer
) -> None:
    jobs, _ = queued
    put(server, "Topology", "hosts", {"spec": {"levels": [{"nodeLabel": HOST}]}})
    flavor = {"nodeLabels": {"kind": "near"}, "topologyName": "hosts"}
    put(server, "ResourceFlavor", "near", {"spec": flavor})
    quota = {"name": "cpu", "nominalQuota": "9"}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "near", "resources": [quota]}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    put(server, "ClusterQueue", "near", {"spec": spec})
    await jobs.queue("near", "near")
    near = {"metadata": {"labels": {"kind": "near"}}}
    await jobs.client.request("PATCH", "/api/v1/nodes/other-node", near, content_type=MERGE)
    asked = {"kueue.x-k8s.io/podset-required-topology": HOST}
    await jobs.submit("digits", queue="near", template={"metadata": {"annotations": asked}})
    job = await jobs.in_state("Running")
    (main,) = job["status"]["admission"]["podSets"]
    assert main["gated"] and main["nodeSelector"] == {"kind": "near"}
    for pod in await jobs.pods_of("digits"):
        assert pod["spec"]["nodeName"] == "other-node" and not pod["spec"].get("schedulingGates")
        assert pod["spec"]["nodeSelector"][HOST] == "other-node"


async def test_topology_and_checks_pass_through(queued: tuple[Queued, ScriptedKubelet]) -> None:
    jobs, _ = queued
    asked = {"kueue.x-k8s.io/podset-preferred-topology": "kubernetes.io/hostname"}
    await jobs.submit("digits", template={"metadata": {"annotations": asked}})
    found = await jobs.workload_until("digits", lambda each: True)
    (main,) = found["spec"]["podSets"]
    request = {"preferred": "kubernetes.io/hostname", "podIndexLabel": names.RANK_LABEL}
    assert main["topologyRequest"] == request
    assert conditions(await jobs.until(lambda job: jobs.reason(job)))["Running"][1] == "Queued"


async def test_without_a_class_of_kueues_the_pods_class_is_the_priority(
    queued: tuple[Queued, ScriptedKubelet], server: ApiServer
) -> None:
    jobs, _ = queued
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    server.request("POST", classes, {"metadata": {"name": "urgent"}, "value": 77})
    await jobs.submit("digits", template={"spec": {"priorityClassName": "urgent"}})
    spec = (await jobs.workload_until("digits", lambda each: True))["spec"]
    assert spec["priority"] == 77 and spec["priorityClassRef"]["kind"] == "PriorityClass"


def test_what_is_granted_for_kueue_is_what_is_used(server: ApiServer) -> None:
    """The last test: watches are logged once they have ended."""
    granted = {("workloads", verb) for verb in ("get", "list", "watch", "create", "delete")}
    granted |= {("workloads/status", "update"), ("resourceflavors", "get")}
    granted |= {("workloadpriorityclasses", "get"), ("priorityclasses", "get")}
    resources = {resource for resource, _ in granted}
    used = {
        (entry.resource, entry.verb)
        for entry in server.audit.entries(0)
        if entry.user == USER and entry.resource in resources
    }
    assert used == granted
