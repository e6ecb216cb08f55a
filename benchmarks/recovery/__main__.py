"""`python -m benchmarks.recovery`: seconds until the ranks train again; docs/recovery.md.

Jobs of two pods on the two nodes of a kind cluster meet one fault after the other. A silent node
meets a job of its own. The figures of series that were not measured now stay as they were.
Exit codes: 0 measured, 1 slower than promised or an error.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from benchmarks.recovery import page, runs
from benchmarks.recovery.runs import Run
from benchmarks.recovery.series import SERIES, Series
from ddptrain.compare.machine import count_cores, count_gpus, examine
from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT
from tests.e2e import silence
from tests.e2e.install import SYSTEM, install
from tests.e2e.recovery import Fault, Recovery, recover, steady_job

OPERATOR_IMAGE, FOREIGN_IMAGE = "ddpjob/operator:0.1.0", "ddpjob-test/foreign:0.1.0"
NAMESPACE = "ddpjob-recovery"
# Of faults that end processes alone, and of the others, which take longer.
ROUNDS, POD_ROUNDS = 10, 3
SETTLE_SECONDS = 5.0  # until the nodes of a new job have heard each other


def measure(
    cluster: KindCluster, image: str, series: Series, rounds: int, pod_rounds: int
) -> Iterator[tuple[Fault, Recovery]]:
    """All faults of a series in turn, those without new pods `rounds` times."""
    install(cluster, SYSTEM, *(silence.ON_CONTROL_PLANE if series.of_nodes else ()))
    times = {f: rounds if series.is_in_place(f) else pod_rounds for f in series.faults}
    turns = [[f for f in series.faults if turn < times[f]] for turn in range(max(times.values()))]
    groups = [[fault] for turn in turns for fault in turn] if series.of_nodes else [sum(turns, [])]
    for faults in groups:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        cluster.kubectl("delete", "pv", "-l", f"ddpjob-test={NAMESPACE}")  # bound to what is gone
        cluster.create_namespace(NAMESPACE)
        with steady_job(cluster, NAMESPACE, image, series.strategy, **series.job) as job:
            time.sleep(SETTLE_SECONDS)
            for fault in faults:
                found = recover(job, fault, without_operator=series.without_operator)
                print(f"{series.title}: {fault.name}: {found}", file=sys.stderr)
                yield fault, found


def missed(name: str, found: Sequence[Run]) -> list[str]:
    """What took longer than promised."""
    promised = {fault.name: SERIES[name].promised(fault) for fault in SERIES[name].faults}
    return [
        f"missed: {name}: {row.fault}: {row.step.median:.2f} s of {promised[row.fault]:.1f} s"
        for row in runs.rows(found)
        if row.step.median > promised[row.fault]
    ]


def main() -> int:
    """Measure, print or write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    where = f"{runs.FILE.relative_to(ROOT)}, and {page.PAGE.relative_to(ROOT)} from it"
    parser.add_argument("--write", action="store_true", help=f"write {where}")
    parser.add_argument("--only", nargs="+", choices=SERIES, default=[*SERIES], metavar="SERIES")
    words = f"times of each fault that is answered in place ({ROUNDS})"
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=words)
    words = f"times of each other fault ({POD_ROUNDS})"
    parser.add_argument("--pod-rounds", type=int, default=POD_ROUNDS, help=words)
    parser.add_argument("--keep-cluster", action="store_true", help="use and leave the kept one")
    options = parser.parse_args()
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    seen = examine(count_cores(), count_gpus())
    machine = f"{seen.hardware}; {seen.versions}"
    every = runs.read() if runs.FILE.exists() else {}
    slow = []
    with KindCluster(keep=options.keep_cluster) as cluster:
        cluster.load_image(OPERATOR_IMAGE)
        image = cluster.load_image(FOREIGN_IMAGE)
        for name in options.only:
            times = options.rounds, options.pod_rounds
            every[name] = [
                Run(
                    name,
                    date,
                    machine,
                    fault.name,
                    fault.reason,
                    one.decided,
                    one.running,
                    one.step,
                )
                for fault, one in measure(cluster, image, SERIES[name], *times)
            ]
            slow += missed(name, every[name])
            if options.write:  # at once: the next series takes its time, and may fail
                runs.FILE.write_text(
                    runs.text({name: every[name] for name in SERIES if name in every})
                )
    if options.write:
        page.main()
    else:
        print(page.page(every))
    print(*slow, sep="\n", file=sys.stderr)
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
