"""All that there is to say of a job, as `ddpjob describe -o json` has it. Pure.

It is read from the object as it is stored, since an older operator, or anybody with the right to
write a status, may have left out or added anything. All texts are printable.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ddpjob import names, why
from ddpjob.client import advice
from ddpjob.client.events import Event
from ddpjob.client.snapshot import Snapshot
from ddpjob.json_depth import Body
from ddpjob.text import printable_lines
from ddpjob.times import unix_seconds

# Characters of a message, and of a traceback.
MAX_MESSAGE, MAX_TRACEBACK = 1024, 4096
# Entries of `status.history`, and events, that are read.
MAX_ENTRIES = 10
# Ends of a round that are no failures.
NO_FAILURES = ("Succeeded", "Suspended", "SpecChanged", "AvoidanceOver")
# `failurePolicy.maxRestarts` of a job without a policy; a test compares it with the model.
DEFAULT_RESTARTS = 3
# Seconds after which a job that has no status has no operator.
UNSEEN_SECONDS = 15.0


def describe(job: Snapshot, events: Sequence[Event], *, now: float, flags: str = "") -> Body:
    """Return the description. `flags` are the options that lead to the job's cluster."""
    status = job.body.get("status") or {}
    attempts = history(status, job.processes_per_node)
    return {
        **job.to_record(),
        "since": since(job),
        "message": job.message,
        "unseen": is_unseen(job, now),
        "user": job.user or None,
        "image": why.text(job.body, "spec", "image", limit=MAX_MESSAGE) or None,
        "code": _code(job.body),
        "nodes": why.number(job.body, "spec", "nnodes") or 1,
        "processesPerNode": job.processes_per_node,
        "gpusPerNode": job.gpus_per_node,
        "ready": why.text(status, "summary", "nodes", limit=33) or None,
        "budget": _budget(job.body),
        "usefulTime": why.useful(status, now),
        "progress": _progress(status),
        "cause": _cause(job),
        "attempts": attempts,
        "events": [event.to_record() for event in events[-MAX_ENTRIES:]],
        "hints": advice.hints(job.name, flags, status, attempts),
        "next": advice.commands(job.name, flags, status, job.processes_per_node),
        "docs": advice.docs(status, job.reason),
    }


def since(job: Snapshot) -> str | None:
    """Return the time at which the job's state began, as far as it is known.

    No condition has it: Running stays False from a failure, or a suspension, into the next start.
    """
    status = job.body.get("status")
    if job.is_finished:
        return why.text(status, "completionTime", limit=64) or None
    found = why.text(status, "goodput", "since", limit=64)
    return found or why.text(job.body, "metadata", "creationTimestamp", limit=64) or None


def is_unseen(job: Snapshot, now: float) -> bool:
    """Return whether no operator has written a status, though there was time for it."""
    return not job.body.get("status") and now - (job.created or now) > UNSEEN_SECONDS


def history(status: Any, processes: int) -> list[dict[str, Any]]:
    """Return the rounds that are over, oldest first. `processes` are those of each pod."""
    found = why.part(status, "history")
    entries = found[-MAX_ENTRIES:] if isinstance(found, list) else []
    return [_attempt(entry, processes) for entry in entries if isinstance(entry, Mapping)]


def _attempt(entry: Mapping[str, Any], processes: int) -> dict[str, Any]:
    began, ended = (unix_seconds(why.text(entry, key)) for key in ("startTime", "endTime"))
    reason = why.text(entry, "reason", limit=63)
    return {
        "attempt": why.number(entry, "attempt") or 0,
        "round": why.number(entry, "round") or 0,
        "startTime": why.text(entry, "startTime", limit=64) or None,
        "endTime": why.text(entry, "endTime", limit=64) or None,
        "seconds": None if began is None or ended is None else max(0, int(ended - began)),
        "firstStep": why.number(entry, "firstStep"),
        "step": why.number(entry, "step"),
        "charged": why.part(entry, "charged") is True,
        "failed": reason not in NO_FAILURES,
        "reason": reason,
        **_details(entry, processes),
    }


def _details(failure: Mapping[str, Any], processes: int) -> dict[str, Any]:
    """Return what is known of a failure."""
    texts = {"pod": 253, "node": 253, "signal": 63, "exception": 253, "message": MAX_MESSAGE}
    found = {name: why.text(failure, name, limit=limit) or None for name, limit in texts.items()}
    rank, node_rank = why.place(failure, processes)
    exit_code = why.number(failure, "exitCode")
    return {**found, "rank": rank, "nodeRank": node_rank, "exitCode": exit_code}


def _cause(job: Snapshot) -> dict[str, Any] | None:
    failure = why.part(job.body, "status", "failure")
    if not isinstance(failure, Mapping):
        return None
    traceback = why.part(failure, "traceback")
    return {
        "attempt": why.number(failure, "attempt") or 0,
        "round": why.number(failure, "round") or 0,
        "reason": why.text(failure, "reason", limit=63),
        **_details(failure, job.processes_per_node),
        "time": why.text(failure, "time", limit=64) or None,
        "traceback": printable_lines(traceback, MAX_TRACEBACK)
        if isinstance(traceback, str)
        else "",
    }


def _code(body: Body) -> dict[str, Any] | None:
    sum_ = why.text(body, "spec", "code", "sha256", limit=64)
    revision = why.text(body, "metadata", "annotations", names.REVISION_ANNOTATION, limit=128)
    return {"sha256": sum_, "revision": revision or None} if sum_ else None


def _budget(body: Body) -> dict[str, int | None]:
    policy = why.part(body, "spec", "failurePolicy")
    most = why.number(policy, "maxRestarts")
    charged = why.number(body, "status", "budget", "charged") or 0
    return {"charged": charged, "max": DEFAULT_RESTARTS if most is None else most}


def _progress(status: Any) -> dict[str, Any] | None:
    progress = why.part(status, "progress")
    if not isinstance(progress, Mapping):
        return None
    return {
        "step": why.number(progress, "step"),
        "totalSteps": why.number(progress, "totalSteps"),
        "loss": why.text(progress, "loss", limit=32) or None,
        "samplesPerSecond": why.text(progress, "samplesPerSecond", limit=32) or None,
        "etaSeconds": why.number(progress, "etaSeconds"),
        "updatedAt": why.text(progress, "updatedAt", limit=64) or None,
    }
