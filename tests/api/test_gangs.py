"""Gangs by each scheduler as a real process: all pods of an attempt are placed, or none of them.

Four nodes have room for one pod each, so of two jobs with three pods one has to wait.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddpjob.cluster import PODS
from ddpjob.json_depth import Body
from tests.api.jobs import Jobs, conditions
from tests.cluster import schedulers
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import USER, OperatorProcess
from tests.cluster.podstatus import End
from tests.cluster.processes import Component
from tests.cluster.tiers import ROOT, skipping_where_unavailable

pytestmark = pytest.mark.builds("kubernetes-gangs", "volcano", "coscheduling")

KINDS = ("kubernetes", "volcano", "coscheduling")
THREE: Body = {"nnodes": 3, "resources": {"limits": {"cpu": 1}}}
NODES = ("one", "two", "three", "four")
# In which a part of a gang may be seen: bindings are written one by one.
BINDING_SECONDS = 5.0
WAITS_SECONDS = 8.0
GROUPS = {
    "kubernetes": "scheduling.k8s.io/v1beta1",
    "volcano": "scheduling.volcano.sh/v1beta1",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1",
}


@dataclass
class Site:
    """A control plane with a scheduler of gangs."""

    kind: str
    server: ApiServer
    scheduler: Component


def control_plane(kind: str, **options: Any) -> ApiServer:
    """The control plane for a scheduler of this kind."""
    if kind == "kubernetes":
        return schedulers.native(**options)
    return ApiServer(scheduler=False)


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A control plane for each kind, with its scheduler running."""
    with skipping_where_unavailable():
        server = control_plane(request.param)
    with server:
        server.install_crd(ROOT / "charts" / "ddpjob" / "files" / "crd.yaml")
        scheduler = schedulers.scheduler(server, request.param)
        if request.param != "kubernetes":
            scheduler.start()
        yield Site(request.param, server, scheduler)
        print(scheduler.log.read_text()[-3000:])
        scheduler.kill()


@asynccontextmanager
async def operated(
    server: ApiServer, folder: Path, kind: str, *values: str
) -> AsyncIterator[tuple[Jobs, ScriptedKubelet]]:
    """The operator with gangs of this kind, four nodes, and a namespace."""
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"gang": {"scheduler": kind}}))
    name = f"test-{time.monotonic_ns()}"
    server.create_namespace(name)
    values = values or (f"gang.scheduler={kind}",)
    operator = OperatorProcess(server, folder, f"--policy={policy}", values=values)
    async with Client(server) as client:
        with operator:
            operator.wait_until_ready()
            async with (
                fake_nodes(client, *NODES, capacity={"pods": "1"}),
                ScriptedKubelet(client, NODES) as kubelet,
            ):
                try:
                    yield Jobs(client, name), kubelet
                finally:
                    for path in (Jobs(client, name).path, PODS.path(name)):
                        await client.request("DELETE", path)
        print(operator.log.read_text()[-3000:])


async def bound(jobs: Jobs) -> dict[str, int]:
    """By job and attempt, how many of its pods have a node and have not ended."""
    found: dict[str, int] = defaultdict(int)
    for pod in await jobs.children(PODS):
        live = pod["status"].get("phase") in ("Pending", "Running")
        name = str(pod["metadata"]["name"]).rpartition("-")[0]
        found[name] += bool(live and pod["spec"].get("nodeName"))
    return found


async def groups(jobs: Jobs, kind: str) -> list[str]:
    """Names of the PodGroups there are."""
    path = f"/apis/{GROUPS[kind]}/namespaces/{jobs.namespace}/podgroups"
    return [each["metadata"]["name"] for each in (await jobs.client.request("GET", path))["items"]]


async def never_in_part(jobs: Jobs, seconds: float, size: int = 3) -> None:
    """For so long no attempt has only a part of its pods on nodes, but while they are bound."""
    since: dict[str, float] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = time.monotonic()
        parts = {name for name, count in (await bound(jobs)).items() if 0 < count < size}
        since = {name: since.get(name, now) for name in parts}
        late = [name for name, first in since.items() if now - first > BINDING_SECONDS]
        counts = dict(await bound(jobs))
        assert not late, f"for {BINDING_SECONDS} s a part of {late} is on nodes: {counts}"
        await asyncio.sleep(0.1)


async def finish(jobs: Jobs, kubelet: ScriptedKubelet, name: str, code: int = 0) -> None:
    for node_rank in range(3):
        kubelet.finish(jobs.namespace, f"{name}-{node_rank}", End(exit_code=code))


async def waits(jobs: Jobs, name: str) -> Body:
    """The job, once its status says why it has no nodes."""
    return await jobs.until(
        lambda job: conditions(job).get("Running") == ("False", "Unschedulable"), name
    )


