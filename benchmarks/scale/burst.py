"""Many jobs that arrive at once at a live cluster: scheduler and garbage collector run."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks import report
from benchmarks.jobwatch import JobWatch
from benchmarks.player import playing
from benchmarks.scale.failing import NNODES, all_run
from benchmarks.scale.result import Promise, Result
from benchmarks.stage import (
    WAIT_SECONDS,
    Stage,
    cpu_seconds,
    halted,
    numbered,
    process_of,
    stage,
    wait,
)
from tests.cluster import operator as operators
from tests.cluster.operator import OperatorProcess
from tests.cluster.processes import RUN
from tests.cluster.tiers import ROOT

JOBS, ROUNDS = 100, 3
OLD, NEW = "old", "new"
LEAST, LEAST_BESIDE = 0.7, 0.5
QUIET_CPU = 0.2  # CPU seconds of API server and etcd in a second


@dataclass(frozen=True)
class Side:
    """Who creates the pods: the bare client with these options, or else the operator."""

    words: str
    options: tuple[str, ...] | None = None


OURS = Side("operator")
PODS_ALONE = Side("bare client, pods alone", ("--pods-alone",))
ALL = Side("bare client, the same requests", ())


@dataclass(frozen=True)
class Burst:
    """What one side has done."""

    rate: float
    """Pods per second, from its first write for the new jobs to the last pod."""
    cpu: float
    """CPU seconds of the whole control plane until the last pod."""
    own: float = 0.0
    """CPU seconds of the operator meanwhile."""


Bursts = Mapping[Side, Sequence[Burst]]


def measure(share: float) -> Result:
    """All sides in turn, so many times; a ratio is that of neighbours."""
    jobs, rounds = round(JOBS * share), ROUNDS if share == 1 else 1
    found = {beside: _bursts(jobs, rounds, beside=beside) for beside in (False, True)}
    return judge(jobs, found[False], found[True])


def _bursts(jobs: int, rounds: int, *, beside: bool) -> Bursts:
    bursts: dict[Side, list[Burst]] = {PODS_ALONE: [], OURS: [], ALL: []}
    for _ in range(rounds):
        for side, found in bursts.items():
            found.append(burst(jobs, side, beside=beside))
    return bursts


def judge(jobs: int, alone: Bursts, beside: Bursts) -> Result:
    """The promises, and the figures."""
    cases = (("", LEAST, alone), (", earlier jobs being deleted", LEAST_BESIDE, beside))
    return Result(
        f"{jobs} jobs × {NNODES} pods arrive at once",
        _WORDS,
        [
            Promise(
                f"operator{words}: {least} of the bare client's pods/s, pods alone",
                f"{_ratio(bursts, OURS, PODS_ALONE):.2f}",
                _ratio(bursts, OURS, PODS_ALONE) >= least,
            )
            for words, least, bursts in cases
        ],
        [figure for words, _, bursts in cases for figure in _figures(words, bursts)],
    )


def _figures(words: str, bursts: Bursts) -> Iterator[tuple[str, str]]:
    for side, found in bursts.items():
        rates = report.spread([each.rate for each in found], "{:.0f}")
        cpu, own = median(each.cpu for each in found), median(each.own for each in found)
        text = f"{rates} pods/s, {cpu:.1f} s of the control plane's CPU"
        yield f"{side.words}{words}", text + (f", {own:.1f} of its own" if own else "")
    yield f"operator to the same requests{words}", f"{_ratio(bursts, OURS, ALL):.2f}"
    yield f"the same requests to pods alone{words}", f"{_ratio(bursts, ALL, PODS_ALONE):.2f}"


def _ratio(bursts: Bursts, side: Side, other: Side) -> float:
    pairs = zip(bursts[side], bursts[other], strict=True)
    return median(one.rate / two.rate for one, two in pairs)


_WORDS = """\
kube-scheduler binds the pods; the garbage collector and all other controllers run. The operator is
halted while the jobs are posted, so they come to it in one moment. A rate is that of pods, from a
side's first write for these jobs to their last pod. Also while the namespace of as many jobs, which
ran, is being deleted.

The bare client posts the pods alone, or all that the operator has to write before a job's last pod:
Service, NetworkPolicy, and the status that makes the job `Starting`. With these it
reaches what an operator could that costs nothing, since on few cores the control plane's work is
what takes the time. Two of these three cost it more than a pod: the status, which is checked
against the whole schema and its rules, and the Service, for which controllers make further
objects. Such a client does not pay for what the operator uses itself, and for the events of all
pods that the API server sends it."""


def burst(jobs: int, side: Side, *, beside: bool) -> Burst:
    """One side. `beside`: while a namespace with as many jobs, which run, is being deleted."""
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
        wait(ours, lambda: _is_at_rest(here), "the API server does not come to rest")
        with halted(ours) if side is OURS else _bare(here, ours, jobs, side):
            if side is OURS:
                here.create_jobs(numbered(jobs, nnodes=NNODES), (NEW,))
            if beside:
                here.server.request("DELETE", f"/api/v1/namespaces/{OLD}")
            cpu, own = here.server_cpu(here.server.components), _cpu(ours)
        rate = _rate(here, ours if side is OURS else None, jobs * NNODES)
        return Burst(rate, here.server_cpu(here.server.components) - cpu, _cpu(ours) - own)


def _is_at_rest(here: Stage) -> bool:
    """Whether the API server is, which works for seconds on what it says of a definition."""
    before = here.server_cpu()
    time.sleep(1.0)
    return here.server_cpu() - before <= QUIET_CPU


def _cpu(ours: OperatorProcess) -> float:
    """CPU seconds of the operator so far; none once it has ended."""
    is_there = ours.process is not None and ours.process.poll() is None
    return cpu_seconds(process_of(ours)) if is_there else 0.0


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
        command,
        cwd=ROOT,
        env={**os.environ, RUN: str(here.server.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
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
