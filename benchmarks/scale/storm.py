"""All jobs fail at once: with new pods, and in place."""

from collections import Counter
from statistics import median

from benchmarks.scale.failing import Storm, begin, storm
from benchmarks.scale.result import Promise, Result, percentile
from benchmarks.stage import played_stage

JOBS = 100
WRITES_IN_PLACE = 2
TEXT = "in place, a restart takes one status write to begin it and one when all run again"


def measure(share: float) -> Result:
    """Both kinds, one after the other, each on a control plane of its own."""
    jobs = round(JOBS * share)
    return judge(jobs, _storm(jobs, "Recreate"), _storm(jobs, "InPlace"))


def _storm(jobs: int, strategy: str) -> Storm:
    with played_stage() as (here, played, seen), here.operator() as operator:
        begin(here, seen, operator, jobs, strategy)
        return storm(here, played, seen, operator, jobs)


def judge(jobs: int, recreated: Storm, in_place: Storm) -> Result:
    """The promise, and the figures of both."""
    most = max(in_place.status_writes)
    figures = [
        figure
        for words, found in (("with new pods", recreated), ("in place", in_place))
        for figure in (
            (f"{words}: seconds until all run again", f"{found.seconds:.1f}"),
            (f"{words}: seconds until decided, median and p99", spread(found.decided)),
            (f"{words}: writes per restart", f"{found.writes_each:.2f}"),
            (f"{words}: status writes per restart", counts(found.status_writes)),
            (f"{words}: CPU of the operator, s", f"{found.cpu:.1f}"),
        )
    ]
    return Result(
        f"{jobs} jobs × 8 pods fail at once",
        "One rank of each fails in the same moment. With `restartStrategy: Recreate` its pod ends, "
        "and the group gets new pods, without a pause; in place, rank 0's agent reports it.",
        [Promise(TEXT, counts(in_place.status_writes), most <= WRITES_IN_PLACE)],
        figures,
    )


def spread(values: list[float]) -> str:
    """Median and 99th percentile."""
    return f"{median(values):.2f}, {percentile(values, 0.99):.2f}"


def counts(values: list[int]) -> str:
    """How many jobs had which number."""
    each = sorted(Counter(values).items())
    return ", ".join(f"{number} ({jobs} {'job' if jobs == 1 else 'jobs'})" for number, jobs in each)
