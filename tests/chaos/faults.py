"""Every fault that befalls the operator in these tests, by one name each, and where it may."""

import re
from dataclasses import dataclass
from typing import Self

WRITE = (
    "kill-before",  # the operator dies; the write never leaves it
    "kill-after",  # it dies; the write is done, and it never hears of it
    "lost-answer",  # the write is done, the connection is reset
    "reset",  # the connection is reset, nothing is done
    "conflict",  # somebody was faster
    "429",
    "500",
    "503",
    "504",
    "delay",
    "broken-json",  # the write is done, its answer is cut
    "html",  # the write is done, the answer is some gateway's page
)
WATCH = (
    "gone",  # nothing for a while, then 410: what happened meanwhile is in no event
    "silent",  # nothing for a while, then the connection is dropped
    "late",  # nothing for a while, then all of it
    "cut",
    "again",  # the event comes twice
    "broken-json",
    "error",  # an ERROR event that is not 410
)
LIST = ("stale", "no-items", "broken-json", "html", "429", "500", "503")
KINDS = {"write": WRITE, "watch": WATCH, "list": LIST}
"""What a plan may have, by place."""
VIEW = ("late", "gone")  # of all watches at once, from a write on
EMBEDDED = {"write": ("kill-before", "kill-after", "500", "conflict", "lost-answer"), "view": VIEW}
"""What the embedded cluster has, by place."""
RESOURCES = ("ddpjobs", "pods")
PLACES = {**KINDS, "view": VIEW}
_FAULT = re.compile(
    r"(?P<where>\w+)(?: (?P<resource>[a-z]+))? (?P<number>\d+) (?P<kind>[a-z0-9-]+)"
)


@dataclass(frozen=True)
class Fault:
    """`write 7 lost-answer`: at the seventh write of the run. Others: see `KINDS`.

    `watch` counts events and `list` requests of each client of the operator for itself; `view` is
    what all watches bring after so many writes.
    """

    where: str
    number: int
    kind: str
    resource: str = ""  # of a watch or a list

    def __post_init__(self) -> None:
        if self.kind not in PLACES.get(self.where, ()) or self.number < 1:
            raise ValueError(f"no such fault: {self}")
        if (self.resource in RESOURCES) != (self.where in ("watch", "list")):
            raise ValueError(f"no such fault: {self}")

    def __str__(self) -> str:
        return " ".join(filter(None, (self.where, self.resource, str(self.number), self.kind)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The fault that prints so. Raises ValueError."""
        if not (found := _FAULT.fullmatch(text.strip())):
            raise ValueError(f"no fault: {text!r}")
        number = int(found["number"])
        return cls(found["where"], number, found["kind"], found["resource"] or "")
