"""Every reason that a status can give; docs/reasons.md says what each means. Pure."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Reason:
    """A reason of a condition of `status.conditions`."""

    condition: str
    name: str
    value: bool | None
    """The condition's truth; None is Unknown."""


ACCEPTED = Reason("Accepted", "Accepted", True)
INVALID = Reason("Accepted", "Invalid", False)
NAME_TAKEN = Reason("Accepted", "NameTaken", False)
LAUNCHER_NONE = Reason("AgentAbsent", "LauncherNone", True)
AGENT_RUNS = Reason("AgentAbsent", "AgentRuns", False)
STARTING = Reason("Running", "Starting", False)
ALL_NODES_RUNNING = Reason("Running", "AllNodesRunning", True)
CREATE_REFUSED = Reason("Running", "CreateRefused", False)
UNSCHEDULABLE = Reason("Running", "Unschedulable", False)
UNSCHEDULED = Reason("Running", "Unscheduled", False)
QUEUED = Reason("Running", "Queued", False)
PULLING = Reason("Running", "Pulling", False)
POD_INITIALIZING = Reason("Running", "PodInitializing", False)
CONTAINER_CREATING = Reason("Running", "ContainerCreating", False)
GROUP_RESIZED = Reason("Running", "GroupResized", False)
UPDATED = Reason("Running", "Updated", False)
IDLE = Reason("Running", "Idle", False)
NOT_RUNNING_SUSPENDED = Reason("Running", "Suspended", False)
FINISHED = Reason("Running", "Finished", False)
SUSPENDING = Reason("Suspended", "Suspending", False)
SUSPENDED = Reason("Suspended", "Suspended", True)
RESUMED = Reason("Suspended", "Resumed", False)
NO_STEP = Reason("Stalled", "NoStep", None)
PROGRESS = Reason("Stalled", "Progress", False)
NOT_WATCHED = Reason("Stalled", "NotWatched", False)
STALLED = Reason("Stalled", "Hang", True)
ALL_RANKS_SUCCEEDED = Reason("Complete", "AllRanksSucceeded", True)
RANK0_SUCCEEDED = Reason("Complete", "Rank0Succeeded", True)
MAX_RESTARTS_EXCEEDED = Reason("Failed", "MaxRestartsExceeded", True)
NO_PROGRESS = Reason("Failed", "NoProgress", True)
FAILURE_POLICY = Reason("Failed", "FailurePolicy", True)
LAUNCH_FAILED = Reason("Failed", "LaunchFailed", True)
CODE_REFUSED = Reason("Failed", "CodeInvalid", True)
DEADLINE_EXCEEDED = Reason("Failed", "DeadlineExceeded", True)

OWN_CONDITIONS = (
    "Accepted",
    "AgentAbsent",
    "Running",
    "Suspended",
    "Stalled",
    "Complete",
    "Failed",
)


def because(reason: Reason, name: str) -> Reason:
    """Return `reason` under another name: that of a failure, or one that a kubelet gave."""
    return replace(reason, name=name)


# The agent's names; it writes them into termination messages. The first one is success.
COMPLETED = "Completed"
EXCEPTION = "Exception"
EXIT_CODE = "ExitCode"
SIGNAL = "Signal"
OOM_KILLED = "OOMKilled"
HANG = "Hang"
PEER_ENDED = "PeerEnded"
RENDEZVOUS = "Rendezvous"
NOTHING_TO_LAUNCH = "LaunchFailed"
CODE_INVALID = "CodeInvalid"
# Kubernetes' names.
PREEMPTED = "Preempted"
EVICTED = "Evicted"
# Ours.
NODE_LOST = "NodeLost"
NODE_SILENT = "NodeSilent"  # the agent's as well
NODE_REFUSED = "NodeRefused"
POD_DELETED = "PodDeleted"
RESULT_UNKNOWN = "ResultUnknown"
NOT_STARTED = "StartupDeadlineExceeded"
SPEC_CHANGED = "SpecChanged"
AVOIDANCE_OVER = "AvoidanceOver"
INIT_CONTAINER_FAILED = "InitContainerFailed"
FOREIGN_ORDER = "ForeignOrder"

# Failures of processes, after which their pod is as good as a new one.
IN_PLACE = (EXCEPTION, EXIT_CODE, SIGNAL, HANG, OOM_KILLED, PEER_ENDED)
# Losses of pods, after which the others may go on.
REPLACEABLE = (PREEMPTED, EVICTED, POD_DELETED, NODE_SILENT, NODE_REFUSED)

# Failures that are not the training's fault, so restarts because of them do not count.
UNCOUNTED = frozenset(
    (
        *(PREEMPTED, EVICTED, POD_DELETED, NODE_LOST, NODE_SILENT, NODE_REFUSED, RESULT_UNKNOWN),
        *(NOT_STARTED, SPEC_CHANGED, AVOIDANCE_OVER),
    )
)
