"""Many jobs that arrive at once at a live cluster: scheduler and garbage collector run."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks import report
from benchmarks.jobwatch import JobWatch
from benchmarks.player import playing
from benchmarks.scale.failing import NNODES, all_run
from benchmarks.scale.result import Promise, Result
from benchmarks.stage import WAIT_SECONDS, Stage, halted, numbered, stage
from tests.cluster import operator as operators
from tests.cluster.operator import OperatorProcess
from tests.cluster.tiers import ROOT

JOBS, ROUNDS = 100, 3
OLD, NEW = "old", "new"
LEAST, LEAST_BESIDE = 0.7, 0.5


@dataclass(frozen=True)
class Side:
    """Who creates the pods: the bare client with these options, or else the operator."""

    words: str
    options: tuple[str, ...] | None = None


OURS = Side("operator")
PODS_ALONE = Side("bare client, pods alone", ("--pods-alone",))
ALL = Side("bare client, the same requests", ())


def measure(share: float) -> Result:
    """All sides in turn, so many times; a ratio is that of neighbours."""
    jobs, rounds = round(JOBS * share), ROUNDS if share == 1 else 1
    rates = {beside: _rates(jobs, rounds, beside=beside) for beside in (False, True)}
    return judge(jobs, rates[False], rates[True])


def _rates(jobs: int, rounds: int, *, beside: bool) -> dict[Side, list[float]]:
    rates: dict[Side, list[float]] = {PODS_ALONE: [], OURS: [], ALL: []}
    for _ in range(rounds):
        for side, found in rates.items():
            found.append(burst(jobs, side, beside=beside))
    return rates


def judge(jobs: int, alone: dict[Side, list[float]], beside: dict[Side, list[float]]) -> Result:
    """The promises, and the rates."""
    cases = (("", LEAST, alone), (" while as many jobs are being deleted", LEAST_BESIDE, beside))
    return Result(
        f"{jobs} jobs × {NNODES} pods arrive at once",
        "kube-scheduler binds the pods, the garbage collector and all other controllers run. The "
        "operator is halted while the jobs are posted, so that they come to it in one moment. The "
        "rate is that of pods from a side's first write to the last pod. The bare client posts "
        "the pods and nothing else, or all that the operator has to post before them.",
        [
            Promise(
                f"pods/s{words}: {least} of the bare client's, pods alone",
                f"{_ratio(rates, PODS_ALONE):.2f}",
                _ratio(rates, PODS_ALONE) >= least,
            )
            for words, least, rates in cases
        ],
        [
            (f"{side.words}{words}, pods/s", report.spread(found, "{:.0f}"))
            for words, _, rates in cases
            for side, found in rates.items()
        ]
        + [
            (f"ratio to the same requests{words}", f"{_ratio(rates, ALL):.2f}")
            for words, _, rates in cases
        ],
    )


def _ratio(rates: dict[Side, list[float]], of: Side) -> float:
    return median(ours / bare for ours, bare in zip(rates[OURS], rates[of], strict=True))


def burst(jobs: int, side: Side, *, beside: bool) -> float:
    """Pods per second of one side, from its first write for the new jobs to the last pod.

    `beside`: while a namespace with as many jobs, which run, is being deleted.
    """
    with (
        stage(scheduler=True, spaces=(OLD, NEW)) as here,
        playing(here.server, bind=False),
        here.operator() as ours,
    ):
        ours.wait_until_ready()
        if beside:
            here.create_jobs(numbered(jobs, "old", nnodes=NNODES), (OLD,))
            with JobWatch(here.server) as seen:
                all_run(here, seen, ours, jobs)
        with halted(ours) if side is OURS else _bare(here, ours, jobs, side):
            if side is OURS:
                here.create_jobs(numbered(jobs, nnodes=NNODES), (NEW,))
            if beside:
                here.server.request("DELETE", f"/api/v1/namespaces/{OLD}")
        return _rate(here, ours if side is OURS else None, jobs * NNODES)


@contextmanager
def _bare(here: Stage, ours: OperatorProcess, jobs: int, side: Side) -> Iterator[None]:
    """The bare client, which begins when the block ends; the operator has ended before."""
    ours.kill()
    here.create_jobs(numbered(jobs, nnodes=NNODES), (NEW,))
    token = here.server.service_account_token(*operators.ACCOUNT)
    config = here.server.write_kubeconfig(here.folder / "bare", token=token)
    command = [sys.executable, "-m", "benchmarks.bare", str(config), "--namespace", NEW, "--wait"]
    command += side.options or ()
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the bare client did not start")
            yield
            process.communicate("go\n", timeout=WAIT_SECONDS)
            if process.returncode != 0:
                raise RuntimeError("the bare client failed")
        finally:
            process.kill()


def _rate(here: Stage, ours: OperatorProcess | None, pods: int) -> float:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        here.writes.read()
        new = [write for write in here.writes.log if write.namespace == NEW]
        created = [write.time for write in new if write.is_of("create", "pods")]
        if len(created) >= pods:
            return pods / (max(created) - min(write.time for write in new))
        if time.monotonic() > deadline:
            tail = ours.log.read_text()[-3000:] if ours else ""
            raise TimeoutError(f"{len(created)} of {pods} pods\n{tail}")
        time.sleep(0.1)
