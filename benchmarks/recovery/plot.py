"""docs/pictures/recovery.svg, from docs/recovery.csv."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2

from benchmarks.recovery.runs import Row, Run, rows
from tests.cluster.tiers import ROOT

PICTURE = ROOT / "docs" / "pictures" / "recovery.svg"
DRAWN = ("in place", "operator killed", "new pods", "silent nodes")
TEMPLATES = Path(__file__).parent.parent / "templates"

# The picture's measures in pixels: of a second, of the margins, of a fault with its two bars.
PER_SECOND = 8
LEFT, TOP, ROW = 250, 92, 34
TICKS = range(0, 71, 10)


def bars(runs: Mapping[str, Sequence[Run]]) -> list[tuple[Row, Row | None]]:
    """The rows that are drawn, with those of a killed operator.

    Raises KeyError where a series of DRAWN is missing, and ValueError if the first two do not have
    the same faults in the same order.
    """
    at_work, killed = rows(runs["in place"]), rows(runs["operator killed"])
    if [row.fault for row in at_work] != [row.fault for row in killed]:
        raise ValueError("the first two series must have the same faults in the same order")
    found: list[tuple[Row, Row | None]] = [*zip(at_work, killed, strict=True)]
    (first, *_), silent = rows(runs["new pods"]), rows(runs["silent nodes"])
    found[1:1] = [(replace(first, fault=f"{first.fault}: new pods"), None)]
    return [*found, *((row, None) for row in silent)]


def draw(runs: Mapping[str, Sequence[Run]]) -> str:
    """The picture of these runs, as SVG. Raises what `bars` does, and ValueError if one is long."""
    pairs = bars(runs)
    last = max(row.step.most for pair in pairs for row in pair if row)
    if last > TICKS[-1] + 5:
        raise ValueError(f"the axis ends at {TICKS[-1]} s, a figure is {last} s")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("recovery.svg.j2").render(
        pairs=pairs,
        left=LEFT,
        top=TOP,
        row=ROW,
        per_second=PER_SECOND,
        ticks=TICKS,
    )
