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
