"""One pod of a large job is lost: all pods anew, one pod anew, a spare, or a smaller group."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.jobwatch import JobWatch
from benchmarks.scale.failing import all_run, policy
from benchmarks.scale.result import Promise, Result
from benchmarks.scale.sent import PODS, Counting
from benchmarks.stage import Stage, played_stage, wait
from tests.cluster.operator import OperatorProcess

NNODES = 1000
LOST = "/api/v1/namespaces/bench-0/pods/job-0-0-1"
WAYS: Mapping[str, dict[str, Any]] = {
    "all pods anew (Recreate)": policy("Recreate"),
    "one pod anew": policy("InPlace"),
    "a spare": {**policy("InPlace"), "spares": 1},
    "a smaller group": {
        **policy("InPlace"),
        "elastic": {"minNodes": 1, "replaceSeconds": 0, "growSeconds": 3600},
    },
}
MOST_WRITES = 10


@dataclass(frozen=True)
class Loss:
    """What it took until all ran again."""

    seconds: float
    writes: Counter[str]
    """By resource; until the operator was quiet again."""
    bytes: Counter[str]


def measure(share: float) -> Result:
    """The same loss in each way, on a control plane of its own."""
    nnodes = round(NNODES * share)
    found = {}
    for way, spec in WAYS.items():
        with played_stage() as (here, _, seen):
            found[way] = asyncio.run(_lose(here, seen, nnodes, spec))
    return judge(nnodes, found)


async def _lose(here: Stage, seen: JobWatch, nnodes: int, spec: dict[str, Any]) -> Loss:
    async with Counting(here) as proxy:
        with here.operator(url=proxy.url) as operator:
            jobs = {"job-0": {"nnodes": nnodes, **spec}}
            await asyncio.to_thread(here.create_jobs, jobs)
            await asyncio.to_thread(_begin, here, seen, operator, spec.get("spares", 0))
            proxy.bytes.clear()
            proxy.writes.clear()
            seconds = await asyncio.to_thread(_delete, here, seen, operator)
            return Loss(seconds, Counter(proxy.writes), Counter(proxy.bytes))


def _begin(here: Stage, seen: JobWatch, operator: OperatorProcess, spares: int) -> None:
    all_run(here, seen, operator, 1)

    def has_spares() -> bool:
        return seen.count(lambda status: status["nodes"].get("spares", 0) == spares) == 1

    wait(operator, has_spares, "there is no spare")
    here.settle(operator)


def _delete(here: Stage, seen: JobWatch, operator: OperatorProcess) -> float:
    since = time.time()
    here.server.request("DELETE", LOST)

    def running() -> dict[str, float]:
        return seen.first(lambda found: found.time > since and found.state == "Running")

    wait(operator, lambda: bool(running()), "not all run again")
    (again,) = running().values()
    here.settle(operator)
    return again - since


def judge(nnodes: int, found: Mapping[str, Loss]) -> Result:
    """The promise, and the figures."""
    few = {way: loss.writes.total() for way, loss in found.items() if not way.startswith("all")}
    words = ", ".join(f"{writes} with {way}" for way, writes in few.items())
    figures = []
    for way, loss in found.items():
        of_pods = f", {loss.writes[PODS]} of them for pods"
        sent = f"{loss.bytes.total() / 1024:,.0f} KiB"
        writes = f"{loss.writes.total()} writes{of_pods}, {sent}"
        figures.append((way, f"{loss.seconds:.1f} s, {writes}"))
    return Result(
        f"1 job × {nnodes:,} pods, one is deleted",
        "From the deletion until the status says that all nodes run again. Nodes and agents are "
        "played, so this is the operator's and the API server's part.",
        [
            Promise(
                f"where the others stay, at most {MOST_WRITES} writes, however many they are",
                words,
                max(few.values()) <= MOST_WRITES,
            )
        ],
        figures,
    )
