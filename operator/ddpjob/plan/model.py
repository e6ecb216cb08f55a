"""What a decision knows, small records of the API server's objects, and what it answers. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ddpjob import api, names
from ddpjob.api import Status
from ddpjob.errors import DDPJobError
from ddpjob.text import printable

Result = Literal["succeeded", "failed"]

# The scheduler's reason while no node has room for a pod.
UNSCHEDULABLE = "Unschedulable"
# What a pod waits for in its turn, from the first to the last.
IN_TURN = ("Unscheduled", "ContainerCreating", "PodInitializing", "Pulling")
UNREMARKABLE = ("", *IN_TURN)
# The time within which a living kubelet reports that a pod has ended.
OVERDUE_SECONDS = 20
# Characters of a pod's uid; longer ones are nobody's.
MAX_UID = 64
# Characters of a pod's text that a record keeps: a termination message has as many bytes.
MAX_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Termination:
    """How a pod ended, as its agent wrote it; `termination` reads it."""

    reason: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    message: str = ""
    """Cut to the length that the status allows."""
    timed_out: bool = False
    """A collective has timed out."""
    secondary: bool = False
    """Another rank's failure has caused this one."""
    maybe_primary: bool = False
    """It looks secondary, but may be the primary failure."""
    place: str | None = None
    """Where a rank that hangs waits for others."""
    time: float | None = None
    report: "Report | None" = None
    """The last progress report; rank 0 alone has one."""
    result: api.Result | None = None
    """The result that rank 0 has left; it alone has one, if it has ended well."""
    round: int = 0
    """The round that ended."""
    step: int | None = None
    """The last one that is known of the node's ranks."""
    stepped: bool = False
    """The node's ranks have made steps in this round, as its agent has counted."""


# Stands for a termination message that has not been read yet.
UNREAD = Termination("unread")


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod, with the fields that a decision needs. Thousands of them must not weigh much."""

    name: str
    namespace: str
    uid: str
    uid_print: str
    """Six characters of the hash of its uid; the status keeps them."""
    resource_version: int
    job: str
    owner_uid: str
    """uid of the controller."""
    attempt: int
    rank: int
    """The node rank; minus its number of a spare without one."""
    since: int = 0
    """The first round of a pod that replaces another one; 0 for all other pods."""
    deleting: bool = False
    deletion_deadline: str | None = None
    """The time by which its kubelet has to end it, if it is being deleted."""
    forced: bool = False
    """It was deleted without a grace period, and only a finalizer keeps it."""
    node: str = ""
    gang: bool = False
    """Its scheduler places it together with the others."""
    scheduled_at: str | None = None
    """When it got its node, as its scheduler has said."""
    ip: str = ""
    running: bool = False
    """The trainer container runs."""
    result: Result | None = None
    """How the trainer container ended; None while it has not."""
    ended: bool = False
    """The whole pod has ended, sidecars included."""
    exit_code: int | None = None
    reason: str = ""
    """The kubelet's reason for which the pod or container ended, or waits."""
    message: str = ""
    """The termination message, or the kubelet's message."""
    created_at: str | None = None
    started_at: str | None = None
    """When the kubelet took the pod."""
    deadline_seconds: int | None = None
    """`spec.activeDeadlineSeconds`, from `started_at`."""
    without_sandbox: bool = False
    """It has a node, but its kubelet does not say that it has its volumes and its network."""
    finished_at: str | None = None
    disruption: str = ""
    """The reason for which Kubernetes ended the pod, if it did: a name in `reasons`."""
    unreachable_since: str | None = None
    """When the node controller gave up the pod's node, if the node has not come back."""
    agent_port: int = names.AGENT_PORT
    token: str = ""
    """What its agent knows the operator by."""
    old_agent: str = ""
    """The ConfigMap with the token, where an earlier version has made the pod."""
    spec_hash: str = ""
    root: str = ""
    """The root of its proof; see `proof`."""
    in_place: bool = False
    """Its agent waits after a failure, to be asked for another round."""
    node_timeout: int = 0
    """Its agent ends its ranks if it hears nobody, before so many seconds are over; 0: never."""
    termination: Termination | None = field(default=UNREAD, init=False, repr=False, compare=False)
    """`message` once it has been read: while a group fails that is asked for often."""

    @property
    def live(self) -> bool:
        """Whether a process of the trainer may still run."""
        return self.result is None and not self.forced


