"""Jobs as the cache keeps them, and what the reconciler keeps between two decisions about one.

Of a job no more is kept than may be needed without being read again. Of ten thousand finished jobs,
and of those that somebody has suspended, that is a few hundred bytes each: what they ask for is
read again when something is to be done about them.
"""

import math
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, get_args

from ddpjob import api, names, why
from ddpjob.api import Admission, DDPJob, Status, oversize
from ddpjob.errors import DDPJobError, InvalidJob
from ddpjob.json_depth import read_json, write_json
from ddpjob.plan.model import Made, Order, PodRecord, Report, RoundStatus
from ddpjob.plan.own import is_own, made_of, placed
from ddpjob.pods.program import print_of
from ddpjob.pods.render import PodTemplate

_AT_REST = ("suspend", "managedBy", "nnodes", "cleanPodPolicy", "ttlSecondsAfterFinished")
"""What is kept of the spec of a job at rest; the rest are fields that a spec must have."""
_FINISHED = (
    *("observedGeneration", "state", "summary", "attempt", "restarts", "nodes"),
    *("completionTime", "progress", "goodput"),
)
"""What is kept of the status of a finished job, its conditions' messages apart."""
_STATES: Mapping[str, str] = {state: state for state in get_args(api.State)}  # one copy each
_LARGE = 16 * 1024  # bytes of JSON; up to 3 ms to read and 14 ms to render
_STAND_IN = {"image": "none", "args": ["none"]}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A DDPJob as JSON, the whole or a part of it."""

    name: str
    namespace: str
    uid: str
    resource_version: int
    body: bytes
    state: str = ""
    is_part: bool = False
    """The job is at rest, and its spec and its status are not whole."""
    refused: InvalidJob | None = None
    """Why its spec is not kept, if it is too large to be read again and again."""

    @property
    def is_large(self) -> bool:
        """Whether it may take more than some milliseconds to read, and to render."""
        return len(self.body) > _LARGE

    def parse(self) -> DDPJob:
        """The job. Raises InvalidJob."""
        if self.refused is not None:  # an error of its own, since each grows by where it passed
            raise InvalidJob(self.refused.path, self.refused.rule)
        return (_parse if self.is_large else _parsed)(self.body)


def _parse(body: bytes) -> DDPJob:
    return DDPJob.parse(read_json(body), is_stored=True)


# While pods come up, a job is read again with each of their events. Few and small ones are kept:
# of all live jobs it would be tens of MiB.
_parsed = lru_cache(maxsize=32)(_parse)


def job_record(body: Mapping[str, Any]) -> JobRecord:
    """The record of a DDPJob, whatever stands in it."""
    found = body["metadata"]
    metadata = {name: found[name] for name in names.METADATA if name in found}
    labels = found.get("labels") or {}
    if asked := {name: labels[name] for name in names.LABELS if name in labels}:
        metadata["labels"] = asked
    spec, status = body.get("spec"), body.get("status") or {}
    is_part, refused = False, None
    if isinstance(spec, dict) and isinstance(status, dict) and _is_at_rest(spec, status):
        is_part = True
        spec = {**_STAND_IN, **{name: spec[name] for name in _AT_REST if name in spec}}
        status = _in_brief(status) if status.get("state") in api.FINISHED else status
    elif (found_large := next(oversize(body), None)) is not None:
        refused, spec = InvalidJob(found_large.path, found_large.rule), {}  # without the value
    kept = {"metadata": metadata, "spec": spec, "status": status}
    return JobRecord(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        resource_version=int(metadata["resourceVersion"]),
        body=write_json({"apiVersion": names.API_VERSION, "kind": names.KIND, **kept}),
        state=_STATES.get(why.state(status), ""),
        is_part=is_part,
        refused=refused,
    )


def _is_at_rest(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether nothing is to be done about the job until somebody changes something."""
    state = status.get("state")
    theirs = spec.get("managedBy") not in (None, names.MANAGER)
    return state in api.FINISHED or state == "Suspended" and spec.get("suspend") is True or theirs


