"""A control plane for one measurement: jobs, played pods, the operator, and what it writes."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jobwatch import JobWatch
from benchmarks.player import Played, playing
from benchmarks.writes import Writes, write_policy
from ddpjob import names
from tests.cluster import operator as operators
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.operator import OperatorProcess
from tests.cluster.tiers import ROOT

WAIT_SECONDS = 900.0
QUIET_SECONDS = 3.0  # no write of the operator for so long: longer than its own pauses
SERVER = ("etcd", "kube-apiserver")


@dataclass
class Stage:
    """What one measurement works on."""

    server: ApiServer
    folder: Path
    writes: Writes

    def operator(self, url: str = "") -> OperatorProcess:
        """The operator as a process of its own, not yet started; `url`: of a proxy."""
        return OperatorProcess(self.server, self.folder, url=url)

    def create_namespaces(self, spaces: Iterable[str]) -> None:
        """In which pods can be created."""
        for space in spaces:
            self.server.create_namespace(space)

    def create_jobs(
        self, jobs: Mapping[str, Mapping[str, Any]], spaces: tuple[str, ...] = ("bench-0",)
    ) -> float:
        """Post jobs, specs by their names, one after the other in each namespace; the seconds."""

        async def post() -> None:
            async with Client(self.server) as client:
                posts = (
                    client.request("POST", jobs_path(spaces[n % len(spaces)]), job(name, **spec))
                    for n, (name, spec) in enumerate(jobs.items())
                )
                await asyncio.gather(*posts)

        begin = time.monotonic()
        asyncio.run(post())
        return time.monotonic() - begin

    def server_cpu(self, components: Iterable[str] = SERVER) -> float:
        """CPU seconds so far of API server and etcd, or of these components."""
        pids = (self.server.components[name].pid for name in components)
        return sum(cpu_seconds(psutil.Process(pid)) for pid in pids)

    def settle(self, operator: OperatorProcess, seconds: float = QUIET_SECONDS) -> None:
        """Wait until the operator has written nothing for so long."""
        known, since = self.writes.read(), time.monotonic()
        deadline = since + WAIT_SECONDS
        while time.monotonic() - since < seconds:
            check(operator, deadline, "the operator writes on")
            time.sleep(0.2)
            if (now := self.writes.read()) != known:
                known, since = now, time.monotonic()


@contextmanager
def stage(*, scheduler: bool = False, spaces: Iterable[str] = ("bench-0",)) -> Iterator[Stage]:
    """A fresh control plane, with the definition of DDPJob, and with the operator's rights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "audit.log"
        write_policy(folder / "policy.json", operators.USER)
        flags = (f"--audit-policy-file={folder}/policy.json", f"--audit-log-path={log}")
        with ApiServer(scheduler=scheduler, extra_arguments={"kube-apiserver": flags}) as server:
            operators.grant_rights(server)
            server.install_crd(ROOT / "charts" / "ddpjob" / "files" / "crd.yaml")
            _make_known(server)
            here = Stage(server, folder, Writes(log))
            here.create_namespaces(spaces)
            yield here


def _make_known(server: ApiServer) -> None:
    """Have the garbage collector watch DDPJobs, as in a cluster that has had them for a minute.

    It looks for new kinds every 30 s and when it starts. Until it finds one, it reads the owner of
    every object that an owner of this kind has got, again and again.
    """
    manager = server.components["kube-controller-manager"]
    manager.kill()
    manager.start()
    manager.wait_until(lambda: _watches(server) > 0, timeout_seconds=60)


def _watches(server: ApiServer) -> int:
    """How many watches of DDPJobs there are."""
    lines = str(server.request("GET", "/metrics")).splitlines()
    of_jobs = [line for line in lines if f'resource="{names.PLURAL}"' in line]
    name = "apiserver_longrunning_requests"
    return sum(int(line.split()[-1]) for line in of_jobs if line.startswith(name))


@contextmanager
def played_stage(
    *, scheduler: bool = False, spaces: Iterable[str] = ("bench-0",)
) -> Iterator[tuple[Stage, Played, JobWatch]]:
    """The same with pods that run, and a watch of the jobs."""
    with (
        stage(scheduler=scheduler, spaces=spaces) as here,
        playing(here.server, bind=not scheduler) as played,
        JobWatch(here.server) as jobs,
    ):
        yield here, played, jobs


def job(name: str, nnodes: int = 8, **spec: Any) -> dict[str, Any]:
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
            **spec,
        },
    }


def jobs_path(space: str) -> str:
    """The collection of a namespace's jobs."""
    return f"/apis/{names.API_VERSION}/namespaces/{space}/{names.PLURAL}"


def numbered(count: int, prefix: str = "job", **spec: Any) -> dict[str, dict[str, Any]]:
    """So many jobs that differ in their names."""
    return {f"{prefix}-{number}": spec for number in range(count)}


def process_of(operator: OperatorProcess) -> psutil.Process:
    """The operator's process."""
    assert operator.process is not None
    return psutil.Process(operator.process.pid)


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def gauge(text: str, name: str) -> int:
    """The value of a metric without labels."""
    return next(
        int(float(line.split()[1])) for line in text.splitlines() if line.startswith(name + " ")
    )


def check(operator: OperatorProcess, deadline: float, what: str) -> None:
    """Raise TimeoutError with the operator's log after the deadline, or if it has ended."""
    assert operator.process is not None
    if time.monotonic() > deadline or operator.process.poll() is not None:
        raise TimeoutError(f"{what}\n{operator.log.read_text()[-3000:]}")


def wait(operator: OperatorProcess, holds: Callable[[], bool], what: str) -> None:
    """Until it does. Raises TimeoutError with the operator's log."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        check(operator, deadline, what)
        time.sleep(0.05)


@contextmanager
def halted(operator: OperatorProcess) -> Iterator[None]:
    """The operator does nothing meanwhile, so that what happens comes to it all at once."""
    process = process_of(operator)
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
