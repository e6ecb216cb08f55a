"""One trial: a fresh control plane, jobs, and one of the two sides to create their pods."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.player import playing
from benchmarks.stage import (
    QUIET_SECONDS,
    Stage,
    check,
    cpu_seconds,
    gauge,
    numbered,
    process_of,
    stage,
)
from benchmarks.writes import Writes
from ddpjob import names
from tests.cluster import operator as operators
from tests.cluster.tiers import ROOT

TRIAL_SECONDS = 600.0
BARE, OPERATOR = "bare", "operator"


@dataclass(frozen=True)
class Scenario:
    """How many jobs, and how wide."""

    name: str
    jobs: int
    nnodes: int
    namespaces: int = 1
    played: bool = True
    """Whether the scripted kubelet binds and starts the pods while they are created."""

    @property
    def pods(self) -> int:
        """Pods in all."""
        return self.jobs * self.nnodes


@dataclass(frozen=True)
class Trial:
    """What was measured. Memory in bytes, CPU and times in seconds."""

    seconds: float
    """From the first pod created to the last."""
    pods: int
    cpu: float
    """Of the client: the bare one's while it sends; the operator's in all, its start included."""
    server_cpu: float
    """Of API server and etcd, from before the first write to after the last pod's creation."""
    writes: Counter[tuple[str, str]]
    refused: Counter[tuple[str, str, int]]
    rss: int = 0
    """Of the operator at the end, when all pods run."""
    rss_peak: int = 0
    cpu_created: float = 0.0
    """Of the operator until the last pod was created."""

    @property
    def rate(self) -> float:
        """Pods per second."""
        return self.pods / self.seconds


Hook = Callable[[int], None]
"""Called with the operator's process id once it has started, such as to attach a profiler."""


def run(scenario: Scenario, side: str, hook: Hook | None = None) -> Trial:
    """One trial of `side`. Raises TimeoutError where the pods are not there in time."""
    spaces = tuple(f"bench-{number}" for number in range(scenario.namespaces))
    with ExitStack() as stack:
        here = stack.enter_context(stage(spaces=spaces))
        here.create_jobs(numbered(scenario.jobs, nnodes=scenario.nnodes), spaces)
        if scenario.played:
            stack.enter_context(playing(here.server))
        time.sleep(2)  # let the server finish what the preparations have started
        before = here.server_cpu()
        return (
            _bare(here, scenario, before)
            if side == BARE
            else _operate(here, scenario, before, hook)
        )


def _bare(here: Stage, scenario: Scenario, before: float) -> Trial:
    token = here.server.service_account_token(*operators.ACCOUNT)
    config = here.server.write_kubeconfig(here.folder / "bare", token=token)
    command = [sys.executable, "-m", "benchmarks.bare", str(config)]
    ended = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=TRIAL_SECONDS
    )
    after, writes = here.server_cpu(), here.writes
    writes.read()
    _check(writes, scenario)
    return Trial(
        seconds=writes.creation_seconds,
        pods=scenario.pods,
        cpu=json.loads(ended.stdout)["cpu_seconds"],
        server_cpu=after - before,
        writes=writes.counts,
        refused=writes.refused,
    )


def _operate(here: Stage, scenario: Scenario, before: float, hook: Hook | None) -> Trial:
    with here.operator() as operator:
        process, writes = process_of(operator), here.writes
        if hook:
            hook(process.pid)
        deadline = time.monotonic() + TRIAL_SECONDS

        def pause() -> None:
            check(operator, deadline, f"{len(writes.pods_created)} of {scenario.pods} pods")
            time.sleep(0.2)

        while writes.read() == 0 or writes.counts["create", "pods"] < scenario.pods:
            pause()
        cpu_created, after = cpu_seconds(process), here.server_cpu()
        known, since = 0, time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS or not _all_started(here, scenario):
            if (now := writes.read()) != known:
                known, since = now, time.monotonic()
            pause()
        _check(writes, scenario)
        return Trial(
            seconds=writes.creation_seconds,
            pods=scenario.pods,
            cpu=cpu_seconds(process),
            cpu_created=cpu_created,
            server_cpu=after - before,
            writes=writes.counts,
            refused=writes.refused,
            rss=process.memory_info().rss,
            rss_peak=gauge(operator.get("/metrics"), "ddpjob_memory_peak_bytes"),
        )


def _check(writes: Writes, scenario: Scenario) -> None:
    """A figure for something else than what was asked for must not get out."""
    if len(writes.pods_created) != scenario.pods or writes.refused:
        raise RuntimeError(
            f"{len(writes.pods_created)} pods created of {scenario.pods}; "
            f"refused: {dict(writes.refused)}"
        )


def _all_started(here: Stage, scenario: Scenario) -> bool:
    """Whether the operator says of every job what is so: all nodes run, or all are pending."""
    found = here.server.request("GET", f"/apis/{names.API_VERSION}/{names.PLURAL}")["items"]
    counter = "running" if scenario.played else "pending"
    return all(
        job.get("status", {}).get("nodes", {}).get(counter) == scenario.nnodes for job in found
    )
