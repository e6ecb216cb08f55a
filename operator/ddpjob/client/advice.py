"""What to do about a job: hints, the next commands, and the section of the docs. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.selection import whose_lines
from ddpjob.cluster import is_name

# Reasons that have a section in docs/reasons.md. A kubelet has more.
DOCUMENTED = frozenset(
    (
        *("Invalid", "NameTaken", "LauncherNone", "Starting", "CreateRefused", "Unschedulable"),
        *("Suspending", "Suspended", "NoStep", "Hang", "MaxRestartsExceeded", "NoProgress"),
        *("FailurePolicy", "LaunchFailed", "DeadlineExceeded", "Exception", "ExitCode", "Signal"),
        *("OOMKilled", "Rendezvous", "InitContainerFailed", "Preempted", "Evicted", "PodDeleted"),
        *("NodeLost", "NodeSilent", "NodeRefused", "ResultUnknown", "StartupDeadlineExceeded"),
        *("SpecChanged", "AvoidanceOver"),
    )
)
# Failures on one node from which it is worth a hint.
SUSPICIOUS = 2

Attempts = Sequence[Mapping[str, Any]]


def docs(status: Any) -> str | None:
    """Return the address of the section on the reason of the job's state; None without one."""
    running = why.condition(status, "Running")
    reasons = [why.text(why.condition(status, kind), "reason") for kind in ("Accepted", "Stalled")]
    if why.state(status) in ("Failed", "Restarting"):
        reasons.append(why.text(status, "failure", "reason"))
        reasons.append(why.text(why.condition(status, "Failed"), "reason"))
    if running.get("status") != "True":
        reasons.append(why.text(running, "reason"))
    plain = ("Starting", "Suspended")
    known = [reason for reason in reasons if reason in DOCUMENTED and reason not in plain]
    return f"{names.DOCS}/reasons.md#{known[0].lower()}" if known else None


def hints(name: str, flags: str, status: Any, attempts: Attempts) -> list[str]:
    """Return what a look at the attempts suggests, in lines."""
    found = []
    nodes = Counter(each["node"] for each in attempts if each["node"] and each["failed"])
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
