"""`python -m benchmarks.recovery`: seconds until the ranks train again; docs/recovery.md.

Jobs of two pods on the two nodes of a kind cluster meet one fault after the other. A silent node
meets a job of its own, and so does each fault of a PyTorchJob. The figures of series that were not
measured now stay as they were.
Exit codes: 0 measured, 1 slower than promised or an error.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

from benchmarks.recovery import page, peer, runs
from benchmarks.recovery.measure import measure
from benchmarks.recovery.runs import Run
from benchmarks.recovery.series import PEERS, SERIES, Place
from ddptrain.compare.machine import count_cores, count_gpus, examine
from tests.cluster.kind import KindCluster
from tests.cluster.tiers import ROOT

OPERATOR_IMAGE, FOREIGN_IMAGE = "ddpjob/operator:0.1.0", "ddpjob-test/foreign:0.1.0"
# Of faults that end processes alone, and of the others, which take longer.
ROUNDS, POD_ROUNDS = 10, 3


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
    words = f"times of each fault that is answered in place, else of the first ({ROUNDS})"
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=words)
    words = f"times of each other fault ({POD_ROUNDS})"
    parser.add_argument("--pod-rounds", type=int, default=POD_ROUNDS, help=words)
    words = "measure faults with these words in their names alone; the runs of others stay"
    parser.add_argument("--faults", nargs="+", default=[""], metavar="WORDS", help=words)
    options = parser.parse_args()
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    seen = examine(count_cores(), count_gpus())
    machine = f"{seen.hardware}; {seen.versions}"
    every = runs.read() if runs.FILE.exists() else {}
    slow = []
    places = {SERIES[name].place for name in options.only}
    with ExitStack() as stack:
        cluster = None
        if places - {Place.LOCAL}:
            cluster = stack.enter_context(KindCluster())
            for image in (OPERATOR_IMAGE, FOREIGN_IMAGE, *([peer.IMAGE] if places & PEERS else [])):
                cluster.load_image(image)
        for name in options.only:
            times = options.rounds, options.pod_rounds
            names = [fault.name for fault in SERIES[name].faults]
            faults = [f for f in SERIES[name].faults if any(w in f.name for w in options.faults)]
            series = replace(SERIES[name], faults=faults)
            found = [
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
                for fault, one in measure(cluster, FOREIGN_IMAGE, series, *times)
            ]
            slow += missed(name, found)
            measured = {run.fault for run in found}
            kept = [run for run in every.get(name, ()) if run.fault not in measured]
            every[name] = sorted([*kept, *found], key=lambda run: names.index(run.fault))
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
