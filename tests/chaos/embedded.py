"""One life of a job on the embedded cluster, and what is left of it."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from ddpjob.cluster import NETWORK_POLICIES, PODS, SERVICES
from tests.chaos.auditor import Auditor
from tests.chaos.clock import Clock
from tests.chaos.ends import CLOCKS, without
from tests.chaos.faults import Fault
from tests.chaos.trail import Trailed
from tests.chaos.workloads import Workload, in_state, read
from tests.localplay import NAMESPACE, operating

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
    return await live(workload, fault, lambda cluster: operating(cluster, workload.script))


async def live(workload: Workload, fault: Fault | None, operated: Operated) -> Run:
    """The same, of a cluster that is `operated` so."""
    clock = Clock.of_this_run()
    cluster = Trailed(fault, now=clock.now)
    if workload.timed:
        clock.stop()
    await workload.submit(cluster)
    async with operated(cluster), asyncio.timeout(30):
        await workload.acts(cluster)
        if workload.timed:
            await workload.timed(cluster, clock.forward)
        await in_state(cluster, workload.ends)
        await at_rest(cluster)
    auditor = Auditor()
    auditor.replay(cluster.entries)
    breaches = [str(breach) for breach in auditor.at_rest()]
    return Run(await end_of(cluster, workload.loose), sum(cluster.writes.values()), breaches)


async def at_rest(cluster: Trailed) -> None:
    """Wait until nothing has changed for a while."""
    while True:
        seen = len(cluster.entries)
        for _ in range(15):  # so that a pause of this whole process does not pass for quiet
            await asyncio.sleep(QUIET_SECONDS / 15)
        if len(cluster.entries) == seen:
            return


async def end_of(cluster: Trailed, loose: tuple[str, ...]) -> str:
    """The job's status without times, its children, and how often each name was created."""
    job = await read(cluster)
    names = {
        resource.kind: sorted(
            found["metadata"]["name"]
            for found in (await cluster.list(resource, namespace=NAMESPACE)).items
        )
        # A finished job's ConfigMap is dropped on the way, or else goes with the job.
        for resource in (PODS, SERVICES, NETWORK_POLICIES)
    }
    created = [
        (entry.kind, entry.object["metadata"]["name"])
        for entry in cluster.entries
        if entry.before is None and entry.kind not in ("Event", "DDPJob")
    ]
    status = without((job or {}).get("status"), {*CLOCKS, *loose})
    return json.dumps([status, names, sorted(created)], indent=1, sort_keys=True)
