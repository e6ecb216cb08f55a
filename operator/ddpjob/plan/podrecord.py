"""Reads a decision's records of pods from the API server's objects; which of them wait. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from sys import intern
from typing import Any

from ddpjob import names
from ddpjob.plan.model import IN_TURN, MAX_TEXT, MAX_UID, OVERDUE_SECONDS, UNREMARKABLE, PodRecord
from ddpjob.plan.own import print_of, root_of
from ddpjob.plan.reasons import (
    CONTAINER_CREATING,
    EVICTED,
    INIT_CONTAINER_FAILED,
    NODE_LOST,
    NODE_REFUSED,
    POD_INITIALIZING,
    PREEMPTED,
    PULLING,
    UNSCHEDULED,
)
from ddpjob.times import seconds_since, timestamp, unix_seconds


def pod_record(pod: Mapping[str, Any]) -> PodRecord | None:
    """Return the record of `pod`, or None if its name does not fit the DDPJob that owns it.

    Users may change labels. A name never changes, and is unique.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    owners = metadata.get("ownerReferences") or []
    owner = next((o for o in owners if o.get("controller") and _is_job(o)), None)
    if owner is None or (place := names.parse_pod_name(owner["name"], metadata["name"])) is None:
        return None
    annotations = metadata.get("annotations") or {}
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
        since=place[2],
        deleting=deadline is not None,
        deletion_deadline=deadline,
        forced=deadline is not None and metadata.get("deletionGracePeriodSeconds") == 0,
        node=spec.get("nodeName", ""),
        gang=_is_in_gang(metadata, spec),
        scheduled_at=_condition(status, "PodScheduled").get("lastTransitionTime"),
        ip=status.get("podIP", ""),
        created_at=metadata.get("creationTimestamp"),
        started_at=status.get("startTime"),
        deadline_seconds=spec.get("activeDeadlineSeconds"),
        without_sandbox=_condition(status, "PodReadyToStartContainers").get("status") == "False",
        agent_port=_number(annotations.get(names.AGENT_PORT_ANNOTATION, ""), 5, names.AGENT_PORT),
        token=intern(_token(spec)),
        old_agent=annotations.get(names.OLD_AGENT_ANNOTATION, "")[:MAX_NAME],
        spec_hash=_bounded(annotations.get(names.SPEC_HASH_ANNOTATION, "")),
        root=root_of(annotations.get(names.PROOF_ANNOTATION, ""), place[1]),
        in_place=annotations.get(names.RESTART_ANNOTATION) == "InPlace",
        node_timeout=_number(annotations.get(names.NODE_TIMEOUT_ANNOTATION, ""), 4, 0),
        uid_print=print_of(metadata["uid"]),
        ended=_ended(status),
        disruption=_disruption(status),
        unreachable_since=_unreachable_since(status, deadline),
        **{name: _bounded(value) for name, value in _trainer(spec, status).items()},
    )


def _is_job(owner: Mapping[str, Any]) -> bool:
    """Whether an owner is a DDPJob. The API server's uids have 36 characters."""
    group = str(owner.get("apiVersion")).partition("/")[0]
    return (group, owner.get("kind")) == (names.GROUP, names.KIND) and len(owner["uid"]) <= MAX_UID


