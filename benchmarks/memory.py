"""`python -m benchmarks.memory`: how much the operator takes to start beside many objects.

Jobs that run, jobs that have finished, and what tenants may store; the peaks are the kernel's.
"""

import argparse
import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any

from benchmarks.report import MIB
from benchmarks.stage import cpu_seconds, gauge, job, jobs_path, numbered, played_stage, process_of
from tests.api.large import large_job, large_pod
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.operator import OperatorProcess

WAIT_SECONDS = 1500.0
FINISHED = {
    "state": "Succeeded",
    "attempt": 1,
    "restarts": 1,
    "startTime": "2026-01-01T00:00:00Z",
    "completionTime": "2026-01-01T01:00:00Z",
    "nodes": {"desired": 8, "succeeded": 8},
    "worldSize": 8,
    "summary": {"nodes": "8/8", "step": "1000/1000", "loss": "0.1234"},
    "goodput": {"productiveSeconds": 3600, "since": "2026-01-01T01:00:00Z"},
    "progress": {"step": 1000, "totalSteps": 1000, "loss": "0.1234", "percent": 100},
    "conditions": [
        {
            "type": kind,
            "status": "True",
            "reason": "AllRanksSucceeded",
            "message": "all ranks have ended with exit code 0",
            "lastTransitionTime": "2026-01-01T01:00:00Z",
        }
        for kind in ("Accepted", "Complete")
    ],
}


def main() -> None:
    """Print the peaks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="that run, of 8 pods each (1000)")
    parser.add_argument("--finished", type=int, default=10_000, help="jobs (10000)")
    parser.add_argument("--large", type=int, default=60, help="large jobs, and large pods (60)")
    options = parser.parse_args()
    spaces = tuple(f"bench-{number}" for number in range(4))
    with (
        played_stage(spaces=spaces) as (here, _, seen),
        here.operator() as operator,
    ):
        here.create_jobs(numbered(options.jobs), spaces)
        wait(lambda: seen.count(lambda found: found.get("state") == "Running") == options.jobs)
        print(f"{options.jobs} jobs × 8 pods, as they came: {taken(operator)}", flush=True)
        operator.kill()
        restart(operator)
        print(f"{options.jobs} jobs × 8 pods, at a start: {taken(operator)}", flush=True)
        operator.kill()
        asyncio.run(finish(here.server, options.finished))
        restart(operator)
        print(f"and {options.finished} finished jobs: {taken(operator)}", flush=True)
        operator.kill()
        asyncio.run(enlarge(here.server, options.large))
        restart(operator)
        print(f"and {options.large} large jobs and large pods: {taken(operator)}", flush=True)


def restart(operator: OperatorProcess) -> None:
    """Start it, and give it the time to look at every job."""
    operator.start()
    begin = time.monotonic()
    operator.wait_until_ready(120)
    print(f"ready after {time.monotonic() - begin:.1f} s; ", end="")
    rest(operator)


def rest(operator: OperatorProcess) -> None:
    """Wait until it has looked at every job."""
    wait(lambda: "ddpjob_queue_depth 0.0" in operator.get("/metrics"))
    time.sleep(3)


def wait(holds: Any) -> None:
    """Until it does. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(3)  # an answer about 1,000 jobs costs the API server a second


def taken(operator: OperatorProcess) -> str:
    """Peak and present memory of the process, and its CPU time so far."""
    process = process_of(operator)
    peak = gauge(operator.get("/metrics"), "ddpjob_memory_peak_bytes") / MIB
    now = process.memory_info().rss / MIB
    return f"peak {peak:.0f} MiB, then {now:.0f} MiB, {cpu_seconds(process):.1f} s of CPU"


async def in_turn(works: Iterable[Coroutine[Any, Any, Any]], at_once: int) -> None:
    """All of them, so many at once."""
    slots = asyncio.Semaphore(at_once)

    async def one(work: Coroutine[Any, Any, Any]) -> None:
        async with slots:
            await work

    await asyncio.gather(*map(one, works))


async def finish(server: ApiServer, count: int) -> None:
    """Store jobs that have finished."""
    path = jobs_path("bench-0")

    async def one(client: Client, number: int) -> None:
        body = job(f"finished-{number}")
        stored = await client.request("POST", path, body)
        await client.request(
            "PUT", f"{path}/finished-{number}/status", {**stored, "status": FINISHED}
        )

    async with Client(server) as client:
        await in_turn((one(client, number) for number in range(count)), 32)


async def enlarge(server: ApiServer, count: int) -> None:
    """Store what tenants can: jobs of 1.3 MB, and pods of 1.35 MB with the operator's label."""
    jobs = jobs_path("bench-1")
    pods = "/api/v1/namespaces/bench-1/pods"
    async with Client(server) as client:
        works = [client.request("POST", jobs, large_job(number)) for number in range(count)]
        works += [client.request("POST", pods, large_pod(number)) for number in range(count)]
        await in_turn(works, 4)


if __name__ == "__main__":
    main()
