"""One trial: a fresh control plane, jobs, and one of the two sides to create their pods."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.writes import Writes, write_policy
from ddpjob import names
from tests.cluster import operator as operators
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.operator import OperatorProcess
from tests.cluster.tiers import ROOT

NODES = 20
QUIET_SECONDS = 3.0  # no write of the operator for so long: longer than its own pauses
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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = folder / "audit.log"
        write_policy(folder / "policy.json", operators.USER)
        flags = (f"--audit-policy-file={folder}/policy.json", f"--audit-log-path={log}")
        extra = {"kube-apiserver": flags}
        server = stack.enter_context(ApiServer(scheduler=False, extra_arguments=extra))
        operators.grant_rights(server)
        server.install_crd(ROOT / "charts" / "ddpjob" / "files" / "crd.yaml")
        asyncio.run(_create_jobs(server, scenario))
        if scenario.played:
            stack.enter_context(_kubelet(server))
        time.sleep(2)  # let the server finish what the preparations have started
        before = _server_cpu(server)
        play = _bare if side == BARE else _operate
        return play(server, scenario, Writes(log), before, folder, hook)


def _bare(
    server: ApiServer, scenario: Scenario, writes: Writes, before: float, folder: Path, _: Any
) -> Trial:
    token = server.service_account_token(*operators.ACCOUNT)
    config = server.write_kubeconfig(folder / "bare", token=token)
    command = [sys.executable, "-m", "benchmarks.bare", str(config)]
    ended = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=TRIAL_SECONDS
    )
    after = _server_cpu(server)
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


def _operate(
    server: ApiServer,
    scenario: Scenario,
    writes: Writes,
    before: float,
    folder: Path,
    hook: Hook | None,
) -> Trial:
    with OperatorProcess(server, folder) as operator:
        assert operator.process is not None
        process = psutil.Process(operator.process.pid)
        if hook:
            hook(process.pid)
        deadline = time.monotonic() + TRIAL_SECONDS

        def wait(seconds: float) -> None:
            if time.monotonic() > deadline or operator.process.poll() is not None:  # type: ignore[union-attr]
                tail = operator.log.read_text()[-3000:]
                raise TimeoutError(f"{len(writes.pods_created)} of {scenario.pods} pods\n{tail}")
            time.sleep(seconds)

        while writes.read() == 0 or len(writes.pods_created) < scenario.pods:
            wait(0.2)
        cpu_created, after = _cpu(process), _server_cpu(server)
        known, since = 0, time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS or not _all_started(server, scenario):
            if (now := writes.read()) != known:
                known, since = now, time.monotonic()
            wait(0.2)
        _check(writes, scenario)
        return Trial(
            seconds=writes.creation_seconds,
            pods=scenario.pods,
            cpu=_cpu(process),
            cpu_created=cpu_created,
            server_cpu=after - before,
            writes=writes.counts,
            refused=writes.refused,
            rss=process.memory_info().rss,
            rss_peak=_gauge(operator.get("/metrics"), "ddpjob_memory_peak_bytes"),
        )


def _check(writes: Writes, scenario: Scenario) -> None:
    """A figure for something else than what was asked for must not get out."""
    if len(writes.pods_created) != scenario.pods or writes.refused:
        raise RuntimeError(
            f"{len(writes.pods_created)} pods created of {scenario.pods}; "
            f"refused: {dict(writes.refused)}"
        )


async def _create_jobs(server: ApiServer, scenario: Scenario) -> None:
    spaces = [f"bench-{number}" for number in range(scenario.namespaces)]
    for space in spaces:
        await asyncio.to_thread(server.create_namespace, space)
    async with Client(server) as client:
        posts = (
            client.request(
                "POST",
                f"/apis/{names.API_VERSION}/namespaces/{spaces[n % len(spaces)]}/{names.PLURAL}",
                _job(f"job-{n}", scenario.nnodes),
            )
            for n in range(scenario.jobs)
        )
        await asyncio.gather(*posts)


def _job(name: str, nnodes: int) -> dict[str, Any]:
    """The job of the README with resources, as most have."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {
            "image": "ddpjob/trainer:0.1.0",
            "nnodes": nnodes,
            "args": ["-m", "ddptrain.native", "--epochs", "20"],
            "resources": {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1}},
        },
    }


@contextmanager
def _kubelet(server: ApiServer) -> Iterator[None]:
    """The scripted kubelet in a process of its own; it binds pods too, there is no scheduler."""
    command = [sys.executable, "-m", "tests.cluster.kubelet", str(server.kubeconfig)]
    command += ["--nodes", str(NODES), "--bind"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the scripted kubelet did not start")
            yield
        finally:
            process.kill()


def _all_started(server: ApiServer, scenario: Scenario) -> bool:
    """Whether the operator says of every job what is so: all nodes run, or all are pending."""
    found = server.request("GET", f"/apis/{names.API_VERSION}/{names.PLURAL}")["items"]
    counter = "running" if scenario.played else "pending"
    return all(
        job.get("status", {}).get("nodes", {}).get(counter) == scenario.nnodes for job in found
    )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _server_cpu(server: ApiServer) -> float:
    names = ("etcd", "kube-apiserver")
    return sum(_cpu(psutil.Process(server.components[name].pid)) for name in names)


def _gauge(text: str, name: str) -> int:
    """The value of a metric without labels."""
    return next(
        int(float(line.split()[1])) for line in text.splitlines() if line.startswith(name + " ")
    )