def _is_in_gang(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Whether the pod names a PodGroup, as one of the schedulers of `pods.gang` wants it."""
    named = names.GANG_ANNOTATION in (metadata.get("annotations") or {})
    named = named or names.GANG_LABEL in (metadata.get("labels") or {})
    return named or bool(spec.get("schedulingGroup"))


def _bounded(value: Any) -> Any:
    """Return `value`, a text cut to the longest that a kubelet writes: others may write 1.5 MB."""
    return value[:MAX_TEXT] if isinstance(value, str) else value


# Characters of a ConfigMap's name.
MAX_NAME = 253
# Reasons of the condition DisruptionTarget (the Pod's lifecycle, "Pod disruption conditions").
_DISRUPTIONS = {
    "PreemptionByScheduler": PREEMPTED,
    "EvictionByEvictionAPI": EVICTED,
    "TerminationByKubelet": EVICTED,  # node pressure, or the node shuts down in order
    "DeletionByTaintManager": NODE_LOST,
    "DeletionByPodGC": NODE_LOST,
}
# Reasons of a pod that the kubelet would not start though it had been bound to its node.
_REFUSED = (
    *("UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "Preempting", "OutOf"),
    *("TopologyAffinityError", "SMTAlignmentError", "TaintToleration", "NodeShutdown"),
    *("PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch", "PodFeatureUnsupported"),
)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the pod's condition of this type; empty without one."""
    conditions = status.get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _disruption(status: Mapping[str, Any]) -> str:
    target = _condition(status, "DisruptionTarget")
    if target.get("status") == "True":
        return _DISRUPTIONS.get(str(target.get("reason")), EVICTED)
    reason = str(status.get("reason", ""))
    if reason == EVICTED:
        return reason
    return NODE_REFUSED if reason.startswith(_REFUSED) else ""


def _unreachable_since(status: Mapping[str, Any], deadline: str | None) -> str | None:
    """Return when the pod's node was lost; its kubelet had to end the pod by `deadline`, if ever.

    The pod shows it, so no rights on nodes are needed.

    The node controller makes `Ready` False and touches nothing else. Everything else that makes it
    False makes `ContainersReady` False too, except readiness gates. A pod that was never ready
    shows nothing of this; its node is lost if its kubelet lets the grace period pass.
    """
    ready, containers = _condition(status, "Ready"), _condition(status, "ContainersReady")
    gated = ready.get("reason") == "ReadinessGatesNotReady"
    if ready.get("status") == "False" and containers.get("status") == "True" and not gated:
        since = ready.get("lastTransitionTime")
        return str(since) if since else None
    ended = unix_seconds(deadline)
    if _disruption(status) == NODE_LOST and containers.get("status") != "True" and ended:
        return timestamp(ended + OVERDUE_SECONDS)
    return None


def _number(text: str, digits: int, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else default


def _ended(status: Mapping[str, Any]) -> bool:
    """Whether no container runs any more. The phase follows only some time later."""
    containers = [
        container
        for kind in ("containerStatuses", "initContainerStatuses")
        for container in status.get(kind) or []
    ]
    over = bool(containers) and all("terminated" in (c.get("state") or {}) for c in containers)
    return over or status.get("phase") in ("Succeeded", "Failed")


def _token(spec: Mapping[str, Any]) -> str:
    """Return the trainer's DDPJOB_TOKEN; "" without one."""
    for container in spec.get("containers") or []:
        if container["name"] == names.TRAINER_CONTAINER:
            env = {each["name"]: each.get("value") for each in container.get("env") or []}
            return names.as_token(env.get(names.TOKEN_VARIABLE))
    return ""


def _trainer(spec: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record about the trainer container.

    The container's own status comes before the pod's phase, because a sidecar that still runs keeps
    the pod Running after the trainer has ended.
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
        # Kubernetes has ended the pod. A sidecar's failure makes it Failed too, without a reason.
        is_failed = phase == "Failed" and status.get("reason")
        return {
            "result": "succeeded" if code == 0 and not is_failed else "failed",
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
    waiting = _init_waiting(status) or state.get("waiting") or _unscheduled(spec, status)
    if waiting.get("reason") in IN_TURN and not waiting.get("message"):
        waiting = _next_wait(spec, status)
    return {
        "running": "running" in state,
        "reason": waiting.get("reason", ""),
        "message": waiting.get("message", ""),
    }


def _init_failure(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a trainer that never began, if an init container failed."""
    for container in status.get("initContainerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if code := ended.get("exitCode", 0):
            said = str(ended.get("message") or "").strip().splitlines()
            words = f"init container {container.get('name')} ended with exit code {code}"
            return {
                "exit_code": code,
                "reason": INIT_CONTAINER_FAILED,
                "message": ": ".join([words, *said[-1:]]),
                "finished_at": ended.get("finishedAt"),
            }
    return {}


def _init_waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the first init container waits for, if it is more than its turn."""
    for container in status.get("initContainerStatuses") or []:
        waiting: Mapping[str, Any] = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in UNREMARKABLE:
            return waiting
    return {}


def _next_wait(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what the pod's next container waits for, as far as the pod shows it.

    A kubelet pulls an image once the pod has its volumes and its network. Before Kubernetes 1.36 it
    writes that only when the first image is there, so until then any of the three may be missing.
    """
    kinds = ("initContainerStatuses", "containerStatuses")
    seen = {each.get("name"): each for kind in kinds for each in status.get(kind) or []}
    inits, others = spec.get("initContainers") or [], spec.get("containers") or []
    for container in inits:
        found = seen.get(container.get("name")) or {}
        # The next container need not wait for the end of a sidecar.
        is_done = container.get("restartPolicy") == "Always" and found.get("started") is True
        if "running" in (found.get("state") or {}) and not is_done:
            words = f"init container {container.get('name')} runs"
            return {"reason": POD_INITIALIZING.name, "message": words}
    waiting = (
        container.get("image", "")
        for container in (*inits, *others)
        if "waiting" in ((seen.get(container.get("name")) or {}).get("state") or {})
    )
    image = next(waiting, "")
    if _condition(status, "PodReadyToStartContainers").get("status") == "True":
        return {"reason": PULLING.name, "message": f"image {image}"}
    return {"reason": CONTAINER_CREATING.name, "message": f"volumes, network or image {image}"}


# Volcano's reasons of a pod that has no node because others of its gang have none.
_WOULD_FIT = ("Schedulable", "Undetermined")


def _unscheduled(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scheduler's reason and message while it has no node for the pod."""
    scheduled = _condition(status, "PodScheduled")
    if not scheduled and not spec.get("nodeName"):
        words = f"scheduler {spec.get('schedulerName')} has not said a word about it"
        return {"reason": UNSCHEDULED.name, "message": words}
    waits = scheduled.get("status") == "False" and scheduled.get("reason") not in _WOULD_FIT
    return scheduled if waits else {}


# A pod whose image is there starts within some seconds after the kubelet has taken the pod.
SLOW_SECONDS = 10.0


def first_stuck(current: Sequence[PodRecord]) -> PodRecord | None:
    """Return the pod of lowest rank that cannot start. One that is pulling its image can."""
    stuck = [
        pod for pod in current if pod.live and not pod.running and pod.reason not in UNREMARKABLE
    ]
    return min(stuck, key=lambda pod: pod.rank, default=None)


def slowest(current: Sequence[PodRecord], now: float) -> PodRecord | None:
    """Return the pod that is furthest from its start, of those that are slow to start.

    By this order the reason for which a group waits changes a few times at most.
    """
    begun = timestamp(now - SLOW_SECONDS)
    slow = ((since, pod) for since, pod in _in_turn(current) if since <= begun)
    found = min(slow, key=lambda each: (IN_TURN.index(each[1].reason), each[0]), default=None)
    return found[1] if found else None


def seconds_to_slow(current: Sequence[PodRecord], now: float) -> float:
    """Return the seconds until the next pod counts as slow to start; infinity without one.

    If the clock of its kubelet is ahead, it counts later.
    """
    begun = timestamp(now - SLOW_SECONDS)
    first = min((since for since, _ in _in_turn(current) if since > begun), default=None)
    return (
        math.inf if first is None else min(SLOW_SECONDS, SLOW_SECONDS - seconds_since(first, now))
    )


def _in_turn(current: Sequence[PodRecord]) -> Iterator[tuple[str, PodRecord]]:
    """Yield the pods that wait in their turn, and since when their kubelets have them, if any has.

    There may be thousands, so these times are compared as texts.
    """
    for pod in current:
        since = pod.started_at or pod.created_at
        if since and not pod.running and pod.live and pod.reason in IN_TURN:
            yield since, pod
