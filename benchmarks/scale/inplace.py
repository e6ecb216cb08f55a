"""Many jobs whose long polls are held: quiet, and when some of them fail at once."""

import time
from dataclasses import dataclass

from benchmarks.report import MIB
from benchmarks.scale.failing import Storm, begin, storm
from benchmarks.scale.result import Promise, Result
from benchmarks.scale.storm import counts, spread
from benchmarks.stage import cpu_seconds, played_stage, process_of

JOBS, FAILED = 1000, 100
MINUTE = 60.0
SPACES = ("bench-0", "bench-1", "bench-2", "bench-3")


@dataclass(frozen=True)
class Quiet:
    """The operator in a minute in which nothing happens."""

    rss: int
    cpu: float
    writes: int


def measure(share: float) -> Result:
    """A quiet minute (a shorter one with fewer jobs), then the failures."""
    jobs, fail = round(JOBS * share), round(FAILED * share)
    seconds = MINUTE if share == 1 else MINUTE / 4
    with played_stage(spaces=SPACES) as (here, played, seen), here.operator() as operator:
        begin(here, seen, operator, jobs, "InPlace", SPACES)
        process = process_of(operator)
        cpu, writes = cpu_seconds(process), here.writes.read()
        time.sleep(seconds)
        cpu = cpu_seconds(process) - cpu
        quiet = Quiet(process.memory_info().rss, cpu, here.writes.read() - writes)
        return judge(jobs, seconds, quiet, storm(here, played, seen, operator, fail))


def judge(jobs: int, seconds: float, quiet: Quiet, found: Storm) -> Result:
    """The promises, and the figures."""
    most = max(found.status_writes)
    text = "a failed rank costs one status write to begin the round and one when all run"
    return Result(
        f"{jobs:,} jobs × 8 pods in place, {len(found.failed)} fail at once",
        "Each job's rank 0 holds a request of the operator; the agents are played. First nothing "
        f"happens for {seconds:.0f} s, then one rank of {len(found.failed)} jobs fails.",
        [
            Promise("no write while nothing happens", f"{quiet.writes}", not quiet.writes),
            Promise(text, counts(found.status_writes), most <= 2 and not found.others),
        ],
        [
            ("RSS of the operator, MiB", f"{quiet.rss / MIB:.0f}"),
            (f"CPU of the operator in {seconds:.0f} quiet s, s", f"{quiet.cpu:.2f}"),
            ("seconds from the agent's report to the round in the status, median and p99",
             spread(found.decided)),
            ("seconds until all run again", f"{found.seconds:.1f}"),
            ("writes for jobs that have not failed", f"{len(found.others)}"),
        ],
    )  # fmt: skip
