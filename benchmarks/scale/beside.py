"""Small jobs beside a large one that fails again and again."""

import time

from benchmarks.jobwatch import JobWatch
from benchmarks.player import FLAPPING
from benchmarks.scale.failing import policy
from benchmarks.scale.result import Promise, Result, percentile
from benchmarks.scale.storm import spread
from benchmarks.stage import Stage, played_stage, wait
from tests.cluster.operator import OperatorProcess

JOBS, WIDE = 100, 1000
NNODES = 2
EVERY_SECONDS = 0.2
MOST_TIMES = 2.0


def measure(share: float) -> Result:
    """Small jobs one after the other: alone, then beside the large one."""
    jobs, wide = round(JOBS * share), round(WIDE * share)
    with played_stage() as (here, _, seen), here.operator() as operator:
        operator.wait_until_ready()
        _latencies(here, seen, operator, 5, "first")  # so that all code has run once
        alone = _latencies(here, seen, operator, jobs, "alone")
        here.create_jobs({FLAPPING: {"nnodes": wide, **policy("Recreate")}})
        flaps = f"bench-0/{FLAPPING}"
        wait(operator, lambda: seen.jobs[flaps].get("attempt", 0) > 0, "the wide job does not fail")
        before = seen.jobs[flaps]["attempt"]
        beside = _latencies(here, seen, operator, jobs, "beside")
        return judge(wide, alone, beside, seen.jobs[flaps]["attempt"] - before)


def _latencies(
    here: Stage, seen: JobWatch, operator: OperatorProcess, jobs: int, prefix: str
) -> list[float]:
    """Seconds from each job's creation until it runs."""
    created: dict[str, float] = {}
    for number in range(jobs):
        created[f"bench-0/{prefix}-{number}"] = time.time()
        here.create_jobs({f"{prefix}-{number}": {"nnodes": NNODES}})
        time.sleep(EVERY_SECONDS)

    def running() -> dict[str, float]:
        return seen.first(lambda found: found.job in created and found.state == "Running")

    wait(operator, lambda: len(running()) == jobs, "not all small jobs run")
    return [at - created[job] for job, at in running().items()]


def judge(wide: int, alone: list[float], beside: list[float], restarts: int) -> Result:
    """The promise, and the figures."""
    times = percentile(beside, 0.99) / percentile(alone, 0.99)
    return Result(
        f"{len(alone)} small jobs beside a flapping one of {wide:,} pods",
        f"Jobs of {NNODES} pods are created one after the other, {EVERY_SECONDS} s apart, first "
        "alone and then beside a job whose rank 0 fails 2 s after it has started, and that gets "
        "all its pods anew each time, without a pause.",
        [
            Promise(
                f"p99 from creation to Running at most {MOST_TIMES:.0f} × that without it",
                f"{times:.2f} ×",
                times <= MOST_TIMES,
            )
        ],
        [
            ("alone: seconds, median and p99", spread(alone)),
            ("beside: seconds, median and p99", spread(beside)),
            ("restarts of the flapping job meanwhile", f"{restarts}"),
        ],
    )
