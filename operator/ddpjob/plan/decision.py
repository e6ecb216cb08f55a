"""What `decide` answers with, and `reconcile` carries out."""

import math
from dataclasses import dataclass, replace

from ddpjob.api import Status
from ddpjob.plan.observed import PodRecord
from ddpjob.text import printable

# Characters.
MAX_EVENT_MESSAGE = 1024


@dataclass(frozen=True)
class Deletion:
    """Delete this pod; `grace_seconds` of None is the pod's own."""

    pod: PodRecord
    grace_seconds: int | None = None
    stray: bool = False
    """It is not the job's own, so whether this succeeds stops nothing."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event on the job: a CamelCase reason and a sentence, which may quote others."""

    reason: str
    message: str
    warning: bool = False
    once: bool = False
    """Another message of this reason is no news within an attempt."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message, MAX_EVENT_MESSAGE))


@dataclass(frozen=True)
class Decision:
    """What to do next for one job: first write the status, then do the rest."""

    status: Status
    delete: tuple[Deletion, ...] = ()
    prepare: bool = False
    """Create the Service, the agent's ConfigMap and the NetworkPolicy."""
    create: tuple[int, ...] = ()
    """Node ranks whose pods to create."""
    """The job has just finished: its agent's ConfigMap is of no more use."""
    events: tuple[Event, ...] = ()
    expire: tuple[PodRecord, ...] = ()
    """Pods that their kubelets are to end now, with their grace, and to keep."""
    delete_job: bool = False
    """The finished job has been there for long enough."""
    confirm: bool = False
    """The decision rests on the absence of pods: read them from the API server and decide again."""
    only_secondary: bool = False
    """Pods have failed, but only of another pod's failure, which has not been seen yet."""
    end_round: bool = False
    """The agents that wait to be asked on are to end their pods. What follows from their failures
    is decided when they have."""
    requeue_after: float | None = None
    """Seconds after which to decide again even if nothing happens."""
    head: str = ""
    """uid of rank 0's pod in the job's attempt. The operator asks its agent for progress."""

    def is_idle(self, status: Status) -> bool:
        """Whether a job with this status needs nothing now. A deadline may be left."""
        actions = self.delete or self.expire or self.prepare or self.create
        return self.status == status and not (actions or self.delete_job or self.confirm)


def requeue(decision: Decision, seconds: float | None) -> Decision:
    """`decision`, to be made again after so many seconds at the latest; None is never."""
    if seconds is None or not math.isfinite(seconds):
        return decision
    known = decision.requeue_after
    return replace(decision, requeue_after=seconds if known is None else min(seconds, known))
