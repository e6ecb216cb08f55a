"""`python -m benchmarks.recovery_plot`: docs/pictures/recovery.svg, from docs/recovery.md."""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from tests.cluster.tiers import ROOT

PAGE = ROOT / "docs" / "recovery.md"
PICTURE = ROOT / "docs" / "pictures" / "recovery.svg"
TEMPLATES = Path(__file__).parent / "templates"
TITLES = ("With the operator at work", "With the operator killed in the same moment")
# A page of an earlier version has none of these.
MORE_TITLES = ("With new pods: restartStrategy Recreate", "Silent nodes")

# The picture's measures in pixels: of a second, of the margins, of a fault with its two bars.
PER_SECOND = 8
LEFT, TOP, ROW = 250, 92, 34
TICKS = range(0, 71, 10)

_FIGURE = re.compile(r"\*\*([\d.]+)\*\* \(([\d.]+)–([\d.]+)\)")


@dataclass(frozen=True)
class Figure:
    """Seconds since the fault: the median of the rounds, the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def parse(cls, cell: str) -> "Figure":
        """A cell of the page: `**12.0** (10.6–15.7)`. Raises ValueError if it is none."""
        if not (found := _FIGURE.fullmatch(cell)):
            raise ValueError(f"no median with its range in brackets: {cell!r}")
        return cls(*map(float, found.groups()))


@dataclass(frozen=True)
class Row:
    """A line of a table: a fault, and the three moments after it."""

    fault: str
    decided: Figure
    running: Figure
    step: Figure


def tables(page: str) -> list[list[Row]]:
    """The rows under all titles. Raises ValueError where one of TITLES has none."""
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    found = []
    for title in (*TITLES, *MORE_TITLES):
        lines = [line for line in sections.get(title, "").splitlines() if line.startswith("| ")]
        rows = [line.strip("| ").split(" | ") for line in lines[2:]]
        if not rows and title in TITLES:
            raise ValueError(f"no table under the heading {title!r}")
        found.append([Row(row[0], *map(Figure.parse, row[2:5])) for row in rows])
    return found


def draw(page: str) -> str:
    """The picture of the page's tables, as SVG."""
    at_work, killed, recreated, silent = tables(page)
    if [row.fault for row in at_work] != [row.fault for row in killed]:
        raise ValueError("the first two tables must have the same faults in the same order")
    pairs: list[tuple[Row, Row | None]] = [*zip(at_work, killed, strict=True)]
    new_pods = [replace(row, fault=f"{row.fault}: new pods") for row in recreated[:1]]
    pairs[1:1] = [(row, None) for row in new_pods]
    pairs += [(row, None) for row in silent]
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


def main() -> int:
    """Draw the page's figures; returns the exit code."""
    PICTURE.write_text(draw(PAGE.read_text()))
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
