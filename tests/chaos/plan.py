"""Plans: which faults befall which workload, each plan a line of text and back."""

import re
from dataclasses import dataclass
from typing import Self

from tests.chaos.faults import KINDS, Fault

_PLAN = re.compile(r"(?P<workload>[a-z0-9-]+):(?P<faults>.*)")


@dataclass(frozen=True)
class Plan:
    """One run: `fails-once: write 7 lost-answer, watch pods 2 gone`."""

    workload: str
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault.where not in KINDS:
                raise ValueError(f"no such fault of a plan: {fault}")

    def __str__(self) -> str:
        return f"{self.workload}: {', '.join(map(str, self.faults))}".rstrip()

    @classmethod
    def parse(cls, line: str) -> Self:
        """The plan that prints so. Raises ValueError."""
        if not (found := _PLAN.fullmatch(line.strip())):
            raise ValueError(f"no plan: {line!r}")
        faults = tuple(Fault.parse(part) for part in found["faults"].split(",") if part.strip())
        return cls(found["workload"], faults)
