"""What to do about a job: hints, the next commands, and the section of the docs. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddpjob import names, why
from ddpjob.client.selection import whose_lines
from ddpjob.cluster import is_name

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
        case "Running" | "Restarting":
            return [f"ddpjob logs -f {name}{flags}"]
        case "Pending" | "Starting":
            return [f"ddpjob get -w {name}{flags}"]
        case "Suspended":
            return [f"ddpjob resume {name}{flags}"]
        case "Succeeded" | "Failed":
            return [f"ddpjob logs {name}{flags}"]
        case _:
            return []
