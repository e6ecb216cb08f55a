"""Faults that befall `ddpjob run --local`, and how long it takes until its ranks train again."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import yaml

from ddpjob import names
from ddpjob.local.volumes import LOGS
from tests.e2e import recovery
from tests.e2e.install import wait_until
from tests.e2e.project import Project, developing
from tests.e2e.recovery import HANG_SECONDS, SCRIPT, SOON, Fault, Recovery, first_steps
from tests.terminal import environment

NAME, NODES = "steady", 2
SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class LocalJob:
    """A job that trains as processes of this machine."""

    command: psutil.Process
    folder: Path

    def ranks(self) -> list[psutil.Process]:
        """The training processes, the eldest first."""
        found = []
        for process in self.command.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.cmdline()[1:] == ["-u", str(SCRIPT)]:
                    found.append(process)
        return sorted(found, key=psutil.Process.create_time)

    def stepped_at(self, attempt: int, since: float) -> float | None:
        """When all ranks had made a first step after a Unix time; None if they have not."""
        logs = [self.folder / f"{NAME}-{attempt}-{node}.log" for node in range(NODES)]
        if not all(log.exists() for log in logs):
            return None
        found = [at for log in logs for at in first_steps(log.read_text(), since)]
        return max(found) if len(found) == NODES else None


def kill(job: LocalJob) -> None:
    """SIGKILL for a rank."""
    job.ranks()[-1].kill()


def stop(job: LocalJob) -> None:
    """SIGSTOP for one."""
    job.ranks()[-1].suspend()


def ask_to_raise(job: LocalJob) -> None:
    """Whichever rank sees it first."""
    (job.folder / "raise").touch()


HAPPENS: dict[str, Callable[[LocalJob], None]] = {
    "a rank is killed": kill,
    "a rank is stopped": stop,
    "a rank raises an exception": ask_to_raise,
}
FAULTS = [fault for fault in recovery.FAULTS if fault.name in HAPPENS]


@contextmanager
def local_job(strategy: str) -> Iterator[LocalJob]:
    """A job of two nodes that trains until the block ends."""
    with TemporaryDirectory() as name:
        folder, logs = Path(name), Path(name) / NAME / LOGS
        spec = {
            "nnodes": NODES,
            "image": "none",
            "args": [str(SCRIPT)],
            "env": [{"name": "REQUESTS", "value": str(logs)}],
            "hangTimeoutSeconds": HANG_SECONDS,
            "failurePolicy": {
                "maxRestarts": 1000,
                "backoffSeconds": {"first": 1, "cap": 1},
                "restartStrategy": strategy,
            },
        }
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": spec}
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump({**body, "metadata": {"name": NAME}}))
        command = [str(Path(sys.executable).with_name("ddpjob")), "run", "--local", "--quiet"]
        command += ["--directory", name, "--grace", "0", str(file)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
            try:
                job = LocalJob(psutil.Process(run.pid), logs)
                wait_until(lambda: job.stepped_at(0, 0), SOON, "first step")
                time.sleep(SETTLE_SECONDS)
                yield job
            finally:
                run.terminate()
                run.wait(60)


def saves(size: int, faults: Sequence[Fault]) -> Iterator[tuple[Fault, Recovery]]:
    """One file that is saved so often, in a folder of so many bytes."""
    with TemporaryDirectory() as name:
        project, jobs = Project(Path(name) / "project", size), Path(name) / "jobs"
        words = ("--local", "--directory", str(jobs), "--grace", "0")
        with developing(project.folder, *words, env=environment(), name=NAME) as running:
            job = LocalJob(psutil.Process(running.process.pid), jobs / NAME / LOGS)
            for number, fault in enumerate(faults, 1):
                time.sleep(SETTLE_SECONDS)
                began = project.save(number)
                at = wait_until(partial(job.stepped_at, 0, began), SOON, "step")
                yield fault, Recovery(None, None, at - began)
            running.interrupt()
            running.end()


def recoveries(strategy: str, faults: Sequence[Fault]) -> Iterator[tuple[Fault, Recovery]]:
    """One job that meets all these faults, one after the other."""
    with local_job(strategy) as job:
        attempt = 0
        for fault in faults:
            attempt += not (fault.in_place and strategy == "InPlace")
            began = time.time()
            HAPPENS[fault.name](job)

            def stepped(attempt: int = attempt, began: float = began) -> float | None:
                return job.stepped_at(attempt, began)

            at = wait_until(stepped, fault.most_seconds, f"step after: {fault.name}")
            yield fault, Recovery(None, None, at - began)
            time.sleep(SETTLE_SECONDS)