@dataclass(frozen=True, slots=True)
class Report:
    """The last progress report of rank 0's agent."""

    attempt: int
    step: int
    source: Literal["file", "callback", "counted"]
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    updated_at: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    round: int = 0
    first_step: int | None = None
    """The first one of the round that the agent has seen; agents of earlier versions do not say."""


@dataclass(frozen=True, slots=True)
class NodeExit:
    """How the ranks of one node have ended, while its pod waits for an order, or for others."""

    rank: int
    exit_code: int  # 0 if they have ended well
    message: str
    """The termination message that the agent would end with."""


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """What rank 0's agent says of all nodes. A pod of somebody's writes it, so it is hostile."""

    attempt: int
    round: int
    running: bool
    """The ranks of every node have been started in `round`."""
    exits: tuple[NodeExit, ...] = ()
    over: bool = False
    """None of them lives any more, and all pods wait to be asked on."""
    dead: frozenset[str] = frozenset()
    """`uid_print` of pods that are to end, and of which no process lives any more."""
    saves: int = 0
    """How often the script has saved."""
    saved_at: float = field(default=-math.inf, compare=False)  # monotonic


@dataclass(frozen=True, slots=True)
class Assignment:
    """What Kueue has assigned to a part of the pods."""

    name: str
    flavors: tuple[str, ...]
    """Names of ResourceFlavors."""
    asked: tuple[Mapping[str, Any], ...] = ()
    """What its admission checks ask of the pods, as the flavors do."""
    gated: bool = False
    """Kueue chooses the node of each pod, which is not to be scheduled before."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What Kueue says of a job, in the Workload that the operator has made for it."""

    name: str
    namespace: str
    uid: str
    resource_version: int
    job: str
    owner_uid: str
    """uid of the controller."""
    wish: str
    """The hash of what it asks for: see `pods.workload.wish_of`."""
    admitted: bool = False
    evicted: bool = False
    holds_quota: bool = False
    """Kueue keeps its quota for it."""
    pods_ready: bool = False
    message: str = ""
    """Why it is not admitted, in Kueue's words."""
    cluster_queue: str = ""
    assignments: tuple[Assignment, ...] = ()


@dataclass(frozen=True)
class Queue:
    """What a decision knows of Kueue."""

    waits: bool
    """The job has a queue, so it gets no pods before it is admitted."""
    wish: str = ""
    """The hash of what its Workload is to ask for; "" if it is not needed now."""
    workload: Workload | None = None
    admission: api.Admission | None = None
    """That of the Workload."""
    trouble: str = ""
    """Why Kueue cannot be asked."""
    hears: bool = True
    """Kueue may be told whether all pods run."""


@dataclass(frozen=True)
class Observed:
    """All that a decision may rest on besides the job itself."""

    pods: tuple[PodRecord, ...] = ()
    confirmed: bool = False
    """The pods have just been read from the API server, so an absent pod is gone.

    Otherwise another operator may have seen more of them than this one."""
    children_ready: bool = False
    """The Service and the agent's ConfigMap are known to exist and to be ours."""
    create_error: DDPJobError | None = None
    """The error that stopped the last creation."""
    refused_seconds: float = 0.0  # since creations fail in this attempt
    edit_error: DDPJobError | None = None
    """Why no pods can be made of the edited job. The pods from before the edit run on."""
    look_seconds: float = math.inf  # until its code is looked for again, if that is why
    secondary_seconds: float = 0.0
    """For how long only secondary failures of this attempt have been seen."""
    report: Report | None = None
    round_status: RoundStatus | None = None
    ordered: int = 0
    """The round of the attempt that this process has ordered last."""
    queue: Queue | None = None
    """None if the operator takes no notice of Kueue."""
    silent: frozenset[int] = frozenset()
    """Node ranks of the attempt that neither rank 0's agent nor the operator hears."""
    spec_hash: str = ""
    program: str = ""
    """Hashes of the pods as they would be rendered now, and of what their ranks would run."""
    key: bytes = b""
    """The process's secret, with which it proves that pods are its own."""
    made: Mapping[int, str] = field(default_factory=dict)
    """`uid_print` of the pods that this operator has made in this attempt, by node rank. The status
    may not have them yet."""
    saved_seconds: float = math.inf
    """The seconds since the script has saved, as far as rank 0's agent sees it."""
    spares_wait: float = 0.0
    """The seconds before the next spares may be made."""
    strays: frozenset[str] = frozenset()
    """uids of pods of attempts that the job had not begun when both were last read."""
    spared: frozenset[str] = frozenset()
    """uids of strays whose deletion has just failed."""


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


