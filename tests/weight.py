"""`python -m tests.weight`: how large the product and its tests are, and how long the tests take.

Prints the tables and writes them into CONTRIBUTING.md. `make test` and `make test-all` leave the
seconds in build/; `--full-run` also writes the line about the last run of all tests, which must
have left nothing out.
"""

import argparse
import ast
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster.tiers import ROOT, TIERS
from tests.depths import DEPTHS
from tests.parts import with_part

PAGE = ROOT / "CONTRIBUTING.md"
PACKAGES = {"ddpjob": ROOT / "operator", "ddpjob_agent": ROOT / "operator"} | {
    "ddptrain": ROOT / "images" / "trainer"
}


def sources(folder: Path) -> list[Path]:
    """The Python files that git has below `folder`."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "*.py"], cwd=folder, text=True)
    return [folder / name for name in listed.split("\0") if name and (folder / name).exists()]


def rows() -> Iterator[tuple[str, list[Path]]]:
    """Each package's and tier's name, and its files."""
    for package, root in PACKAGES.items():
        files = sources(root / package)
        yield f"**{package}**", files
        if package == "ddptrain":
            continue
        parts = {path.relative_to(root / package).parts[0] for path in files}
        for part in sorted(part for part in parts if not part.endswith(".py")):
            yield f"{package}.{part}", [f for f in files if (root / package / part) in f.parents]
    files = sources(ROOT / "tests")
    yield "**tests**", files
    for tier in TIERS:
        yield f"tests/{tier}", [f for f in files if (ROOT / "tests" / tier) in f.parents]


def function_lines(files: Iterable[Path]) -> list[int]:
    """How many lines each function has."""
    return [
        (node.end_lineno or 0) - node.lineno + 1
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def sizes() -> str:
    """The table of sizes."""
    lines = ["| | files | lines | median function |", "|---|--:|--:|--:|"]
    for name, files in rows():
        count = sum(len(path.read_text().splitlines()) for path in files)
        median = statistics.median(function_lines(files) or [0])
        lines.append(f"| {name} | {len(files)} | {count:,} | {median:g} |")
    return "\n".join(lines)


def records() -> dict[str, dict[str, Any]]:
    """What the last run of each depth has left."""
    paths = {depth: ROOT / "build" / f"tests-{depth}.json" for depth in DEPTHS}
    return {depth: json.loads(path.read_text()) for depth, path in paths.items() if path.exists()}


def seconds(found: dict[str, dict[str, Any]]) -> str:
    """The table of what the tiers took: tests, and seconds that add up over processes."""
    lines = [f"| | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for tier in TIERS:
        cells = [record.get(tier) for record in found.values()]
        texts = [f"{ran(cell)} in {cell['seconds']} s" if cell else "" for cell in cells]
        lines.append(f"| {tier} | {' | '.join(texts)} |")
    spent = [f"{max(tier['minutes'] for tier in r.values())} min" for r in found.values()]
    return "\n".join([*lines, f"| all, side by side | {' | '.join(spent)} |"])


def ran(tier: dict[str, int]) -> int:
    return sum(tier[kind] for kind in ("passed", "failed", "error", "xfailed"))


def full_run(record: dict[str, Any]) -> str:
    """The line about the last run of all tests. Raises ValueError if it was none."""
    if missing := [tier for tier in TIERS if tier not in record]:
        raise ValueError(f"not a full run that has passed: nothing of {', '.join(missing)}")
    for kind in ("skipped", "xfailed", "left"):
        if wrong := [tier for tier in TIERS if record[tier][kind]]:
            raise ValueError(f"not a full run: {kind} in {', '.join(wrong)}")
    commits = sorted({tier["commit"] for tier in record.values()})
    if len(commits) > 1 or commits[0].endswith("-dirty"):
        raise ValueError(f"not a full run of one commit, but of {', '.join(commits)}")
    runs: dict[int, float] = {tier["run"]: tier["minutes"] for tier in record.values()}
    date, count = datetime.now(UTC).date(), sum(map(ran, record.values()))
    return f"Last run: {commits[0]}, {date}, {count:,} tests in {sum(runs.values()):.0f} minutes."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.weight", description=__doc__)
    parser.add_argument("--full-run", action="store_true", help="a run of all tests has just ended")
    arguments, found, text = parser.parse_args(), records(), PAGE.read_text()
    try:
        if arguments.full_run:
            text = with_part(text, "last full run", full_run(found.get("full", {})))
        tables = {"sizes": sizes()} | ({"seconds": seconds(found)} if found else {})
        for name, part in tables.items():
            print(part, end="\n\n")
            text = with_part(text, name, part)
    except ValueError as error:
        sys.exit(f"error: {PAGE.name} is as before: {error}")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
