"""One job and its pods, as one decision sees them. Pure."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from ddpjob.api import DDPJob
from ddpjob.plan.observed import Observed, PodRecord
from ddpjob.plan.own import Pods


@dataclass(frozen=True)
class Group:
    """The inputs of one decision. The status, which a decision changes, is passed beside it."""

    job: DDPJob
    pods: Pods
    succeeded: Set[int]
    """Node ranks of the attempt that have ended well, or whose failure a rule ignores."""
    observed: Observed
    now: float
    """Unix time."""

    @property
    def current(self) -> Sequence[PodRecord]:
        """The job's own pods of its attempt."""
        return self.pods.current
