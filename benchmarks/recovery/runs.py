"""docs/recovery.csv: every recovery that was measured, a line each."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from io import StringIO
from pathlib import Path
from statistics import median, quantiles

from tests.cluster.tiers import ROOT

FILE = ROOT / "docs" / "recovery.csv"


@dataclass(frozen=True)
class Run:
    """One recovery; in seconds since the fault."""

    series: str
    """What was measured together: a key of `series.SERIES`."""
    date: str
    """YYYY-MM-DD, in UTC."""
    machine: str
    """Its hardware and versions."""
    fault: str
    reason: str
    """The `status.failure.reason` that it got; empty where there is no such status."""
    decided: float | None
    """Until the operator had decided on a restart,"""
    running: float | None
    """until the status said that all nodes run (both None where nothing says so),"""
    step: float
    """until all ranks had made a step; infinite if they had made none when nobody waited longer."""


@dataclass(frozen=True)
class Figure:
    """What so many runs took until one moment, in seconds."""

    median: float
    least: float
    most: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        """The figure of these runs. p95 lies between two of them where it must.

        Of up to 20 runs the longest counts for it, so it is infinite if one of them is.
        """
        most = max(values)
        is_between = len(values) > 1 and math.isfinite(most)
        p95 = quantiles(values, n=20, method="inclusive")[-1] if is_between else most
        return cls(median(values), min(values), most, p95)

    @classmethod
    def of_known(cls, values: Sequence[float | None]) -> "Figure | None":
        """The same, or None if a value is missing."""
        known = [value for value in values if value is not None]
        return cls.of(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class Row:
    """All runs of one fault in a series."""

    fault: str
    reason: str
    times: int
    decided: Figure | None
    running: Figure | None
    step: Figure


def rows(runs: Iterable[Run]) -> list[Row]:
    """Sum up runs of one series, fault by fault, in their order."""
    by_fault: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_fault.setdefault((run.fault, run.reason), []).append(run)
    return [
        Row(
            *key,
            len(found),
            Figure.of_known([run.decided for run in found]),
            Figure.of_known([run.running for run in found]),
            Figure.of([run.step for run in found]),
        )
        for key, found in by_fault.items()
    ]


def read(path: Path = FILE) -> dict[str, list[Run]]:
    """The runs by their series. Raises ValueError if a line is none."""
    found: dict[str, list[Run]] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            try:
                run = Run(
                    line["series"],
                    line["date"],
                    line["machine"],
                    line["fault"],
                    line["reason"],
                    float(line["decided"]) if line["decided"] else None,
                    float(line["running"]) if line["running"] else None,
                    float(line["step"]),
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: no run: {line}") from error
            found.setdefault(run.series, []).append(run)
    return found


def text(runs: Mapping[str, Sequence[Run]]) -> str:
    """The file of these runs."""
    file = StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in fields(Run)])
    for run in (run for series in runs.values() for run in series):
        writer.writerow(
            [f"{each:.3f}" if isinstance(each, float) else each for each in astuple(run)]
        )
    return file.getvalue()
