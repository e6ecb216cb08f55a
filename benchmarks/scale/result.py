"""What a scenario has found, and the page's section of all of them. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.report import table


@dataclass(frozen=True)
class Promise:
    """What was promised, what was measured, and whether it holds."""

    text: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Result:
    """One scenario."""

    title: str
    words: str
    """What happens in it."""
    promises: Sequence[Promise]
    figures: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """Names and values of what else was measured."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def section(result: Result) -> str:
    """One scenario as Markdown."""
    promises = [[p.text, p.measured, "yes" if p.holds else "**no**"] for p in result.promises]
    parts = [f"### {result.title}", result.words]
    if promises:
        parts.append(table(["promise", "measured", "holds"], promises))
    if result.figures:
        parts.append(table(["", "measured"], [list(figure) for figure in result.figures]))
    return "\n\n".join(parts)


def sections(results: Sequence[Result]) -> str:
    """The page's part about scale."""
    return "\n\n".join([_INTRODUCTION, *map(section, results)]) + "\n"


def missed(results: Sequence[Result]) -> list[str]:
    """The promises that do not hold, each with what was measured."""
    return [
        f"{result.title}: {promise.text}: {promise.measured}"
        for result in results
        for promise in result.promises
        if not promise.holds
    ]


_INTRODUCTION = """\
## Scale

Each scenario has a control plane of its own, as above. The operator is a process of its own; nodes,
pods and agents are played by another one. `python -m benchmarks.scale` measures this part alone,
`--only NAME` one scenario, and `--quick` all of them at a tenth of the size. It ends with 1 where a
promise does not hold."""
