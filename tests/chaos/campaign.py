"""Many plans, side by side, until time is up: what failed, and the figures."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpjob.json_depth import Body
from tests.chaos.lane import Lane, Site
from tests.chaos.plan import Plan
from tests.chaos.run import BY_NAME, Verdict, run
from tests.chaos.suites import plans
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client, connected
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import grant_rights
from tests.cluster.tiers import ROOT
from tests.localplay import is_unschedulable

KNOWN = Path(__file__).with_name("known.txt")
LANES = 5  # most of a run's time is waiting for quiet
LEAST = 4  # plans of each lane, however slow the machine is
FAILURES = 3  # enough to look at


def known_plans() -> list[Plan]:
    """Those of known.txt."""
    lines = (line.partition("#")[0].strip() for line in KNOWN.read_text().splitlines())
    return [Plan.parse(line) for line in lines if line]


def has_room(pod: Body) -> bool:
    """Whether the pod gets a node."""
    return not is_unschedulable(pod)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """A control plane of its own, without a scheduler; raises Unavailable."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(ApiServer(scheduler=False))
        await asyncio.to_thread(
            server.install_crd, ROOT / "charts" / "ddpjob" / "files" / "crd.yaml"
        )
        await asyncio.to_thread(grant_rights, server)
        client = await stack.enter_async_context(Client(server))
        cluster = await stack.enter_async_context(connected(server))
        nodes = await stack.enter_async_context(fake_nodes(client, "node-0"))
        kubelet = await stack.enter_async_context(ScriptedKubelet(client, nodes, bind=has_room))
        folder = stack.enter_context(TemporaryDirectory())
        yield Site(server, client, cluster, kubelet, Path(folder))


@dataclass
class Figures:
    """What has been tried."""

    jobs: int = 0
    writes: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        """Count one run."""
        self.jobs += 1
        self.writes += verdict.writes
        self.faults.update(f"{fault.where} {fault.kind}" for fault in verdict.fired)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.faults.items()))
        count = sum(self.faults.values())
        return f"{self.jobs} jobs, {self.writes} writes, {count} faults: {kinds}"


@dataclass
class Campaign:
    """Runs plans until it is told to stop, or has seen enough failures."""

    site: Site
    references: dict[str, str] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    failures: list[Verdict] = field(default_factory=list)

    async def learn(self, lane: Lane, names: Iterator[str]) -> None:
        """Run workloads without faults, to know their ends and how much is written."""
        for name in names:
            verdict = await run(lane, Plan(name), {})
            if verdict.wrong:
                raise AssertionError(f"without any fault: {verdict}")
            self.writes[name] = verdict.writes
            if not BY_NAME[name].timed:
                self.references[name] = verdict.end

    async def sample(self, seed: int, seconds: float, *, known: Sequence[Plan] = ()) -> None:
        """Run the known plans, and then those of this seed for so long; a few in any case."""
        async with AsyncExitStack() as stack:
            makers = [Lane(self.site) for _ in range(LANES)]
            opened = await asyncio.gather(*map(stack.enter_async_context, makers))
            names = iter(BY_NAME)
            await asyncio.gather(*(self.learn(lane, names) for lane in opened))
            source = chain(known, plans(seed, self.writes))
            deadline = time.monotonic() + seconds
            await asyncio.gather(*(self._work(lane, source, deadline) for lane in opened))

    async def _work(self, lane: Lane, source: Iterator[Plan], deadline: float) -> None:
        for done, plan in enumerate(source):
            late = time.monotonic() > deadline and done >= LEAST
            if late or len(self.failures) >= FAILURES:
                return
            verdict = await run(lane, plan, self.references)
            self.figures.add(verdict)
            if verdict.wrong:
                print(f"\nfailed: {verdict}", flush=True)
                self.failures.append(verdict)

    async def alone(self, plan: Plan) -> Verdict:
        """Run a plan in a lane of its own, with a fresh operator."""
        async with Lane(self.site) as lane:
            if plan.workload not in self.references:
                await self.learn(lane, iter([plan.workload]))
            return await run(lane, plan, self.references)
