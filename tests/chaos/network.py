"""What befalls the played nodes of a job's first attempt, and who can reach them meanwhile."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ddpjob.json_depth import Body
from tests.chaos.clock import Clock

Whom = Literal["rank 0", "operator", "api"]
"""Who may be cut off from a node: the agent of rank 0 (and from rank 0 all other nodes' agents),
the operator, the API server."""
EVERYBODY: frozenset[Whom] = frozenset(("rank 0", "operator", "api"))
# From the first step of all ranks to what befalls them: until then they have heard each other.
CALM_SECONDS = 5.0
# For so long a node is kept from the others after the next attempt has begun.
LATE_SECONDS = 3.0


@dataclass(frozen=True)
class Trouble:
    """What befalls some nodes."""

    ranks: tuple[int, ...]
    cut: frozenset[Whom] = EVERYBODY
    """Who does not hear them, nor they him."""
    dies: bool = False
    """Its processes are gone, and nobody is told."""
    stops: bool = False
    """It does nothing at all until it goes on."""
    after: float = CALM_SECONDS
    lasts: float | None = None
    """Seconds; None: until the next attempt has begun."""


def node_of(pod: Body) -> str:
    """The node that the pod runs on."""
    return str(pod["spec"].get("nodeName") or "")


def place(pod: Body, rank: str) -> str:
    """The node that a scheduler chooses: each rank's own one, or a spare one."""
    banned = banned_to(pod)
    return next(name for name in (f"node-{rank}", f"spare-{rank}") if name not in banned)


def banned_to(pod: Body) -> set[str]:
    """The nodes that no term of the pod's node affinity allows."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    kept_off = [
        {
            name
            for field in term.get("matchFields") or []
            if (field["key"], field["operator"]) == ("metadata.name", "NotIn")
            for name in field["values"]
        }
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    return set.intersection(*kept_off)


class Network:
    """Nodes by name; what befalls them begins once the job runs."""

    def __init__(self, troubles: tuple[Trouble, ...], clock: Clock) -> None:
        self._troubles, self.clock = troubles, clock
        self._begun_at: float | None = None
        self._next_at: float | None = None

    def begin(self, attempt: int) -> None:
        """Take in that all ranks of an attempt run, and that the job says so."""
        now = self.clock.monotonic()
        if attempt == 0:
            self._begun_at = self._begun_at or now
        else:
            self._next_at = self._next_at or now

    @property
    def is_over(self) -> bool:
        """Whether nothing befalls any node any more."""
        return self._begun_at is not None and all(
            self._end(trouble) <= self.clock.monotonic() for trouble in self._troubles
        )

    def is_dead(self, node: str) -> bool:
        """Whether nothing of it runs any more."""
        return any(trouble.dies for trouble in self._on(node))

    def is_stopped(self, node: str) -> bool:
        """Whether it does nothing."""
        return any(trouble.stops for trouble in self._on(node))

    def reaches(self, node: str, whom: Whom) -> bool:
        """Whether a node that runs is heard there."""
        return not any(
            trouble.dies or trouble.stops or whom in trouble.cut for trouble in self._on(node)
        )

    def off_the_api(self) -> frozenset[str]:
        """The nodes whose kubelets nobody hears."""
        nodes = {f"node-{rank}" for trouble in self._troubles for rank in trouble.ranks}
        return frozenset(node for node in nodes if not self.reaches(node, "api"))

    def _on(self, node: str) -> Iterator[Trouble]:
        now, begun = self.clock.monotonic(), self._begun_at
        for trouble in self._troubles:
            on_it = node in (f"node-{rank}" for rank in trouble.ranks)
            if on_it and begun is not None and begun + trouble.after <= now < self._end(trouble):
                yield trouble

    def _end(self, trouble: Trouble) -> float:
        if trouble.dies:
            return math.inf
        if trouble.lasts is None:
            return math.inf if self._next_at is None else self._next_at + LATE_SECONDS
        assert self._begun_at is not None
        return self._begun_at + trouble.after + trouble.lasts