Made = tuple[int, int]
"""Attempt, and the first round of the pods that are created in it."""


@dataclass(frozen=True)
class Order:
    """What the operator tells a job's group."""

    round: int = 0
    """The round that status has, or one before while ranks of that one may live on."""
    ends: bool = False
    """Nodes whose ranks have failed are to end their pods."""
    made: Made = (0, 0)
    """The kind of the latest pods: those that have replaced others begin with its round."""
    pods: str = ""
    """The pods that have replaced others, as `RANK:PRINT,…`; no print of those that are to come."""
    members: frozenset[str] = frozenset()
    """uids of the pods that are to be told where rank 0's pod is, if that has replaced another."""
    size: int = 0
    """The number of nodes of a group that may have fewer than the job wants; 0 of every other."""
    program: str = ""
    """The hash of what its ranks run; "" if all the attempt's pods were made with it."""
    held: bool = False
    """No round begins: another one follows once ranks of one before are dead."""

    def placed(self, pod: PodRecord) -> PodRecord:
        """Return a pod with the rank that it has got; as it is if it has no other than by name."""
        rank = self._ranks.get(pod.uid_print, pod.rank)
        return pod if rank == pod.rank else replace(pod, rank=rank, since=self.made[1])

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        """Node ranks by the prints of their pods."""
        named = (part.partition(":") for part in self.pods.split(",") if part)
        return {known: int(rank) for rank, _, known in named if known}


# Make it, in the place of one that asks for something else; delete it; give its quota back; say
# that all pods run, or that they do not.
WorkloadAction = Literal["replace", "delete", "release", "ready", "unready"]


@dataclass(frozen=True)
class Decision:
    """What to do next for one job. A turn does one part of it: see `Reconciler.reconcile`."""

    status: Status
    delete: tuple[Deletion, ...] = ()
    prepare: bool = False
    """Create the Service, the agent's ConfigMap and the NetworkPolicy."""
    create: tuple[int, ...] = ()
    """Node ranks whose pods to create, and minus the numbers of spares."""
    events: tuple[Event, ...] = ()
    expire: tuple[PodRecord, ...] = ()
    """Pods that their kubelets are to end now, with their grace, and to keep."""
    delete_job: bool = False
    """The finished job has been there for long enough."""
    confirm: bool = False
    """It rests on the absence of pods: read them from the API server and decide again."""
    only_secondary: bool = False
    """Pods have failed, but only of another pod's failure, which has not been seen yet."""
    end_round: bool = False
    """Agents that wait to be asked on are to end their pods, by which is decided what follows."""
    requeue_after: float | None = None
    """Seconds after which to decide again even if nothing happens."""
    workload: WorkloadAction | None = None
    """What to do about the job's Workload, before pods are created."""
    head: str = ""
    """uid of rank 0's pod in the job's attempt. The operator asks its agent for progress."""
    order: Order = Order()
    """What its agent is told."""

    @property
    def acts(self) -> bool:
        """Whether objects of the job are to be changed."""
        own = self.delete or self.expire or self.prepare or self.create
        return bool(own or self.workload)

    def is_idle(self, status: Status) -> bool:
        """Whether a job with this status needs nothing now. A deadline may be left."""
        return self.status == status and not (self.acts or self.delete_job or self.confirm)


def requeue(decision: Decision, seconds: float | None) -> Decision:
    """`decision`, to be made again after so many seconds at the latest; None is never."""
    if seconds is None or not math.isfinite(seconds):
        return decision
    known = decision.requeue_after
    return replace(decision, requeue_after=seconds if known is None else min(seconds, known))
