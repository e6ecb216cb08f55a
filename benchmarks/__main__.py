"""`python -m benchmarks`: all scenarios, and docs/benchmarks.md from them.

Exit codes: 0 all promises of scale hold, 1 one does not or an error.
"""

import argparse
import os
import platform
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import version

import psutil

from benchmarks import page, report, trial
from benchmarks.report import Pair
from benchmarks.scale import __main__ as scale
from benchmarks.scale.result import sections
from benchmarks.trial import BARE, OPERATOR, Scenario
from tests.cluster.tiers import ROOT

FULL = (
    Scenario("1,000 jobs × 8 pods, played", jobs=1000, nnodes=8, namespaces=4),
    Scenario("1 job × 1,000 pods, played", jobs=1, nnodes=1000),
    Scenario("1,000 jobs × 8 pods, creation alone", 1000, 8, namespaces=4, played=False),
    Scenario("1 job × 1,000 pods, creation alone", 1, 1000, played=False),
)
QUICK = (
    Scenario("50 jobs × 8 pods, played", jobs=50, nnodes=8, namespaces=4),
    Scenario("1 job × 200 pods, played", jobs=1, nnodes=200),
)


def measure(scenario: Scenario, pairs: int) -> list[Pair]:
    """Pairs of trials, bare and operator in turn, each said as soon as it is known."""
    done: list[Pair] = []
    for number in range(pairs):
        pair = Pair(bare=trial.run(scenario, BARE), operator=trial.run(scenario, OPERATOR))
        done.append(pair)
        print(
            f"{scenario.name} {number + 1}/{pairs}: bare {pair.bare.rate:.0f} pods/s, "
            f"operator {pair.operator.rate:.0f} pods/s, ratio {pair.ratio:.2f}",
            flush=True,
        )
    return done


def machine() -> list[str]:
    """What the figures depend on, and nothing that names the machine."""
    memory = round(psutil.virtual_memory().total / 2**30)
    go_mod = (ROOT / "tests" / "cluster" / "kubernetes" / "go.mod").read_text()
    kubernetes = re.search(r"k8s\.io/kubernetes (v\S+)", go_mod)
    assert kubernetes
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "kopf"))
    return [
        f"{os.cpu_count()} cores ({platform.machine()}), {memory} GiB of memory, "
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"Kubernetes {kubernetes[1]}, Python {platform.python_version()}, {packages}",
    ]


def main() -> int:
    """Measure, print or write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of all, one pair, no page")
    parser.add_argument("--write", action="store_true", help="write the page, after --quick too")
    parser.add_argument("--pairs", type=int, help="pairs of trials per scenario (3; quick: 1)")
    options = parser.parse_args()
    pairs = options.pairs or (1 if options.quick else 3)
    scenarios = QUICK if options.quick else FULL
    results = {scenario: measure(scenario, pairs) for scenario in scenarios}
    text = report.page(
        results,
        machine=machine(),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command="make bench" if not options.quick else "python -m benchmarks --quick --write",
    )
    found = scale.measure(scale.SCENARIOS, scale.QUICK if options.quick else 1.0)
    text = page.with_scale(text, sections(found))
    if options.quick and not options.write:
        print(text)
    else:
        page.write(text)
    return scale.report_missed(found)


if __name__ == "__main__":
    sys.exit(main())
