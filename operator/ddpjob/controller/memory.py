"""What the reconciler keeps between two decisions about a job, and the caches that it reads."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ddpjob.api import DDPJob
from ddpjob.controller.jobrecord import JobRecord
from ddpjob.errors import DDPJobError, InvalidJob
from ddpjob.plan.model import GroupReport, PodRecord, Report
from ddpjob.pods.render import PodTemplate


@dataclass(frozen=True)
class Order:
    """What the operator tells a job's group."""

    round: int = 0
    """The round that status has."""
    ends: bool = False
    """Nodes whose ranks have failed are to end their pods."""


@dataclass(frozen=True)
class Rendered:
    """What was found when a job's pods were rendered."""

    place: tuple[int, int]
    """(generation, attempt) of the job."""
    spec_hash: str = ""
    error: InvalidJob | None = None
    """Why no pods can be made of it."""


@dataclass
class Memory:
    """What this process remembers of one job. No decision needs it to be right."""

    at: tuple[int, int] = (0, 0)
    """(attempt, round) that all of it belongs to."""
    prepared: tuple[int, int] | None = None
    """(generation, attempt) whose Service and ConfigMap are known to exist."""
    template: PodTemplate | None = None
    """The pods of `prepared`, as they are created."""
    create_error: DDPJobError | None = None
    """Why the last creation failed, once this is to stand in the status."""
    create_error_at: float | None = None
    """Monotonic time of the first failed creation in this attempt."""
    conflicts: int = 0
    """Creations in a row that found their name taken."""
    rendered: Rendered | None = None
    """The last rendering of the job's pods."""
    secondary_at: float | None = None
    """Monotonic time at which only secondary failures were seen first."""
    report: Report | None = None
    """The last progress report of rank 0."""
    group: GroupReport | None = None
    """The last report on all nodes."""
    silent: dict[int, frozenset[int]] = field(default_factory=dict)
    """Ranks of nodes that nobody hears, by attempt: what is said of one may come in the next."""
    head: str = ""
    """uid of rank 0's pod of this attempt, whose agent is asked for progress."""
    order: Order = Order()
    """What rank 0's agent is told."""
    token: str = ""
    """What the job's agents know the operator by, once it has been read."""
    made: tuple[int, dict[int, str]] = (-1, {})
    """An attempt, and by node rank `uid_print` of each pod that this process created in it."""
    missed: set[tuple[int, int]] | None = None
    """(attempt, rank) of own pods that are not seen any more, and may exist; None until the status
    has been asked for pods that this process never saw."""
    recovered_at: float = float("-inf")
    """Monotonic time at which such pods were looked for."""
    strays: frozenset[str] = frozenset()
    """uids of pods of attempts that the job had not begun when both were last read."""
    spared: dict[str, float] = field(default_factory=dict)
    """uids of strays that could not be deleted, and the monotonic time of the next try."""
    version: str = ""
    """resourceVersion of the job as this process last wrote it."""
    written_at: float = float("-inf")
    """Monotonic time of the last status write."""
    progress_at: float = float("-inf")
    """Monotonic time of the last status write that changed progress alone."""
    requeue_at: float = math.inf
    """Monotonic time at which the job is decided on again even if nothing happens."""

    def enter(self, attempt: int, current_round: int) -> None:
        """Forget what belongs to another attempt or round, whoever has begun this one."""
        old, self.at = self.at, (attempt, current_round)
        if self.at != old:
            self.secondary_at = self.report = self.group = None
        if attempt != old[0]:
            self.silent = {of: ranks for of, ranks in self.silent.items() if of == attempt}
            self.create_error = self.create_error_at = self.template = self.prepared = None


@dataclass
class Caches:
    """The controller's caches: read by the reconciler, which also stores its writes' answers."""

    job: Callable[[str, str], JobRecord | None]
    """(namespace, name) → the job."""
    pods: Callable[[DDPJob | JobRecord], Iterable[PodRecord]]
    """The pods that name a job as their controller."""
    put_job: Callable[[JobRecord], None]
    put_pod: Callable[[PodRecord], None]
    remove_pod: Callable[[str], None]
    remove_job: Callable[[str], None]


class Head(NamedTuple):
    """A job with rank 0's own pod of its attempt, which runs or has failed, and its order."""

    job: JobRecord
    pod: PodRecord
    order: Order


class Desk(Protocol):
    """On whose behalf agents are asked, and who takes what they say."""

    def heads(self) -> Iterable[Head]:
        """Return the jobs whose agents are to be asked."""
        ...

    def pods(self, job: JobRecord) -> Iterable[PodRecord]:
        """Return a job's pods."""
        ...

    def take_reports(
        self, job: JobRecord, report: Report | None, group: GroupReport | None
    ) -> None:
        """Take what rank 0's agent has said: of the progress, and of all nodes."""
        ...

    def take_silent(self, job: JobRecord, attempt: int, silent: frozenset[int]) -> None:
        """Take the ranks of the silent nodes of a job's attempt."""
        ...


def elapsed(moment: float | None) -> float:
    """Seconds since a monotonic time; 0 without one."""
    return 0.0 if moment is None else time.monotonic() - moment
