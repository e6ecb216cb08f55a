"""docs/pictures/recovery.svg, from docs/recovery.csv."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from benchmarks.recovery.peer import MOST_SECONDS
from benchmarks.recovery.runs import Row, Run, rows
from tests.cluster.tiers import ROOT

PICTURE = ROOT / "docs" / "pictures" / "recovery.svg"
# Of these the first fault is drawn, below the same one of another series, with these words.
FIRST = {
    "new pods": "new pods",
    "spare": "a spare",
    "elastic": "smaller group",
    "silent nodes, spare": "a spare",
    "silent nodes, elastic": "smaller group",
}
DRAWN = ("in place", "operator killed", "new pods", "silent nodes", "PyTorchJob")
TEMPLATES = Path(__file__).parent.parent / "templates"

# The picture's measures in pixels: of a second, of the margins, of a fault with its bars.
PER_SECOND = 8
LEFT, TOP, ROW = 250, 106, 42
TICKS = range(0, 71, 10)


@dataclass(frozen=True)
class Bars:
    """What is drawn of one fault."""

    ours: Row
    killed: Row | None = None
    """With the operator killed,"""
    peer: Row | None = None
    """and under a PyTorchJob."""


def bars(runs: Mapping[str, Sequence[Run]]) -> list[Bars]:
    """The faults that are drawn.

    Raises KeyError where a series of DRAWN is missing, and ValueError if the first two do not have
    the same faults in the same order.
    """
    at_work, killed = rows(runs["in place"]), rows(runs["operator killed"])
    if [row.fault for row in at_work] != [row.fault for row in killed]:
        raise ValueError("the first two series must have the same faults in the same order")
    peers = {row.fault: row for row in rows(runs["PyTorchJob"])}
    found = [Bars(*pair, peers.get(pair[0].fault)) for pair in zip(at_work, killed, strict=True)]
    found += [Bars(row, None, peers.get(row.fault)) for row in rows(runs["silent nodes"])]
    for name in (name for name in reversed(FIRST) if name in runs or name in DRAWN):
        row, *_ = rows(runs[name])
        place = 1 + [each.ours.fault for each in found].index(row.fault)
        found.insert(place, Bars(replace(row, fault=f"{row.fault}: {FIRST[name]}")))
    return found


def draw(runs: Mapping[str, Sequence[Run]]) -> str:
    """The picture of these runs, as SVG. Raises what `bars` does, and ValueError if one is long."""
    faults = bars(runs)
    last = max(row.step.most for each in faults for row in (each.ours, each.killed) if row)
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
        faults=faults,
        left=LEFT,
        top=TOP,
        row=ROW,
        most_waited=MOST_SECONDS,
        per_second=PER_SECOND,
        ticks=TICKS,
    )
