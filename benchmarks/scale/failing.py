"""Jobs that all run, and one rank of some of them that fails at once."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.jobwatch import JobWatch, Seen
from benchmarks.player import Played
from benchmarks.stage import Stage, cpu_seconds, numbered, process_of, wait
from benchmarks.writes import Write
from tests.cluster.operator import OperatorProcess

NNODES = 8
STATUS = ("update", "ddpjobs/status")


@dataclass(frozen=True)
class Storm:
    """What became of the jobs that failed."""

    failed: Mapping[str, float]
    """When each job failed, by `namespace/name`; Unix time, as all here."""
    running: Mapping[str, float]
    """When each ran again."""
    writes: Mapping[str, list[Write]]
    """The operator's, from the failure until all was quiet again; Events are left out."""
    others: list[Write]
    """Its writes for jobs that have not failed."""
    cpu: float
    """CPU seconds of the operator until all ran again."""

    @property
    def seconds(self) -> float:
        """From the first failure until all run again."""
        return max(self.running.values()) - min(self.failed.values())

    @property
    def decided(self) -> list[float]:
        """Seconds from each failure to the status that answers it."""
        return [
            min(w.time for w in self.writes[job] if w.is_of(*STATUS)) - at
            for job, at in self.failed.items()
        ]

    @property
    def status_writes(self) -> list[int]:
        """How many each job got."""
        return [sum(w.is_of(*STATUS) for w in writes) for writes in self.writes.values()]

    @property
    def writes_each(self) -> float:
        """Writes of all kinds for each job."""
        return sum(map(len, self.writes.values())) / len(self.writes)


def policy(strategy: str) -> dict[str, Any]:
    """The part of a job that says how it restarts: without a pause, which would be measured."""
    pause = {"first": 0, "cap": 360}
    own = {"restartStrategy": strategy, "backoffSeconds": pause, "maxRestarts": 1000}
    return {"failurePolicy": own}


def all_run(here: Stage, seen: JobWatch, operator: OperatorProcess, jobs: int) -> None:
    """Wait until they do, and until the operator is quiet."""
    wait(operator, lambda: _running(seen) == jobs, "not all jobs run")
    here.settle(operator)


def begin(
    here: Stage,
    seen: JobWatch,
    operator: OperatorProcess,
    jobs: int,
    strategy: str,
    spaces: tuple[str, ...] = ("bench-0",),
) -> None:
    """Create jobs, and wait until all of them run."""
    here.create_jobs(numbered(jobs, nnodes=NNODES, **policy(strategy)), spaces)
    all_run(here, seen, operator, jobs)


def storm(
    here: Stage, played: Played, seen: JobWatch, operator: OperatorProcess, jobs: int
) -> Storm:
    """Fail rank 1 of so many jobs, and follow them until they run again."""
    process = process_of(operator)
    cpu, since = cpu_seconds(process), time.time()
    failed = played.fail(jobs)

    def again(found: Seen) -> bool:
        return found.time > since and found.state == "Running" and found.job in failed

    wait(operator, lambda: len(seen.first(again)) == jobs, "not all run again")
    cpu = cpu_seconds(process) - cpu
    here.settle(operator)
    return follow(here, failed, seen.first(again), since, cpu)


def follow(
    here: Stage, failed: Mapping[str, float], running: Mapping[str, float], since: float, cpu: float
) -> Storm:
    """The same, of what has been seen and written since then."""
    names = {job.partition("/")[2]: job for job in failed}
    writes: dict[str, list[Write]] = {job: [] for job in failed}
    others: list[Write] = []
    for write in here.writes.between(since, time.time()):
        job = names.get(job_of(write))
        (writes[job] if job else others).append(write)
    return Storm(failed, running, writes, others, cpu)


def job_of(write: Write) -> str:
    """The job's name; a pod's has the attempt and the rank behind it."""
    return write.name.rsplit("-", 2)[0] if write.resource == "pods" else write.name


def _running(seen: JobWatch) -> int:
    return seen.count(lambda status: status.get("state") == "Running")
