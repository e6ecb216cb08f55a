"""`python -m benchmarks.scale`: what is promised of many jobs, and of large ones.

Exit codes: 0 all promises hold, 1 one does not or an error.
"""

import argparse
import sys
from collections.abc import Callable, Iterable

from benchmarks import page
from benchmarks.scale import (
    beside,
    burst,
    finished,
    inplace,
    lost,
    sent,
    start,
    storm,
    width,
)
from benchmarks.scale.result import Result, missed, section, sections

SCENARIOS: dict[str, Callable[[float], Result]] = {
    "storm": storm.measure,
    "start": start.measure,
    "width": width.measure,
    "finished": finished.measure,
    "beside": beside.measure,
    "sent": sent.measure,
    "in-place": inplace.measure,
    "lost": lost.measure,
    "burst": burst.measure,
}
QUICK = 0.1


def measure(names: Iterable[str], share: float) -> list[Result]:
    """These scenarios at so large a share of their size, each printed as soon as it is known."""
    results = []
    for name in names:
        results.append(SCENARIOS[name](share))
        print(section(results[-1]), end="\n\n", flush=True)
    return results


def report_missed(results: list[Result]) -> int:
    """Print the promises that do not hold; the exit code."""
    for words in missed(results):
        print(f"missed: {words}", file=sys.stderr)
    return bool(missed(results))


def main() -> int:
    """Measure, print or write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    words = "this scenario (repeatable; default: all)"
    parser.add_argument("--only", action="append", choices=SCENARIOS, metavar="NAME", help=words)
    words = f"put what was measured into {page.PATH}; needs the full size"
    parser.add_argument("--write", action="store_true", help=words)
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--write: not --quick")
    results = measure(options.only or SCENARIOS, QUICK if options.quick else 1.0)
    if options.write and options.only:
        for result in results:
            page.put_section(section(result))
    elif options.write:
        page.put_scale(sections(results))
    return report_missed(results)


if __name__ == "__main__":
    sys.exit(main())
