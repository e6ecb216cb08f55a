"""One life of a job on the embedded cluster, and what is left of it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ddpjob.cluster import NETWORK_POLICIES, PODS, SERVICES
from ddpjob.errors import Conflict, NotFound
from ddpjob.json_depth import Body
from tests.chaos.agents import Agents, Doors, Play
from tests.chaos.auditor import Auditor, Entry
from tests.chaos.clock import Clock, this_run
from tests.chaos.ends import CLOCKS, without
from tests.chaos.faults import Fault
from tests.chaos.network import Network, node_of
from tests.chaos.rounds import Deed
from tests.chaos.trail import Trailed
from tests.chaos.workloads import Workload, in_state, play_kueue, read
from tests.localplay import NAMESPACE, end_pod, keep_running, play_pods, side_by_side

SPARE = re.compile(r"-s\d+$")
QUIET_SECONDS = 0.15  # longer than the operator's own pauses in these tests

Operated = Callable[[Trailed], AbstractAsyncContextManager[None]]
"""Runs what works on the cluster: operators, a kubelet."""


@dataclass(frozen=True)
class Run:
    """What is left when nothing happens any more, and what was wrong on the way."""

    end: str
    writes: int
    breaches: list[str]


async def run(workload: Workload, fault: Fault | None) -> Run:
    """One life of the job. Raises TimeoutError where it does not come to its end."""
    return await live(workload, fault, lambda cluster: operating(cluster, workload))


@asynccontextmanager
async def operating(cluster: Trailed, workload: Workload) -> AsyncIterator[None]:
    """A controller that is started again whenever it dies, and the job's pods, played."""
    async with playing(cluster, workload), side_by_side(keep_running(cluster, workload.settings)):
        yield


@asynccontextmanager
async def playing(cluster: Trailed, workload: Workload) -> AsyncIterator[None]:
    """The job's pods, and their agents."""
    if workload.play is None:
        kueue = [play_kueue(cluster)] if workload.settings.kueue else []
        async with side_by_side(play_pods(cluster, workload.script), *kueue):
            yield
        return
    network = None
    if workload.play.troubles:
        network = Network(workload.play.troubles, this_run())
        network.clock.play()
        cluster.has_nodes = True
    without_kubelet = network.off_the_api if network else frozenset
    with Doors() as doors:
        agents = _play_agents(cluster, doors, workload.play, network)
        pods = play_pods(cluster, workload.script, doors.address, without_kubelet)
        async with side_by_side(pods, agents):
            yield


async def _play_agents(cluster: Trailed, doors: Doors, play: Play, network: Network | None) -> None:
    """Have the agents see their pods, and end those that they are done with; until cancelled."""
    due: dict[str, tuple[int, str]] = {}  # by uid of the pod

    def end(pod: Body, code: int, message: str) -> None:
        due[pod["metadata"]["uid"]] = code, message

    agents = Agents(doors, play, cluster.trail.append, end, network=network)
    seen: Any = None
    while True:
        while (here := (cluster.revision, network and network.off_the_api())) == seen and not due:
            await asyncio.sleep(0.002)
            if network is not None:
                break
        if network is not None:
            await network.clock.turn()
            agents.turn()
        if here == seen and not due:
            continue
        seen = here
        listing = await cluster.list(PODS, namespace=NAMESPACE)
        pods = {pod["metadata"]["uid"]: pod for pod in listing.items}
        agents.see_all(pods)
        if network is not None and (attempt := await _running_attempt(cluster)) is not None:
            network.begin(attempt)
        for uid, (code, message) in list(due.items()):
            if (
                network is not None
                and uid in pods
                and not network.reaches(node_of(pods[uid]), "api")
            ):
                continue
            with suppress(Conflict, NotFound):
                if uid in pods:
                    await end_pod(cluster, pods[uid], code, message)
                del due[uid]


async def _running_attempt(cluster: Trailed) -> int | None:
    """The number of restarts after which the job says that it is Running, or has ended well."""
    status = (await read(cluster) or {}).get("status") or {}
    runs = status.get("state") in ("Running", "Succeeded")
    return status.get("restarts") or 0 if runs else None


async def trail_of(workload: Workload) -> list[Entry | Deed]:
    """All that changes and is done in a life of the job without a fault."""
    return (await _live(workload, None, lambda cluster: operating(cluster, workload))).trail


async def live(workload: Workload, fault: Fault | None, operated: Operated) -> Run:
    """The same, of a cluster that is `operated` so."""
    cluster = await _live(workload, fault, operated)
    auditor = Auditor()
    auditor.replay(cluster.trail)
    breaches = [str(breach) for breach in auditor.at_rest()]
    return Run(await end_of(cluster, workload.loose), sum(cluster.writes.values()), breaches)


async def _live(workload: Workload, fault: Fault | None, operated: Operated) -> Trailed:
    """One life of the job; the cluster that is left of it."""
    clock = Clock.of_this_run()
    cluster = Trailed(fault, now=clock.now)
    if workload.timed:
        clock.stop()
    await workload.submit(cluster)
    async with operated(cluster), asyncio.timeout(900):
        await workload.acts(cluster)
        if workload.timed:
            await workload.timed(cluster, clock.forward)
        await in_state(cluster, workload.ends)
        await at_rest(cluster)
    return cluster


async def at_rest(cluster: Trailed) -> None:
    """Wait until nothing has changed for a while."""
    while True:
        seen = len(cluster.trail)
        for _ in range(15):  # so that a pause of this whole process does not pass for quiet
            await asyncio.sleep(QUIET_SECONDS / 15)
        if len(cluster.trail) == seen:
            return


async def end_of(cluster: Trailed, loose: tuple[str, ...]) -> str:
    """The job's status without times, its children, and how often each name was created.

    How many spares it took is left out.
    """
    job = await read(cluster)
    names = {
        resource.kind: sorted(
            found["metadata"]["name"]
            for found in (await cluster.list(resource, namespace=NAMESPACE)).items
            if not SPARE.search(found["metadata"]["name"])
        )
        # A finished job's ConfigMap is dropped on the way, or else goes with the job.
        for resource in (PODS, SERVICES, NETWORK_POLICIES)
    }
    created = [
        (entry.kind, entry.object["metadata"]["name"])
        for entry in cluster.entries
        if entry.before is None and entry.kind not in ("Event", "DDPJob", "Workload")
        if not SPARE.search(entry.object["metadata"]["name"])
    ]
    status = without((job or {}).get("status"), {*CLOCKS, *loose})
    return json.dumps([status, names, sorted(created)], indent=1, sort_keys=True)
