"""What is known of a job's pods when a decision is made.

Small records, made from what the API server sends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ddpjob import names
from ddpjob.errors import DDPJobError
from ddpjob.plan.proof import print_of, root_of
from ddpjob.times import stamp, unix_seconds

Result = Literal["succeeded", "failed"]

DEADLINE = "DeadlineExceeded"  # as Kubernetes calls it, of pods and of Jobs
NOT_STARTED = "StartupDeadlineExceeded"
UNREMARKABLE = ("", "ContainerCreating", "PodInitializing")
"""What a container waits for in its turn."""
SAVED = "Preempted"
"""Also what an agent says of ranks that have saved and ended with 75."""
DISRUPTIONS = frozenset(
    ("Evicted", SAVED, "NodeLost", "NodeRefused", "PodDeleted", "ResultUnknown", NOT_STARTED)
)
"""Reasons that are no fault of the training: restarts because of them do not count."""


MAX_UID = 64
MAX_TEXT = 4096
"""Characters of a pod's text that a record keeps: a termination message has as many bytes."""


@dataclass(frozen=True, slots=True)
class Word:
    """What the agent of a pod that has ended left of why; `summary` reads it."""

    reason: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    message: str = ""
    """As long as status has it."""
    timed_out: bool = False
    """Of noise: a collective has timed out."""
    peer: bool = False
    suspect: bool = False
    place: str | None = None
    time: float | None = None
    report: "Report | None" = None
    """The last one, of rank 0 alone."""


UNREAD = Word("unread")
"""Stands for a termination message that nobody has asked for."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod, as far as we care: a thousand of them must not weigh much."""

    name: str
    namespace: str
    uid: str
    uid_print: str
    """What status keeps of its uid: six characters."""
    resource_version: int
    job: str
    owner_uid: str
    """uid of the controller."""
    attempt: int
    rank: int
    deleting: bool = False
    deletion_deadline: str | None = None
    """Until when its kubelet is to have ended it, if it is being deleted."""
    forced: bool = False
    """Deleted without a grace period, and there only because of somebody's finalizer."""
    node: str = ""
    ip: str = ""
    running: bool = False
    """The trainer container runs."""
    result: Result | None = None
    """How the trainer container ended; None while it has not."""
    ended: bool = False
    """The whole pod has ended, sidecars included."""
    exit_code: int | None = None
    reason: str = ""
    """The kubelet's word for how the pod or container ended, or for why it waits."""
    message: str = ""
    """The termination message, or the kubelet's sentence."""
    created_at: str | None = None
    started_at: str | None = None
    """When the kubelet took the pod."""
    deadline_seconds: int | None = None
    """`spec.activeDeadlineSeconds`, from `started_at`."""
    bare: bool = False
    """It has a node, and not yet its volumes and its network, which come before any image."""
    finished_at: str | None = None
    disruption: str = ""
    """Why Kubernetes ended the pod, if it did: Evicted, Preempted, NodeLost or NodeRefused."""
    unreachable_since: str | None = None
    """When the node controller gave up the pod's node, while it has not come back."""
    agent_port: int = names.AGENT_PORT
    agent_config: str = ""
    spec_hash: str = ""
    root: str = ""
    """Where its proof leads to; see `proof`."""
    word: Word | None = field(default=UNREAD, init=False, repr=False, compare=False)
    """What `summary` has read in `message`, once it was asked for: a plan asks several times, and
    there are many plans while a group fails."""

    @property
    def live(self) -> bool:
        """Whether a process of the trainer may still run."""
        return self.result is None and not self.forced


