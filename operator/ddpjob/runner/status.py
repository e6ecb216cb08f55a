"""What a kubelet writes into the status of a pod. Pure."""

from datetime import datetime

from ddpjob.json_depth import Body
from ddpjob.times import written

# A kubelet reads no more bytes of a termination message.
MESSAGE_BYTES = 4096
# The kubelet's exit code for a container whose process it cannot find.
LOST = 137


def running(status: Body, container: Body, *, address: str, host: str, now: datetime) -> Body:
    """Return the status of a pod whose container has started and is ready."""
    state = {"running": {"startedAt": written(now)}}
    new = _status(status, container, "Running", state, now=now)
    addresses = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": host}
    return new | addresses | {"hostIPs": [{"ip": host}]}


def terminated(
    status: Body, container: Body, *, code: int, message: str, now: datetime, reason: str = ""
) -> Body:
    """Return the status of a pod whose container has ended.

    `code` is the exit code, or minus the number of a signal.
    """
    ended: Body = {"exitCode": code if code >= 0 else 128 - code}
    if code < 0:
        ended["signal"] = -code
    ended["reason"] = reason or ("Error" if code else "Completed")
    if message:
        ended["message"] = message.encode()[-MESSAGE_BYTES:].decode(errors="ignore")
    ended["startedAt"] = _started_at(status) or written(now)
    ended["finishedAt"] = written(now)
    phase = "Failed" if code else "Succeeded"
    return _status(status, container, phase, {"terminated": ended}, now=now)


def deadline_exceeded(status: Body) -> Body:
    """Return the status of a pod that its activeDeadlineSeconds has ended."""
    message = "Pod was active on the node longer than the specified deadline"
    return status | {"phase": "Failed", "reason": "DeadlineExceeded", "message": message}


def _started_at(status: Body) -> str | None:
    for container in status.get("containerStatuses") or []:
        started: str | None = container["state"].get("running", {}).get("startedAt")
        return started
    return None


def _status(status: Body, container: Body, phase: str, state: Body, *, now: datetime) -> Body:
    ready = "running" in state
    container_status = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }
    reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    conditions = [
        _condition("Initialized", True, None, now),
        _condition("ContainersReady", ready, None if ready else reason, now),
        _condition("Ready", ready, None if ready else reason, now),
    ]
    return status | {
        "phase": phase,
        "startTime": status.get("startTime") or written(now),
        "containerStatuses": [container_status],
        "conditions": _merge(status.get("conditions") or [], conditions),
    }


def _condition(kind: str, holds: bool, reason: str | None, now: datetime) -> Body:
    since = {"lastTransitionTime": written(now)} | ({"reason": reason} if reason else {})
    return {"type": kind, "status": "True" if holds else "False", **since}


def _merge(old: list[Body], new: list[Body]) -> list[Body]:
    """Conditions of others stay; ours keep the time of their last change."""
    known = {condition["type"]: condition for condition in old}
    for condition in new:
        before = known.get(condition["type"], {})
        if before.get("status") == condition["status"] and "lastTransitionTime" in before:
            condition = {**condition, "lastTransitionTime": before["lastTransitionTime"]}
        known[condition["type"]] = condition
    return list(known.values())
