"""Many plans, side by side, until time is up: what failed, shrunk, and the figures."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpjob.json_depth import Body
from tests.chaos.agents import Doors
from tests.chaos.lane import Lane, Site
from tests.chaos.plan import Plan
from tests.chaos.run import BY_NAME, Verdict, run
from tests.chaos.suites import WRITES, pairs, plans
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import grant_rights
from tests.cluster.tiers import ROOT
from tests.localplay import is_unschedulable

KNOWN = Path(__file__).with_name("known.txt")
LANES = 4  # for one operator, beside one lane for two; most of a run's time is waiting for quiet
TRIES = 2  # of a plan that failed, in lanes of its own
LEAST = 4  # plans of each lane, however slow the machine is
LEEWAY = 4  # writes more or less than `WRITES` says: counts are written together or one by one
RETRIED = 12  # the same where a name is taken: three writes for each try until it is free
# A new control plane's garbage collector takes some 30 s to know our resource, and the operator
# asks again for each name that an earlier job left: one of so many runs must agree.
LESSONS = 3
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
        nodes = await stack.enter_async_context(fake_nodes(client, "node-0"))
        doors = stack.enter_context(Doors())
        kubelet = await stack.enter_async_context(
            ScriptedKubelet(client, nodes, bind=has_room, address=doors.address)
        )
        folder = stack.enter_context(TemporaryDirectory())
        yield Site(server, client, kubelet, Path(folder), doors)


@dataclass
class Figures:
    """What has been tried, and what went wrong."""

    jobs: int = 0
    writes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    suites: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    """By what each wrong thing begins with."""

    def add(self, suite: str, verdict: Verdict) -> None:
        """Count one run."""
        self.jobs += 1
        self.writes += verdict.writes
        self.suites[suite] += 1
        self.faults.update(f"{fault.where} {fault.kind}" for fault in verdict.fired)
        self.wrong.update({words.split(":")[0].split()[0] for words in verdict.wrong})

    def __str__(self) -> str:
        known = ("lost", "end", "I1", "I8", "I11", "exit")
        others = sum(n for name, n in self.wrong.items() if name not in known)
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(self.faults.items()))
        return (
            f"{self.jobs} jobs, {self.writes} writes, {sum(self.faults.values())} faults: "
            f"{self.wrong['lost']} lost jobs, {self.wrong['I1']} duplicate ranks, "
            f"{self.wrong['I8']} wrong counts, {self.wrong['I11']} leaks, "
            f"{self.wrong['end']} other ends, {others} other broken promises, "
            f"{self.wrong['exit']} unexplained exits\n"
            f"suites: {', '.join(f'{s} {n}' for s, n in sorted(self.suites.items()))}\n"
            f"faults: {kinds}"
        )


@dataclass
class Campaign:
    """Runs plans until it is told to stop, or has seen enough failures."""

    site: Site
    references: dict[str, str] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    failures: list[Verdict] = field(default_factory=list)

    async def learn(self, lane: Lane, names: Iterator[str]) -> None:
        """Run workloads without faults, to know their ends."""
        for name in names:
            for lesson in range(LESSONS):
                verdict = await run(lane, Plan(name), {})
                if verdict.wrong:
                    raise AssertionError(f"without any fault: {verdict}")
                # How often a taken name is tried again depends on when its owner frees it.
                leeway = LEEWAY + (RETRIED if BY_NAME[name].taken else 0)
                if abs(verdict.writes - WRITES[name]) <= leeway:
                    break
                if lesson == LESSONS - 1:
                    raise AssertionError(
                        f"{name} makes {verdict.writes} writes, not {WRITES[name]}"
                    )
            if not BY_NAME[name].timed:
                self.references[name] = verdict.end

    async def sample(
        self, seed: int, seconds: float, *, known: Sequence[Plan] = (), lanes: int = LANES
    ) -> None:
        """Run the known plans, and then those of this seed for so long; a few in any case."""
        first = [("known", plan) for plan in known]
        singles = chain((each for each in first if each[1].operators == 1), plans(seed))
        doubles = chain((each for each in first if each[1].operators == 2), pairs(seed))
        async with AsyncExitStack() as stack:
            makers = [Lane(self.site) for _ in range(lanes)] + [Lane(self.site, operators=2)]
            opened = await asyncio.gather(*map(stack.enter_async_context, makers))
            names = iter(BY_NAME)
            await asyncio.gather(*(self.learn(lane, names) for lane in opened[:-1]))
            deadline = time.monotonic() + seconds
            await asyncio.gather(
                *(self._work(lane, singles, deadline) for lane in opened[:-1]),
                self._work(opened[-1], doubles, deadline),
            )

    async def _work(self, lane: Lane, source: Iterator[tuple[str, Plan]], deadline: float) -> None:
        done = 0
        for suite, plan in source:
            late = time.monotonic() > deadline and suite != "known" and done >= LEAST
            if late or len(self.failures) >= FAILURES:
                return
            done += suite != "known"
            verdict = await run(lane, plan, self.references)
            self.figures.add(suite, verdict)
            if verdict.wrong:
                print(f"\nfailed: {verdict}", flush=True)
                self.failures.append(verdict)

    async def alone(self, plan: Plan) -> Verdict:
        """Run a plan in a lane of its own, with fresh operators."""
        async with Lane(self.site, operators=plan.operators) as lane:
            if plan.workload not in self.references and plan.operators == 1:
                await self.learn(lane, iter([plan.workload]))
            return await run(lane, plan, self.references)

    async def fails(self, plan: Plan) -> Verdict | None:
        """The first failure of a few tries, if there is one."""
        for _ in range(TRIES):
            verdict = await self.alone(plan)
            if verdict.wrong:
                return verdict
        return None

    async def explain(self, verdict: Verdict) -> str:
        """The failure with the fewest faults, and how to see it again."""
        small = await shrink(verdict.plan, self.fails)
        if small is None:
            return f"{verdict}\n  it did not happen again in {TRIES} tries alone"
        return f"{small}\n  again: make chaos PLAN='{small.plan}'"


async def shrink(plan: Plan, fails: Callable[[Plan], Awaitable[Verdict | None]]) -> Verdict | None:
    """The verdict on the smallest plan that still fails; None where even the whole one does not."""
    found = await fails(plan)
    if found is not None:
        for less in smaller(found.plan):
            if (verdict := await shrink(less, fails)) is not None:
                return verdict
    return found


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with one operator, or one fault, less."""
    if plan.operators > 1:
        yield Plan(plan.workload, plan.faults)
    if len(plan.faults) > 1:
        for fault in plan.faults:
            rest = tuple(other for other in plan.faults if other != fault)
            yield Plan(plan.workload, rest, plan.operators)
