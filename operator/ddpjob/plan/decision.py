"""One step of a job, as `plan` decides it and `reconcile` does it."""

import math
from dataclasses import dataclass, replace

from ddpjob.api import Status
from ddpjob.plan.observed import PodRecord
from ddpjob.text import printable

MAX_NOTE = 1024  # characters of an Event's message


@dataclass(frozen=True)
class Deletion:
    """Delete this pod; `grace_seconds` of None is the pod's own."""

    pod: PodRecord
    grace_seconds: int | None = None
    stray: bool = False
    """It is not the job's own, so whether this succeeds stops nothing."""


@dataclass(frozen=True)
class Note:
    """An Event for people: CamelCase reason and a sentence, which may quote others."""

    reason: str
    message: str
    warning: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message, MAX_NOTE))


@dataclass(frozen=True)
class Plan:
    """One step: the status first, then the rest."""

    status: Status
    delete: tuple[Deletion, ...] = ()
    prepare: bool = False
    """Create the Service, the agent's ConfigMap and the NetworkPolicy."""
    create: tuple[int, ...] = ()
    """Node ranks whose pods to create."""
    drop_agent: bool = False
    """The job has just finished: its agent's ConfigMap is of no more use."""
    notes: tuple[Note, ...] = ()
    expire: tuple[PodRecord, ...] = ()
    """Pods that their kubelets are to end now, with their grace, and to keep."""
    delete_job: bool = False
    """The finished job has been there for long enough."""
    look: bool = False
    """What follows rests on the absence of pods: read them anew, and ask again."""
    noise: bool = False
    """Only peers' noise has been seen so far."""
    look_again: float | None = None
    """Seconds after which to plan again even if nothing happens."""
    head: str = ""
    """Uid of rank 0's pod of the attempt that the plan was made in, whose agent is asked."""

    def is_idle(self, status: Status) -> bool:
        """Whether nothing follows for a job with this status, but perhaps a look later."""
        deeds = self.delete or self.expire or self.prepare or self.create
        return self.status == status and not (deeds or self.delete_job or self.look)


def look_again(step: Plan, seconds: float | None) -> Plan:
    """`step`, to be followed by a look after so many seconds at the latest."""
    if seconds is None or not math.isfinite(seconds):
        return step
    known = step.look_again
    return replace(step, look_again=seconds if known is None else min(seconds, known))
