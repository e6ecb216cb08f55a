"""Small jobs beside a large one that fails again and again."""

import asyncio
import time
from dataclasses import dataclass

from benchmarks.jobwatch import JobWatch
from benchmarks.player import FLAPPING
from benchmarks.scale.failing import job_of, policy
from benchmarks.scale.result import Promise, Result, percentile
from benchmarks.scale.storm import spread
from benchmarks.stage import Stage, cpu_seconds, played_stage, process_of, wait
from ddpjob.cluster import CONFIGMAPS
from tests.cluster.client import Client
from tests.cluster.operator import OperatorProcess

JOBS, WIDE = 100, 1000
NNODES = 2
EVERY_SECONDS = 0.2
MOST_TIMES = 2.0


@dataclass(frozen=True)
class Small:
    """Seconds from each small job's creation."""

    created: list[float]
    """Until its last pod has been created: the operator's part."""
    running: list[float]
    """Until its status says that all nodes run."""
    floor: list[float]
    """What three writes one after the other take a client that has nothing else to do.

    So many has the operator until a small job's last pod is created: its children, its status, its
    pods.
    """
    ours: float
    """CPU seconds of the operator, for each second."""
    control_plane: float
    """The same of API server and etcd."""


def measure(share: float) -> Result:
    """Small jobs one after the other: alone, then beside the large one."""
    jobs, wide = round(JOBS * share), round(WIDE * share)
    with played_stage() as (here, _, seen), here.operator() as operator:
        operator.wait_until_ready()
        _latencies(here, seen, operator, 5, "first")  # so that all code has run once
        alone = _latencies(here, seen, operator, jobs, "alone")
        here.create_jobs({FLAPPING: {"nnodes": wide, **policy("Recreate")}})

        def attempt() -> int:
            return int(seen.jobs.get(f"bench-0/{FLAPPING}", {}).get("attempt", 0))

        wait(operator, lambda: attempt() > 0, "the wide job does not fail")
        before = attempt()
        beside = _latencies(here, seen, operator, jobs, "beside")
        return judge(wide, alone, beside, attempt() - before)


def _latencies(
    here: Stage, seen: JobWatch, operator: OperatorProcess, jobs: int, prefix: str
) -> Small:
    """Create jobs one after the other, and wait until all of them run."""
    begun: dict[str, float] = {}
    floor: list[float] = []
    start, ours, theirs = time.monotonic(), cpu_seconds(process_of(operator)), here.server_cpu()
    for number in range(jobs):
        begun[f"bench-0/{prefix}-{number}"] = time.time()
        here.create_jobs({f"{prefix}-{number}": {"nnodes": NNODES}})
        time.sleep(EVERY_SECONDS)
        floor.append(asyncio.run(_three_writes(here)))

    def running() -> dict[str, float]:
        return seen.first(lambda found: found.job in begun and found.state == "Running")

    wait(operator, lambda: len(running()) == jobs, "not all small jobs run")
    seconds = time.monotonic() - start
    here.writes.read()
    pods = [write for write in here.writes.log if write.is_of("create", "pods")]
    last = {f"bench-0/{job_of(write)}": write.time for write in pods}
    return Small(
        created=[last[job] - at for job, at in begun.items()],
        running=[running()[job] - at for job, at in begun.items()],
        floor=floor,
        ours=(cpu_seconds(process_of(operator)) - ours) / seconds,
        control_plane=(here.server_cpu() - theirs) / seconds,
    )


async def _three_writes(here: Stage) -> float:
    """The seconds of three writes one after the other, over a connection that is open already."""
    maps = CONFIGMAPS.path("bench-0")
    body = {"metadata": {"name": "floor"}, "data": {"x": ""}}
    async with Client(here.server) as client:
        await client.request("GET", f"{maps}?limit=1")
        begin = time.monotonic()
        await client.request("POST", maps, body)
        await client.request("PUT", f"{maps}/floor", {**body, "data": {"x": "y"}})
        await client.request("DELETE", f"{maps}/floor")
        return time.monotonic() - begin


def cores(found: Small) -> str:
    """How many cores were busy, by whom."""
    return f"{found.ours:.2f}, {found.control_plane:.2f}"


def judge(wide: int, alone: Small, beside: Small, restarts: int) -> Result:
    """The promise, and the figures."""
    times = percentile(beside.running, 0.99) / percentile(alone.running, 0.99)
    return Result(
        f"{len(alone.running)} small jobs beside a flapping one of {wide:,} pods",
        f"Jobs of {NNODES} pods are created one after the other, first alone and then beside a job "
        "whose rank 0 fails 2 s after it has started, and that gets all its pods anew each time, "
        "without a pause. Creating the pods is the operator's part, in three writes that wait for "
        "each other; the rest is the control plane's and the played kubelet's, on the same cores. "
        f"So another client's three small writes are measured too, {EVERY_SECONDS} s after each "
        "job's creation; the next job comes after them.",
        [
            Promise(
                f"p99 from creation to Running at most {MOST_TIMES:.0f} × that without it",
                f"{times:.2f} ×",
                times <= MOST_TIMES,
            )
        ],
        [
            ("alone: seconds to Running, median and p99", spread(alone.running)),
            ("beside: seconds to Running, median and p99", spread(beside.running)),
            ("alone: seconds to the last pod's creation, median and p99", spread(alone.created)),
            ("beside: seconds to the last pod's creation, median and p99", spread(beside.created)),
            ("alone: three writes in turn of another client, median and p99", spread(alone.floor)),
            (
                "beside: three writes in turn of another client, median and p99",
                spread(beside.floor),
            ),
            ("beside: CPU of the operator, and of API server and etcd, cores", cores(beside)),
            ("restarts of the flapping job meanwhile", f"{restarts}"),
        ],
    )
