"""The operator starts beside many jobs that run, some of which have failed while it was away."""

import time

from benchmarks.report import MIB
from benchmarks.scale.failing import Storm, begin, follow
from benchmarks.scale.result import Promise, Result
from benchmarks.stage import cpu_seconds, played_stage, process_of, wait

JOBS = 1000
MOST_SECONDS = 10.0
SPACES = ("bench-0", "bench-1", "bench-2", "bench-3")


def measure(share: float) -> Result:
    """Kill it, have one job in a hundred fail (one at least), start it."""
    jobs = round(JOBS * share)
    with played_stage(spaces=SPACES) as (here, played, seen), here.operator() as operator:
        begin(here, seen, operator, jobs, "InPlace", SPACES)
        operator.kill()
        failed = played.fail(max(1, jobs // 100))
        since = time.time()
        operator.start()
        operator.wait_until_ready(120)
        ready = time.time() - since

        def answered() -> dict[str, float]:
            return seen.first(lambda found: found.time > since and found.job in failed)

        wait(operator, lambda: len(answered()) == len(failed), "not all failures are answered")
        correct = max(answered().values()) - since
        cpu = cpu_seconds(process_of(operator))
        here.settle(operator)
        rss = process_of(operator).memory_info().rss
        found = follow(here, failed, answered(), since, cpu)
        return judge(jobs, ready, correct, found, rss)


def judge(jobs: int, ready: float, correct: float, found: Storm, rss: int) -> Result:
    """The promises, and the figures."""
    return Result(
        f"A start beside {jobs:,} jobs × 8 pods that run",
        f"The operator is killed, one rank of {len(found.failed)} jobs fails in place, and another "
        "operator is started. Its decisions are correct once all of these failures are answered: "
        "for that it has to have all jobs and pods, and to have asked the agents of all jobs.",
        [
            Promise(
                f"correct for all within {MOST_SECONDS:.0f} s from the start of the process",
                f"{correct:.1f} s",
                correct <= MOST_SECONDS,
            ),
            Promise(
                "nothing is written for a job to which nothing has happened",
                f"{len(found.others)} writes",
                not found.others,
            ),
        ],
        [
            ("seconds until the caches are full", f"{ready:.1f}"),
            ("CPU until then and until all is correct, s", f"{found.cpu:.1f}"),
            ("RSS of the operator, MiB", f"{rss / MIB:.0f}"),
        ],
    )
