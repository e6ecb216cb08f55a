"""Draws a dashboard of the chart from what a Prometheus has for its panels."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ddpjob.json_depth import Body

# Inches of a column of 24, and of a row of the grid.
COLUMN, ROW = 0.55, 0.3
# Seconds between two values.
STEP = 1
UNITS = {"s": "s", "bytes": "B", "ops": "/s", "reqps": "/s"}


@dataclass(frozen=True)
class Line:
    """One series: its legend, and its values at Unix times."""

    legend: str
    times: Sequence[float]
    values: Sequence[float]


def lines(target: Body, found: Sequence[Body]) -> list[Line]:
    """Return the series that a target has, named as Grafana names them."""

    def named(metric: Mapping[str, str]) -> str:
        legend = str(target["legendFormat"])
        return re.sub(r"{{(\w+)}}", lambda match: metric.get(match[1], ""), legend)

    return [
        Line(
            named(each["metric"]),
            [at for at, _ in each["values"]],
            [float(value) for _, value in each["values"]],
        )
        for each in found
    ]


def draw(board: Body, series: Mapping[int, Sequence[Line]], path: Path) -> None:
    """Write the board as SVG, by the series of each panel's id."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    rcParams.update({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]})
    rcParams.update({"font.size": 8, "axes.titlesize": 9})
    figure = Figure(figsize=(24 * COLUMN, rows * ROW), facecolor="#f4f5f5")
    times = [at for found in series.values() for line in found for at in line.times]
    for panel in board["panels"]:
        at = panel["gridPos"]
        place = (at["x"] + 1.1) / 24, 1 - (at["y"] + at["h"] - 1.2) / rows
        axes = figure.add_axes((*place, (at["w"] - 1.4) / 24, (at["h"] - 2.6) / rows))
        axes.set_title(panel["title"], loc="left", fontweight="bold")
        _KINDS[panel["type"]](axes, panel, series[panel["id"]], min(times))
        axes.set_xlim(0, max(times) - min(times))
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(path, metadata=metadata)


def _stat(axes: Axes, panel: Body, found: Sequence[Line], begin: float) -> None:
    is_named = panel["options"].get("textMode") == "name"
    last = max(found, key=lambda line: line.times[-1])
    text = last.legend if is_named else f"{last.values[-1]:g}"
    size = 10 if is_named else 26
    axes.text(0.5, 0.5, text, size=size, ha="center", va="center", transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _timeline(axes: Axes, panel: Body, found: Sequence[Line], begin: float) -> None:
    for number, line in enumerate(found):
        spans = [(at - begin, STEP) for at in line.times]
        axes.broken_barh(spans, (-0.4, 0.8), color=f"C{number}")
        axes.plot([], [], color=f"C{number}", label=line.legend, linewidth=5)
    axes.set_yticks([])
    _finish(axes, found)


def _graph(axes: Axes, panel: Body, found: Sequence[Line], begin: float) -> None:
    for line in found:
        axes.plot([at - begin for at in line.times], line.values, label=line.legend, linewidth=1.2)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _written(value, unit)))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=unit == "short"))
    most = max(value for line in found for value in line.values if not math.isnan(value))
    axes.set_ylim(0, 1.1 * most or 1)
    axes.grid(color="#e0e0e0")
    _finish(axes, found)


def _finish(axes: Axes, found: Sequence[Line]) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.01, 0.96),
        frameon=False,
        fontsize=6.5,
        ncols=min(5, len(found)),
        handlelength=1,
        columnspacing=1,
    )


def _written(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.0%}"
    power = 0 if abs(value) < 1000 else min(3, int(math.log10(abs(value)) / 3))
    return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G')[power]}{UNITS.get(unit, '')}".rstrip()


_KINDS: Mapping[str, Any] = {"stat": _stat, "state-timeline": _timeline, "timeseries": _graph}
