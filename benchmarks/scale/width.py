"""One wide job against one that is five times as wide."""

from benchmarks.scale.result import Promise, Result
from benchmarks.stage import played_stage, wait

NARROW, WIDE = 1000, 5000
MOST_TIMES = 6.0


def measure(share: float) -> Result:
    """Seconds from creation until all run, each on a control plane of its own."""
    narrow, wide = round(NARROW * share), round(WIDE * share)
    return judge(narrow, wide, _seconds(narrow), _seconds(wide))


def _seconds(nnodes: int) -> float:
    with played_stage() as (here, _, seen), here.operator() as operator:
        operator.wait_until_ready()
        here.create_jobs({"job-0": {"nnodes": nnodes}})

        def running() -> dict[str, float]:
            return seen.first(lambda found: found.state == "Running")

        wait(operator, lambda: bool(running()), f"the job of {nnodes} pods does not run")
        (created,) = seen.first(lambda found: True).values()
        return next(iter(running().values())) - created


def judge(narrow: int, wide: int, of_narrow: float, of_wide: float) -> Result:
    """The promise, and the figures."""
    times = of_wide / of_narrow
    return Result(
        f"1 job × {wide:,} pods against 1 × {narrow:,}",
        "From the job's creation until its status says that all nodes run.",
        [
            Promise(
                f"five times as many pods take at most {MOST_TIMES:.0f} × as long",
                f"{times:.2f} ×",
                times <= MOST_TIMES,
            )
        ],
        [
            (f"{narrow:,} pods: seconds", f"{of_narrow:.1f}"),
            (f"{wide:,} pods: seconds", f"{of_wide:.1f}"),
        ],
    )
