"""Jobs that have finished and stay."""

import asyncio

from benchmarks.memory import finish, rest
from benchmarks.report import MIB
from benchmarks.scale.result import Result
from benchmarks.stage import gauge, process_of, stage
from tests.cluster.operator import OperatorProcess

JOBS = 10_000


def measure(share: float) -> Result:
    """The operator's memory without any job, and beside them."""
    jobs = round(JOBS * share)
    with stage() as here:
        with here.operator() as operator:
            empty = _rss(operator)
        asyncio.run(finish(here.server, jobs))
        with here.operator() as operator:
            full = _rss(operator)
            peak = gauge(operator.get("/metrics"), "ddpjob_memory_peak_bytes")
    return Result(
        f"{jobs:,} finished jobs",
        "The operator is started beside them, and has looked at each.",
        [],
        [
            ("RSS of the operator, MiB", f"{full / MIB:.0f}"),
            ("its peak, MiB", f"{peak / MIB:.0f}"),
            ("RSS without any job, MiB", f"{empty / MIB:.0f}"),
            ("for each job, KiB", f"{(full - empty) / jobs / 1024:.1f}"),
        ],
    )


def _rss(operator: OperatorProcess) -> int:
    operator.wait_until_ready(120)
    rest(operator)
    return int(process_of(operator).memory_info().rss)