def pod_record(pod: Mapping[str, Any]) -> PodRecord | None:
    """The record of `pod`, or None if its name is not that of a pod of the DDPJob that owns it.

    Its labels are for people, who may change them; a name stays, and is there once.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    owners = metadata.get("ownerReferences") or []
    owner = next((o for o in owners if o.get("controller") and _is_job(o)), None)
    if owner is None or (place := names.place(owner["name"], metadata["name"])) is None:
        return None
    annotations = metadata.get("annotations") or {}
    agent_config = annotations.get(names.AGENT_ANNOTATION, "")
    deadline = metadata.get("deletionTimestamp")
    return PodRecord(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata["uid"],
        resource_version=int(metadata["resourceVersion"]),
        job=owner["name"],
        owner_uid=owner["uid"],
        attempt=place[0],
        rank=place[1],
        deleting=deadline is not None,
        deletion_deadline=deadline,
        forced=deadline is not None and metadata.get("deletionGracePeriodSeconds") == 0,
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        created_at=metadata.get("creationTimestamp"),
        started_at=status.get("startTime"),
        deadline_seconds=spec.get("activeDeadlineSeconds"),
        bare=_is_bare(status),
        agent_port=_port(annotations.get(names.AGENT_PORT_ANNOTATION, "")),
        agent_config=agent_config
        if names.is_agent_config_name(owner["name"], agent_config)
        else "",
        spec_hash=_bounded(annotations.get(names.SPEC_HASH_ANNOTATION, "")),
        root=root_of(annotations.get(names.PROOF_ANNOTATION, ""), place[1]),
        uid_print=print_of(metadata["uid"]),
        ended=_ended(status),
        disruption=_disruption(status),
        unreachable_since=_unreachable_since(status, deadline),
        **{name: _bounded(value) for name, value in _trainer(status).items()},
    )


def _is_job(owner: Mapping[str, Any]) -> bool:
    """Whether an owner is one of our jobs; a uid of the API server's has 36 characters."""
    group = str(owner.get("apiVersion")).partition("/")[0]
    return (group, owner.get("kind")) == (names.GROUP, names.KIND) and len(owner["uid"]) <= MAX_UID


def _bounded(value: Any) -> Any:
    """`value`, a text no longer than any that a kubelet writes: others may write 1.5 MB."""
    return value[:MAX_TEXT] if isinstance(value, str) else value


