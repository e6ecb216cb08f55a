"""All that there is to say of a job, as `ddpjob describe -o json` has it. Pure.

It is read from the object as it is stored: an older operator may have left out anything. Messages
and reasons are printable; all the rest is as the API server has checked it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddpjob import names, why
from ddpjob.client.follow import whose_lines
from ddpjob.client.snapshot import Event, Snapshot
from ddpjob.cluster import is_name
from ddpjob.json_depth import Body
from ddpjob.text import printable_lines
from ddpjob.times import unix_seconds

# Characters of a message, and of a traceback.
MAX_MESSAGE, MAX_TRACEBACK = 1024, 4096
# Entries of `status.history`, and events, that are read.
MAX_ENTRIES = 10
# Ends of a round that are no failures.
NO_FAILURES = (
    *("Succeeded", "Suspended", "SpecChanged", "AvoidanceOver", "GroupResized"),
    "Updated",
)
# `failurePolicy.maxRestarts` of a job without a policy; a test compares it with the model.
DEFAULT_RESTARTS = 3
# Seconds after which a job that has no status has no operator.
UNSEEN_SECONDS = 15.0


def describe(job: Snapshot, events: Sequence[Event], *, now: float, flags: str = "") -> Body:
    """Return the description. `flags` are the options that lead to the job's cluster."""
    status = job.body.get("status") or {}
    entries = status.get("history", [])[-MAX_ENTRIES:]
    attempts = [_attempt(job, entry) for entry in entries]
    nodes = why.number(job.body, "spec", "nnodes") or 1
    return {
        **job.to_record(),
        "since": since(job),
        "message": job.message,
        # No operator has written a status, though there was time for it.
        "unseen": not status and now - (job.created or now) > UNSEEN_SECONDS,
        "user": job.user or None,
        "image": why.text(job.body, "spec", "image", limit=MAX_MESSAGE) or None,
        "code": _code(job.body),
        "revision": job.revision,
        "nodes": nodes,
        "size": job.nnodes if job.nnodes < job.most_nodes else nodes,
        "spares": job.spares,
        "processesPerNode": job.processes_per_node,
        "gpusPerNode": job.gpus_per_node,
        "ready": why.text(status, "summary", "nodes", limit=33) or None,
        "budget": _budget(job.body),
        "usefulTime": why.useful(status, now),
        "progress": _progress(status),
        "cause": _cause(job),
        "attempts": attempts,
        "events": [event.to_record() for event in events[-MAX_ENTRIES:]],
        "hints": hints(job.name, flags, status, attempts),
        "next": commands(job.name, flags, status, job.processes_per_node),
        "docs": docs(status, job.reason),
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


def _attempt(job: Snapshot, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a round of the job that is over."""
    began, ended = (unix_seconds(why.text(entry, key)) for key in ("startTime", "endTime"))
    details = _details(job, entry)
    fields = ("startTime", "endTime", "firstStep", "step")
    return {
        **details,
        **{field: entry.get(field) for field in fields},
        "seconds": None if began is None or ended is None else max(0, int(ended - began)),
        "charged": entry.get("charged", False),
        "failed": details["reason"] not in NO_FAILURES,
    }


def _details(job: Snapshot, failure: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the failure with which a round ended, or of another end of it."""
    texts = ("pod", "node", "signal", "exception", "message")
    status = job.body.get("status")
    rank, node_rank = why.place(status, failure, job.processes_per_node)
    return {
        "attempt": failure.get("attempt", 0),
        "round": failure.get("round", 0),
        "reason": why.text(failure, "reason"),
        "exitCode": failure.get("exitCode"),
        **{name: why.text(failure, name, limit=MAX_MESSAGE) or None for name in texts},
        "rank": rank,
        "nodeRank": node_rank,
        "revision": failure.get("revision", 1),
    }


def _cause(job: Snapshot) -> dict[str, Any] | None:
    failure = why.part(job.body, "status", "failure")
    if failure is None:
        return None
    return {
        **_details(job, failure),
        "time": failure.get("time"),
        "traceback": printable_lines(failure.get("traceback", ""), MAX_TRACEBACK),
    }


def _code(body: Body) -> dict[str, Any] | None:
    sum_ = why.text(body, "spec", "code", "sha256", limit=64)
    revision = why.text(body, "metadata", "annotations", names.REVISION_ANNOTATION, limit=128)
    return {"sha256": sum_, "revision": revision or None} if sum_ else None


def _budget(body: Body) -> dict[str, int | None]:
    most = why.number(body, "spec", "failurePolicy", "maxRestarts")
    charged = why.number(body, "status", "budget", "charged") or 0
    return {"charged": charged, "max": DEFAULT_RESTARTS if most is None else most}


def _progress(status: Any) -> dict[str, Any] | None:
    progress = why.part(status, "progress")
    fields = ("step", "totalSteps", "loss", "samplesPerSecond", "etaSeconds", "updatedAt")
    return None if progress is None else {field: progress.get(field) for field in fields}


# A reason, as docs/reasons.md has a section for each of ours.
REASON = re.compile(r"[A-Z][A-Za-z]+")
# Failures on one node from which it is worth a hint, if the node may be to blame: lost, silent, or
# with a GPU, a driver or a disk that fails. A failed assertion on a device is the script's.
SUSPICIOUS = 2
NODES_REASONS = frozenset(("NodeLost", "NodeSilent", "NodeRefused"))
HARDWARE = re.compile(
    r"\bECC\b|\bXid\b|CUDA error(?!: device-side assert)|CUDA driver|fallen off the bus"
    r"|\bNVML\b|(?i:nccl \w+ error|bus error|input/output error|remote i/o error)"
)

# What a refusal says, and what to do about it: by the job's user, or by somebody else.
REFUSALS = (
    (r"\bpolicy\.(\w+)", r"change the job, or ask who installed ddpjob to allow it: policy.\1"),
    (r"exceeded quota", "ask for less, or ask an admin of the namespace for a larger quota"),
    (
        r"violates PodSecurity",
        "change spec.template, or ask an admin of the namespace for another Pod Security level",
    ),
    (r'admission webhook "([\w.-]+)"', r"change the job, or ask who runs the webhook \1"),
    (r"ValidatingAdmissionPolicy '([\w.-]+)'", r"change the job, or ask who made the policy \1"),
    (r"\ANameTaken", "delete the object that has the name, or submit the job under another one"),
    (r"\AInvalid", "change the field, or submit the job anew with another value"),
)

Attempts = Sequence[Mapping[str, Any]]


def docs(status: Any, reason: str) -> str | None:
    """Return the address of the section on `reason`, the job's reason in one line; None without it.

    Of a job that runs it is the one on hangs, if none can be found yet. A kubelet's reason may have
    no section: then the address is the page's.
    """
    failure, state = why.text(status, "failure", "reason"), why.state(status)
    stalled = why.condition(status, "Stalled")
    words = [_word(reason)]
    if is_because_of(failure, state, reason):
        words.insert(0, failure)
    elif state == "Running" and not reason and stalled.get("status") != "False":
        words = [why.text(stalled, "reason")]
    for word in filter(None, words):
        if REASON.fullmatch(word):
            return f"{names.DOCS}/reasons.md#{word.lower()}"
    return None


def is_because_of(failure: str, state: str, reason: str) -> bool:
    """Return whether a job is as it is because of its last failure, whose reason is `failure`.

    It may wait for something else by now, or have failed by its deadline. `reason` is in one line.
    """
    if state == "Failed":
        return _word(reason) != "DeadlineExceeded"
    return state == "Restarting" and _word(reason) in ("", failure)


def _word(reason: str) -> str:
    return reason.partition(":")[0].partition(" ")[0]


def hints(name: str, flags: str, status: Any, attempts: Attempts) -> list[str]:
    """Return what a look at the attempts suggests, in lines."""
    refusal = why.refusal(status)
    matches = ((re.search(pattern, refusal), words) for pattern, words in REFUSALS)
    found = [match.expand(words) for match, words in matches if match][:1]
    nodes = Counter(each["node"] for each in attempts if each["node"] and _blames_node(each))
    for node, count in nodes.most_common(3):
        # Somebody will copy the command, and the name may be anybody's text.
        if count >= SUSPICIOUS and is_name(node) and why.state(status) != "Succeeded":
            again = f"ddpjob suspend {name}{flags}, then resume --exclude-node {node}"
            if why.state(status) == "Failed":
                again = f"ddpjob rerun {name}{flags} --exclude-node {node}"
            found.append(f"{count} failures on {node}: {again}")
    reason = why.text(status, "failure", "reason")
    if why.state(status) in ("Failed", "Restarting") and reason == "OOMKilled":
        found.append("raise resources.limits.memory; /dev/shm (spec.shm) counts against it")
    return found


def _blames_node(attempt: Mapping[str, Any]) -> bool:
    """Return whether a round may have ended because of its node, and hardly of the script."""
    words = f"{attempt['exception']} {attempt['message']}"
    return attempt["reason"] in NODES_REASONS or HARDWARE.search(words) is not None


def commands(name: str, flags: str, status: Any, processes: int) -> list[str]:
    """Return the commands with which somebody would go on. `processes` are those of each pod."""
    match why.state(status):
        case "Failed" | "Restarting" if found := whose_lines(status, processes):
            attempt, (kind, number) = why.number(status, "failure", "attempt") or 0, found
            return [f"ddpjob logs {name}{flags} --attempt {attempt} --{kind} {number}"]
        case "Idle":
            return [f"ddpjob update {name}{flags} --code DIR", f"ddpjob logs {name}{flags}"]
        case "Running" | "Restarting":
            return [f"ddpjob logs -f {name}{flags}"]
        case "Pending" | "Queued" | "Starting":
            return [f"ddpjob get -w {name}{flags}"]
        case "Suspended":
            return [f"ddpjob resume {name}{flags}"]
        case "Succeeded" | "Failed":
            return [f"ddpjob logs {name}{flags}"]
        case _:
            return []
