"""Many jobs that arrive at once at a live cluster: scheduler and garbage collector run."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.scale.result import Promise, Result
from benchmarks.stage import Stage, halted, numbered, played_stage, wait
from tests.cluster import operator as operators
from tests.cluster.operator import OperatorProcess
from tests.cluster.tiers import ROOT

NNODES = 8
OLD, NEW = "old", "new"
LEAST, LEAST_BESIDE = 0.7, 0.5
CREATED = ("create", "pods")


def burst(jobs: int, *, operator: bool, beside: bool) -> float:
    """Pods per second of one side, from its first write for the new jobs to the last pod.

    `beside`: while a namespace with as many jobs, which run, is being deleted.
    """
    with played_stage(scheduler=True, spaces=(OLD, NEW)) as (here, _, seen), here.operator() as ours:
        if beside:
            here.create_jobs(numbered(jobs, "old"), (OLD,))
            wait(
                ours,
                lambda: seen.count(lambda status: status.get("state") == "Running") == jobs,
                "the earlier jobs do not run",
            )
            here.settle(ours)
        else:
            ours.wait_until_ready()
        play = halted(ours) if operator else _bare(here, ours, jobs)
        with play:
            if operator:
                here.create_jobs(numbered(jobs), (NEW,))
            if beside:
                here.server.request("DELETE", f"/api/v1/namespaces/{OLD}")
        return _rate(here, ours if operator else None, jobs * NNODES)


@contextmanager
def _bare(here: Stage, ours: OperatorProcess, jobs: int) -> Iterator[None]:
    """The bare client, which begins when the block ends; the operator has ended before."""
    ours.kill()
    here.create_jobs(numbered(jobs), (NEW,))
    token = here.server.service_account_token(*operators.ACCOUNT)
    config = here.server.write_kubeconfig(here.folder / "bare", token=token)
    command = [sys.executable, "-m", "benchmarks.bare", str(config), "--namespace", NEW]
    command += ["--pods-alone", "--wait"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the bare client did not start")
            yield
            out, _ = process.communicate("go\n", timeout=600)
            json.loads(out)
        finally:
            process.kill()


def _rate(here: Stage, ours: OperatorProcess | None, pods: int) -> float:
    deadline = time.monotonic() + 600
    while True:
        here.writes.read()
        new = [write for write in here.writes.log if write.namespace == NEW]
        created = [write.time for write in new if write.is_of(*CREATED)]
        if len(created) >= pods:
            return pods / (max(created) - min(write.time for write in new))
        if time.monotonic() > deadline:
            tail = ours.log.read_text()[-3000:] if ours else ""
            raise TimeoutError(f"{len(created)} of {pods} pods\n{tail}")
        time.sleep(0.1)


if __name__ == "__main__":
    beside, side = sys.argv[2] == "beside", sys.argv[1] == "operator"
    print(burst(int(sys.argv[3]), operator=side, beside=beside))