# Reasons of the condition DisruptionTarget (the Pod's lifecycle, "Pod disruption conditions").
_DISRUPTIONS = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",  # node pressure, or the node shuts down in order
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
}
# Reasons of a pod that the kubelet would not start though it had been bound to its node.
_REFUSED = (
    *("UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "Preempting", "OutOf"),
    *("TopologyAffinityError", "SMTAlignmentError", "TaintToleration", "NodeShutdown"),
    *("PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch", "PodFeatureUnsupported"),
)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The pod's condition of this type; empty without one."""
    conditions = status.get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _disruption(status: Mapping[str, Any]) -> str:
    target = _condition(status, "DisruptionTarget")
    if target.get("status") == "True":
        return _DISRUPTIONS.get(str(target.get("reason")), "Evicted")
    reason = str(status.get("reason", ""))
    if reason == "Evicted":
        return reason
    return "NodeRefused" if reason.startswith(_REFUSED) else ""


OVERDUE_SECONDS = 20  # what a living kubelet may take to say that a pod has ended


def _unreachable_since(status: Mapping[str, Any], deadline: str | None) -> str | None:
    """When the pod's node was lost; `deadline` is when its kubelet was to have ended it, if ever.

    Seen in the pod, so that no rights on nodes are needed.

    The node controller makes `Ready` False and touches nothing else; whatever else makes it False
    makes `ContainersReady` False too, but for readiness gates. A pod that has never been ready
    shows nothing of this: there it is the grace period that its kubelet lets pass.
    """
    ready, containers = _condition(status, "Ready"), _condition(status, "ContainersReady")
    gated = ready.get("reason") == "ReadinessGatesNotReady"
    if ready.get("status") == "False" and containers.get("status") == "True" and not gated:
        since = ready.get("lastTransitionTime")
        return str(since) if since else None
    ended = unix_seconds(deadline)
    if _disruption(status) == "NodeLost" and containers.get("status") != "True" and ended:
        return stamp(ended + OVERDUE_SECONDS)
    return None


def _port(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else names.AGENT_PORT


def _ended(status: Mapping[str, Any]) -> bool:
    """Whether no container runs any more; the phase says so only some time after the last ended."""
    containers = [
        container
        for kind in ("containerStatuses", "initContainerStatuses")
        for container in status.get(kind) or []
    ]
    over = bool(containers) and all("terminated" in (c.get("state") or {}) for c in containers)
    return over or status.get("phase") in ("Succeeded", "Failed")


def _trainer(status: Mapping[str, Any]) -> dict[str, Any]:
    """What the trainer container does: by its own status, without one by the pod's phase.

    Its own status comes first: a sidecar that still runs keeps the pod Running after the trainer
    has ended.
    """
    state = next(
        (
            container.get("state") or {}
            for container in status.get("containerStatuses") or []
            if container.get("name") == names.TRAINER_CONTAINER
        ),
        {},
    )
    phase = status.get("phase", "Pending")
    if ended := state.get("terminated"):
        code = ended.get("exitCode", 0)
        return {
            # A sidecar's failure makes the pod Failed as well, but without a reason.
            "result": "succeeded" if code == 0 and not _is_ended(status) else "failed",
            "exit_code": code,
            # An eviction or a deadline stands in the pod's reason, and explains more than `Error`.
            "reason": status.get("reason") or ended.get("reason", ""),
            "message": ended.get("message") or status.get("message", ""),
            "finished_at": ended.get("finishedAt"),
        }
    if phase in ("Succeeded", "Failed"):
        return {
            "result": "succeeded" if phase == "Succeeded" else "failed",
            "reason": status.get("reason", ""),
            "message": status.get("message", ""),
            **({} if status.get("reason") else _init_failure(status)),  # evicted meanwhile, say
        }
    waiting = _init_waiting(status) or state.get("waiting") or _unschedulable(status)
    return {
        "running": "running" in state,
        "reason": waiting.get("reason", ""),
        "message": waiting.get("message", ""),
    }


def _is_ended(status: Mapping[str, Any]) -> bool:
    """Whether Kubernetes ended the pod, and not its containers themselves."""
    return status.get("phase") == "Failed" and bool(status.get("reason"))


def _is_bare(status: Mapping[str, Any]) -> bool:
    """Whether the kubelet says that no container of the pod can be started yet."""
    return _condition(status, "PodReadyToStartContainers").get("status") == "False"


def _init_failure(status: Mapping[str, Any]) -> dict[str, Any]:
    """Why the trainer never began, if an init container failed."""
    for container in status.get("initContainerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if code := ended.get("exitCode", 0):
            said = str(ended.get("message") or "").strip().splitlines()
            words = f"init container {container.get('name')} ended with exit code {code}"
            return {
                "exit_code": code,
                "reason": "InitContainerFailed",
                "message": ": ".join([words, *said[-1:]]),
                "finished_at": ended.get("finishedAt"),
            }
    return {}


def _init_waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the first init container that has not begun waits for, if it is more than its turn."""
    for container in status.get("initContainerStatuses") or []:
        waiting: Mapping[str, Any] = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in UNREMARKABLE:
            return waiting
    return {}


def _unschedulable(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The scheduler's reason and message, while it has no node for the pod."""
    scheduled = _condition(status, "PodScheduled")
    return scheduled if scheduled.get("status") == "False" else {}


@dataclass(frozen=True, slots=True)
class Report:
    """What rank 0's agent last said of the training."""

    attempt: int
    step: int
    source: Literal["file", "counted"]
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    updated_at: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Observed:
    """All that a plan may look at besides the job itself."""

    pods: tuple[PodRecord, ...] = ()
    looked: bool = False
    """The pods have just been read: what is absent is gone.

    Otherwise it may be that another operator has seen more of them than this one."""
    children_ready: bool = False
    """The Service and the agent's ConfigMap are known to exist and to be ours."""
    trouble: DDPJobError | None = None
    """What stopped the last try to create something."""
    refused_seconds: float = 0.0
    """For how long this has been so in this attempt."""
    invalid: DDPJobError | None = None
    """Why no pods could be made of the job as it has been edited, while those from before run."""
    noise_seconds: float = 0.0
    """For how long all that has been seen of this attempt's failure is peers' noise."""
    report: Report | None = None
    spec_hash: str = ""
    """Of the pods as they would be rendered now."""
    key: bytes = b""
    """The process's secret, with which it proves that pods are its own."""
    made: Mapping[int, str] = field(default_factory=dict)
    """What status is to keep of the uids of pods that this operator has made in this attempt, by
    node rank: it may be in no status yet."""
    strays: frozenset[str] = frozenset()
    """uids of pods of attempts that the job had not begun when both were last read."""
    spared: frozenset[str] = frozenset()
    """uids of somebody else's pods that could not be deleted a moment ago."""
