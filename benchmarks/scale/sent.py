"""What the operator sends: bytes of the bodies of its writes, counted by a proxy before the API."""

import asyncio
from collections import Counter

from aiohttp import web

from benchmarks.jobwatch import JobWatch
from benchmarks.scale.failing import NNODES, all_run
from benchmarks.scale.result import Result
from benchmarks.stage import Stage, numbered, played_stage
from tests.chaos.proxy import Proxy

JOBS = 100
PODS = "pods"


class Counting(Proxy):
    """Passes everything on, and counts the bytes of what is written, by resource."""

    def __init__(self, here: Stage) -> None:
        super().__init__(here.server, kill=lambda: None)
        self.bytes: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()

    async def _write(self, request: web.Request, body: bytes) -> web.StreamResponse:
        parts = request.path.partition("/namespaces/")[2].split("/")
        resource = "/".join([parts[1], *parts[3:]])
        self.bytes[resource] += len(body)
        self.writes[resource] += 1
        return await super()._write(request, body)


def measure(share: float) -> Result:
    """From nothing until all jobs run."""
    jobs = round(JOBS * share)
    with played_stage() as (here, _, seen):
        counted = asyncio.run(_count(here, seen, jobs))
    return judge(jobs, counted.bytes, counted.writes)


async def _count(here: Stage, seen: JobWatch, jobs: int) -> Counting:
    async with Counting(here) as proxy:
        with here.operator(url=proxy.url) as operator:
            await asyncio.to_thread(here.create_jobs, numbered(jobs, nnodes=NNODES))
            await asyncio.to_thread(all_run, here, seen, operator, jobs)
    return proxy


def judge(jobs: int, sent: Counter[str], writes: Counter[str]) -> Result:
    """Bytes for each pod, and for each job besides."""
    of_pods = sent[PODS] / writes[PODS]
    others = {name: size / jobs for name, size in sorted(sent.items()) if name != PODS}
    return Result(
        f"Bytes written for {jobs} jobs × {NNODES} pods",
        "Bodies of all writes from nothing until all run, as they leave the operator; without "
        "Events.",
        [],
        [
            ("for each pod, bytes", f"{of_pods:,.0f}"),
            ("for each job, without its pods, bytes", f"{sum(others.values()):,.0f}"),
            *((f"of which {name}, bytes", f"{size:,.0f}") for name, size in others.items()),
        ],
    )
