"""How a played pod lives, and the status that a kubelet would write of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Pod = dict[str, Any]
KILLED = 137
TERMINATED = 143


@dataclass(frozen=True)
class End:
    """How a pod ends: what its containers and its status say."""

    exit_code: int = 0
    message: str = ""  # the termination log
    reason: str = ""  # of the containers; default Completed or Error; `OOMKilled` is another
    pod_reason: str = ""  # of the pod: `Evicted`, `DeadlineExceeded`
    disruption: str = ""  # reason of the condition DisruptionTarget, set where not empty


@dataclass(frozen=True)
class Life:
    """What becomes of a pod, in seconds. The default starts at once and runs until it is told."""

    start_seconds: float = 0.0  # from its binding to Running
    run_seconds: float | None = None  # from Running to its end; None: for ever
    end: End = End()
    stop_seconds: float = 0.0  # from a deletion or deadline to its end; killed after its grace
    stop_end: End = End(exit_code=TERMINATED)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, status: bool, reason: str = "") -> dict[str, Any]:
    condition = {"type": kind, "status": str(status), "lastTransitionTime": _now()}
    return {**condition, "reason": reason} if reason else condition


def _containers(pod: Pod, state: dict[str, Any], *, ready: bool) -> list[dict[str, Any]]:
    uid = pod["metadata"]["uid"]
    return [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "containerID": f"played://{uid}/{container['name']}",
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]


def running(pod: Pod, number: int, address: str = "") -> dict[str, Any]:
    """Status of a running pod. Its address is on loopback, by default one where nobody listens."""
    address = address or f"127.{64 + (number >> 16) % 64}.{number >> 8 & 255}.{number & 255}"
    return {
        "phase": "Running",
        "startTime": _now(),
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            _condition(kind, True)
            for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": _containers(pod, {"running": {"startedAt": _now()}}, ready=True),
    }


def ended(pod: Pod, end: End) -> dict[str, Any]:
    """Status of a pod that has ended."""
    good = end.exit_code == 0 and not end.pod_reason
    reason = "PodCompleted" if good else "PodFailed"
    conditions = [_condition(kind, False, reason) for kind in ("ContainersReady", "Ready")]
    if end.disruption:
        conditions.append(_condition("DisruptionTarget", True, end.disruption))
    terminated = {
        "exitCode": end.exit_code,
        "reason": end.reason or ("Completed" if end.exit_code == 0 else "Error"),
        "message": end.message,
        "startedAt": pod["status"].get("startTime", _now()),
        "finishedAt": _now(),
    }
    status = {
        "phase": "Succeeded" if good else "Failed",
        "conditions": conditions,
        "containerStatuses": _containers(pod, {"terminated": terminated}, ready=False),
    }
    return {**status, "reason": end.pod_reason} if end.pod_reason else status
