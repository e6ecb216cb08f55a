"""The scale of a plot's values: linear or logarithmic, with round numbers as ticks."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

_LARGEST = sys.float_info.max
# The smallest value of a logarithmic axis. Half of it is still above zero.
_LEAST = 1e-300


@dataclass(frozen=True)
class Axis:
    """A range of values. Its halves are computed with, because a whole range may overflow."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    """Whether the values are integers, and so are the ticks."""

    @property
    def is_point(self) -> bool:
        """Return whether the ends are equal, or as good as that."""
        return not self._half(self.low) < self._half(self.high)

    def place(self, value: float) -> float:
        """Return where `value` lies, from 0 (low) to 1 (high)."""
        low, high, here = (self._half(v) for v in (self.low, self.high, value))
        return (here - low) / (high - low)

    def has(self, value: float) -> bool:
        """Return whether `value` can be shown."""
        return math.isfinite(value) and self.low <= value <= self.high

    def ticks(self, most: int) -> list[float]:
        """Return at most `most` round numbers in the range, or its ends if there are none."""
        found = self._decades(most) if self.is_log else []
        if len(found) < 2:
            found = _round_numbers(self.low, self.high, most, least=1 if self.is_whole else 0)
        return found if len(found) > 1 else [self.low, self.high]

    def _half(self, value: float) -> float:
        return (math.log10(value) if self.is_log else value) / 2

    def _decades(self, most: int) -> list[float]:
        """Return powers of ten, with their multiples by 2 and 5 if there is room."""
        first, last = math.floor(math.log10(self.low)), math.floor(math.log10(self.high))
        for factors in ((1, 2, 5), (1, 5), (1,)):
            powers = range(first, last + 1)
            found = [factor * 10.0**power for power in powers for factor in factors]
            shown = [value for value in found if self.low <= value <= self.high]
            if len(shown) <= most:
                return shown
        return shown[:: math.ceil(len(shown) / most)]


def axis_of(values: Iterable[float], *, is_log: bool = False) -> Axis | None:
    """Return the axis on which all finite values lie, or None if there are none.

    A logarithmic one has those above zero. The axis of equal values has room around them.
    """
    shown = [v for v in values if math.isfinite(v) and (v >= _LEAST or not is_log)]
    if not shown:
        return None
    low, high = min(shown), max(shown)
    axis = Axis(low, high, is_log)
    if axis.is_point:
        room = abs(low) / 2 or 1.0
        axis = Axis(max(-_LARGEST, low - room), min(_LARGEST, high + room), is_log)
    return axis


def step_axis(steps: Iterable[int]) -> Axis | None:
    """Return the axis on which all steps lie, or None if there are none."""
    shown = [*steps]
    if not shown:
        return None
    low, high = min(shown), max(shown)
    return Axis(low, high, is_whole=True) if low < high else Axis(low - 1, low + 1, is_whole=True)


def words(value: float) -> str:
    """Return a tick's number in few characters: `0.25`, `1.5k`, `20M`, `1e-07`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1e12 and (size > 1e3 or abs(value) >= 1e4):
            return f"{value / size:.4g}{unit}"
    text = f"{value:.4g}"
    return text if len(text) <= 8 else f"{value:.2g}"


def _round_numbers(low: float, high: float, most: int, *, least: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten between the ends, at most `most`.

    They lie at least `least` apart.
    """
    wanted = max(least, high / most - low / most)
    if not _LEAST < wanted < 1 / _LEAST:
        return []
    power = 10.0 ** math.floor(math.log10(wanted))
    for factor in (1, 2, 5, 10, 20):
        step = factor * power
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            found = {number * step for number in range(first, last + 1)}
            return sorted(value for value in found if low <= value <= high)
    return []