def _in_brief(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = status.get("conditions")
    named = [c for c in conditions if isinstance(c, dict)] if isinstance(conditions, list) else []
    brief = {name: status[name] for name in _FINISHED if name in status}
    return brief | {"conditions": [{**condition, "message": ""} for condition in named]}


# Code that is not there, or is another, is looked for again so soon, at first and at most: it may
# be some MiB each time.
LOOK_SECONDS, MOST_LOOK_SECONDS = 5.0, 300.0

Place = tuple[int, Made, Admission | None, tuple[str, ...], str]
"""Generation, what is created, what Kueue has admitted the job with, silent nodes, and the program
that is ordered: its pods follow from it.
"""


def place_of(job: DDPJob) -> Place:
    """Return the job's `Place` now."""
    status = job.status
    silent = tuple(node.name for node in status.silent_nodes)
    where = job.metadata.generation, made_of(status), status.admission, silent
    return *where, status.ordered_program


@dataclass(frozen=True)
class Rendered:
    """What was found when a job's pods were rendered."""

    place: Place
    spec_hash: str = ""
    program: str = ""
    error: InvalidJob | None = None
    """Why no pods can be made of it, or its code is not there."""
    tries: int = 0
    """How often its code has been looked for in vain."""
    at: float = field(default_factory=time.monotonic)
    """Monotonic time."""

    @property
    def look_seconds(self) -> float:
        """The seconds until its code is looked for again; infinity if it lacks none."""
        if self.error is None or not self.error.path.startswith("spec.code"):
            return math.inf
        return min(MOST_LOOK_SECONDS, LOOK_SECONDS * 2.0**self.tries) - elapsed(self.at)


def rendered(job: DDPJob, template: PodTemplate) -> Rendered:
    """Return what a decision needs to know of the job's pods as they are rendered now."""
    return Rendered(place_of(job), template.spec_hash, print_of(template.program))


# Anybody who may create pods can have some of them count for a job's.
MOST_PARTED = 512


@dataclass
class Memory:
    """What this process remembers of one job. No decision needs it to be right."""

    at: tuple[int, int] = (0, 0)
    """(attempt, round) that all of it belongs to."""
    prepared: Place | None = None
    """Whose Service and ConfigMap are known to exist."""
    template: PodTemplate | None = None
    """The pods of `prepared`, as they are created."""
    create_error: DDPJobError | None = None
    """Why the last creation failed, once this is to stand in the status."""
    create_error_at: float | None = None
    """Monotonic time of the first failed creation in this attempt."""
    conflicts: int = 0
    """Creations in a row that found their name taken."""
    spares_at: float = float("-inf")
    """Monotonic time at which spares were made, or could not be made."""
    rendered: Rendered | None = None
    """The last rendering of the job's pods."""
    secondary_at: float | None = None
    """Monotonic time at which only secondary failures were seen first."""
    report: Report | None = None
    """The last progress report of rank 0."""
    round_status: RoundStatus | None = None
    """The last report on all nodes."""
    silent: dict[Made, frozenset[int]] = field(default_factory=dict)
    """Ranks of nodes that nobody hears, among which pods: what is said may come too late."""
    wish: tuple[tuple[int, str, str], str] | None = None
    """(generation, queue, priority class), and the hash of what its Workload is to ask for."""
    unasked: tuple[str, float] = ("", float("-inf"))
    """Why Kueue could not be asked of the job, and the monotonic time until which it is not."""
    unheard_until: float = float("-inf")
    """Monotonic time before which Kueue is not told again whether all pods run."""
    admission: tuple[tuple[str, int], Admission] | None = None
    """uid and version of the job's Workload, and what Kueue has admitted the job with by it."""
    head: str = ""
    """uid of rank 0's pod of this attempt, whose agent is asked for progress."""
    order: Order = Order()
    """What rank 0's agent is told."""
    token: str = ""
    """What the job's agents know the operator by, once it has been read."""
    made: tuple[Made, dict[int, str]] = ((-1, 0), {})
    """By node rank `uid_print` of each pod of that kind that this process has created."""
    missed: set[tuple[int, int, int]] | None = None
    """(attempt, rank, since) of own pods that are not seen any more, and may exist; None until the
    status has been asked for pods that this process never saw."""
    recovered_at: float = float("-inf")
    """Monotonic time at which such pods were looked for."""
    parted: dict[str, PodRecord] = field(default_factory=dict)
    """Pods of this round, by uid, that have ended and are gone. How they ended is to be seen, also
    if no decision was made before they went."""
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

    def ordered(self, attempt: int) -> int:
        """The round of this attempt that has been ordered last."""
        return self.order.round if self.order.made[0] == attempt else 0

    @property
    def saved_seconds(self) -> float:
        """The seconds since the script has saved, as rank 0's agent has said; infinity without."""
        return elapsed(self.round_status.saved_at) if self.round_status else math.inf

    def part(self, pod: PodRecord) -> None:
        """Take in that a pod is gone; `pod` is as it was last seen."""
        has_ended = pod.deleting and pod.result is not None
        if has_ended and pod.attempt == self.at[0] and len(self.parted) < MOST_PARTED:
            self.parted[pod.uid] = replace(pod, forced=True)  # so nobody deletes it again

    def left(
        self, status: Status, pods: Container[str], made: Mapping[int, str]
    ) -> Iterable[PodRecord]:
        """Return the own ones of the `parted`, and forget the others: anybody may make such pods.

        Nor do those count that are back, whose uids are among these of `pods`.
        """
        gone = (p for p in placed(status, self.parted.values()) if p.uid not in pods)
        self.parted = {pod.uid: pod for pod in gone if is_own(status, pod, made)}
        return self.parted.values()

    def enter(self, attempt: int, current_round: int, made: Made) -> None:
        """Forget what belongs to another attempt or round, whoever has begun this one."""
        old, self.at = self.at, (attempt, current_round)
        if self.at != old:
            self.parted.clear()
            self.silent = {of: ranks for of, ranks in self.silent.items() if of == made}
            self.secondary_at = self.report = self.round_status = None
        if attempt != old[0]:
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

    def pods(self, job: JobRecord) -> Iterable[PodRecord]:
        """Return a job's pods."""

    async def program(self, job: JobRecord, wanted: str) -> bytes:
        """Return what has this hash and the job's ranks are to run; nothing if it is not there."""

    async def old_token(self, job: JobRecord, pod: PodRecord) -> str:
        """Return the token of a pod that an earlier version has made; "" if it cannot be read."""

    def take_answer(self, job: JobRecord, report: Report | None, seen: RoundStatus | None) -> None:
        """Take what rank 0's agent has said: of the progress, and of all nodes."""

    def take_silent(self, job: JobRecord, made: Made, silent: frozenset[int]) -> None:
        """Take the ranks of the silent nodes among these pods of a job."""


def elapsed(moment: float | None) -> float:
    """Seconds since a monotonic time; 0 without one."""
    return 0.0 if moment is None else time.monotonic() - moment