async def test_of_two_gangs_one_waits_whole_until_the_other_ends(
    site: Site, tmp_path: Path, record_property: Any
) -> None:
    async with operated(site.server, tmp_path, site.kind) as (jobs, kubelet):
        for name in ("first", "second"):
            await jobs.create(name, **THREE)
        await never_in_part(jobs, WAITS_SECONDS)
        counts = await bound(jobs)
        assert sorted(counts.values()) == [0, 3], counts
        one, other = sorted(("first", "second"), key=lambda name: -counts[f"{name}-0"])
        await jobs.in_state("Running", one)
        reason = (await waits(jobs, other))["status"]["summary"]["reason"]
        record_property("seen", f"the one that waits: `{reason}`")
        site.scheduler.kill()  # in the middle of waiting
        site.scheduler.start()
        await never_in_part(jobs, WAITS_SECONDS)
        assert (await bound(jobs))[f"{other}-0"] == 0
        await finish(jobs, kubelet, f"{one}-0")
        await jobs.in_state("Succeeded", one)
        await jobs.in_state("Running", other)
        await never_in_part(jobs, 1.0)
        assert (await bound(jobs))[f"{other}-0"] == 3


async def test_a_group_goes_with_its_attempt_and_the_next_one_is_a_gang_again(
    site: Site, tmp_path: Path
) -> None:
    async with operated(site.server, tmp_path, site.kind) as (jobs, kubelet):
        await jobs.create(**THREE, failurePolicy={"backoffSeconds": {"first": 0}})
        await jobs.in_state("Running")
        assert await groups(jobs, site.kind) == ["digits-0"]
        kubelet.finish(jobs.namespace, "digits-0-1", End(exit_code=1))
        again = await jobs.until(
            lambda job: job["status"]["attempt"] == 1 and job["status"]["state"] == "Running"
        )
        assert again["status"]["restarts"] == 1
        while await groups(jobs, site.kind) != ["digits-1"]:
            await asyncio.sleep(0.1)
        await finish(jobs, kubelet, "digits-1")
        await jobs.in_state("Succeeded")
        await jobs.delete()
        while await groups(jobs, site.kind):
            await asyncio.sleep(0.1)
    entries = site.server.audit.entries(0)
    used = {e.verb for e in entries if (e.user, e.resource) == (USER, "podgroups")}
    assert used == {"get", "create", "delete"}, "what the chart grants"


async def test_without_its_scheduler_a_gang_waits_and_says_for_whom(
    site: Site, tmp_path: Path, record_property: Any
) -> None:
    site.scheduler.kill()
    async with operated(site.server, tmp_path, site.kind) as (jobs, _):
        await jobs.create(**THREE)
        told = await jobs.until(
            lambda job: conditions(job).get("Running") == ("False", "Unscheduled")
        )
        reason = told["status"]["summary"]["reason"]
        record_property("seen", f"`{reason}`")
        site.scheduler.start()
        await jobs.in_state("Running")


async def test_without_the_right_or_the_api_there_are_no_pods(
    site: Site, tmp_path: Path, record_property: Any
) -> None:
    other = next(kind for kind in KINDS if kind != site.kind)
    async with operated(site.server, tmp_path, site.kind, f"gang.scheduler={other}") as (jobs, _):
        await jobs.create(**THREE)
        told = await jobs.until(lambda job: "cannot create" in running(job))
        record_property("seen", f"without the right: `{running(told)}`")
        assert not await jobs.pods()
    (tmp_path / "other").mkdir()
    async with operated(site.server, tmp_path / "other", other) as (jobs, _):
        await jobs.create(**THREE)
        told = await jobs.until(lambda job: "has no PodGroups" in running(job))
        record_property("seen", f"without the API: `{running(told)}`")
        assert f"gang.scheduler is {other}" in running(told) and not await jobs.pods()


def running(job: Body) -> str:
    """The message of the condition Running."""
    found = job.get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in found if c["type"] == "Running"), "")


async def test_a_scheduler_whose_gate_is_off_is_told_of(
    tmp_path: Path, record_property: Any
) -> None:
    with skipping_where_unavailable():
        server = schedulers.native(gate_of_the_scheduler=False)
    with server:
        server.install_crd(ROOT / "charts" / "ddpjob" / "files" / "crd.yaml")
        async with operated(server, tmp_path, "kubernetes") as (jobs, _):
            await jobs.create(**THREE)
            await jobs.in_state("Running")
            while not (found := await warnings(jobs)):
                await asyncio.sleep(0.1)
            record_property("seen", f"Event `GangNotEnforced`: {found[0]}")


async def warnings(jobs: Jobs) -> list[str]:
    return [e["message"] for e in await jobs.events() if e["reason"] == "GangNotEnforced"]


async def test_a_server_whose_gate_is_off_is_told_of(
    api_server: ApiServer, crd: None, tmp_path: Path, record_property: Any
) -> None:
    """Kubernetes before 1.36 is the same."""
    async with operated(api_server, tmp_path, "kubernetes") as (jobs, _):
        await jobs.create(**THREE)
        told = await jobs.until(lambda job: "has no PodGroups" in running(job))
        record_property("seen", f"`{running(told)}`")
        assert not await jobs.pods()
