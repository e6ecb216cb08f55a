"""Every reason that a status can give, once: its condition, its meaning, and what to do. Pure.

The tables of docs/operations.md and docs/reasons.md are generated from here (`make generate`). This
file is longer than 400 lines because each reason stands once, with all that users read of it.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Reason:
    """A reason of a condition of `status.conditions`."""

    condition: str
    name: str
    value: bool | None
    """The condition's truth; None is Unknown."""
    means: str
    do: str = ""


@dataclass(frozen=True)
class FailureReason:
    """A reason of `status.failure`."""

    name: str
    means: str
    do: str
    counts: bool = True
    """Whether such a failure counts towards `maxRestarts`, unless a rule decides otherwise."""
    exception: str = ""
    """When the opposite holds, if ever."""
    loss: str = ""
    """How a pod or its node gets lost so, if it is a loss and no failure of the training."""
    follows: str = ""
    """What the operator does then."""


ACCEPTED = Reason("Accepted", "Accepted", True, "The job can be rendered and its names are free.")
INVALID = Reason(
    "Accepted",
    "Invalid",
    False,
    "The job is too large (64 KiB as JSON beside `template` and `master.template`, 32 KiB for each "
    "of these two), or the overlay, a mount, an expression or the installation's allow-list "
    "forbids it. The message names the field. While a job runs, the reason is about an edit: the "
    "pods run on, but the next attempt cannot start.",
    "Correct the job, or have `policy.*` of the chart changed. `ddpjob validate FILE` checks a job "
    "file.",
)
NAME_TAKEN = Reason(
    "Accepted",
    "NameTaken",
    False,
    "A Service, ConfigMap, NetworkPolicy or pod of that name does not belong to this job, and the "
    "operator never adopts it. A pod that names this job as its owner, but that the operator has "
    "not made, is deleted (a pod of an attempt that has not begun: once it is 60 s old). If "
    "a finalizer keeps it, the message names that. Or somebody edited the job's own Service.",
    "Delete or rename one of the two. The job goes on by itself.",
)
LAUNCHER_NONE = Reason(
    "AgentAbsent",
    "LauncherNone",
    True,
    "The image's entry point runs without the agent.",
    "Set `command`, to get progress and first causes.",
)
AGENT_RUNS = Reason("AgentAbsent", "AgentRuns", False, "Since an edit the agent runs again.")
STARTING = Reason("Running", "Starting", False, "Pods are being created.")
ALL_NODES_RUNNING = Reason("Running", "AllNodesRunning", True, "Every node runs or has ended well.")
CREATE_REFUSED = Reason(
    "Running",
    "CreateRefused",
    False,
    "The API server refuses pods: by a quota, an admission policy or Pod Security. The message has "
    "its text. Or it has failed to create them for 5 s, for example because a webhook does not "
    "answer.",
    "Lift the refusal. The operator tries again with growing pauses, 60 s at most.",
)
UNSCHEDULABLE = Reason(
    "Running",
    "Unschedulable",
    False,
    "No node has room. The message is the scheduler's.",
    "Wait, or ask for less: `ddpjob suspend NAME --wait`, then `ddpjob resume NAME --set "
    "resources.limits.cpu=500m`. `startupDeadlineSeconds` ends the waiting. `ddpjob doctor` shows "
    "the free GPUs.",
)
IMAGE_PULL = Reason(
    "Running",
    "ErrImagePull, ImagePullBackOff",
    False,
    "A kubelet cannot pull the image. The message is the kubelet's.",
    "Correct the image: `ddpjob suspend NAME --wait`, then `ddpjob resume NAME --set image=IMAGE`. "
    "With kubectl: set `suspend`, edit `image` once the state is Suspended, and unset it.",
)
PULLING = Reason(
    "Running",
    "Pulling",
    False,
    "A pod has waited for 10 s or more, and only an image is missing: its kubelet pulls it, or "
    "other pulls come first. The message names the image and the pod. Kubelets before Kubernetes "
    "1.36 do not show this, so the reason is `ContainerCreating` there.",
    "Wait: `ddpjob get -w NAME` shows when it goes on. The kubelet's events about the pull are in "
    "`kubectl describe pod POD`.",
)
POD_INITIALIZING = Reason(
    "Running",
    "PodInitializing",
    False,
    "A pod has been at its init containers for 10 s or more. The message names the one that runs.",
    "Read that container's log: `ddpjob logs NAME -c CONTAINER --all`.",
)
CONTAINER_CREATING = Reason(
    "Running",
    "ContainerCreating",
    False,
    "A kubelet has had a pod for 10 s or more, and its volumes, its network or its image are not "
    "there. Before Kubernetes 1.36 a pod does not show which of them; it is mostly the image.",
    "`ddpjob describe NAME` names the pod. Its events say what it waits for: `kubectl describe pod "
    "POD`.",
)
RESTARTING = Reason(
    "Running",
    "*reason of a failure*",
    False,
    "The group starts again. The next table has these reasons.",
)
NOT_RUNNING_SUSPENDED = Reason("Running", "Suspended", False, "The job is suspended.")
FINISHED = Reason("Running", "Finished", False, "The job has succeeded or failed.")
SUSPENDING = Reason(
    "Suspended", "Suspending", False, "Pods have their grace period to save; then they are gone."
)
SUSPENDED = Reason("Suspended", "Suspended", True, "No pod runs.")
RESUMED = Reason("Suspended", "Resumed", False, "`suspend` was set to false.")
NO_STEP = Reason(
    "Stalled",
    "NoStep",
    None,
    "`hangTimeoutSeconds` is set, but no step of this attempt has been seen, so nothing can hang "
    "yet.",
    "`ddpjob stacks NAME` shows where the ranks are. If no step ever comes, see "
    "[troubleshooting](troubleshooting.md#no-step-no-loss).",
)
PROGRESS = Reason("Stalled", "Progress", False, "The training makes steps.")
NOT_WATCHED = Reason("Stalled", "NotWatched", False, "Since an edit `hangTimeoutSeconds` is 0.")
STALLED = Reason(
    "Stalled",
    "Hang",
    True,
    "A hang has ended the attempt, or the job. The condition stays True until the next attempt "
    "makes a step.",
    "`ddpjob describe NAME` names the rank (`status.failure`). The log of its node has the stacks: "
    "`ddpjob logs NAME --node N`.",
)
ALL_RANKS_SUCCEEDED = Reason(
    "Complete", "AllRanksSucceeded", True, "All ranks have ended with exit code 0."
)
RANK0_SUCCEEDED = Reason(
    "Complete",
    "Rank0Succeeded",
    True,
    "Rank 0 has ended with exit code 0, and `successPolicy` is `Rank0`.",
)
MAX_RESTARTS_EXCEEDED = Reason(
    "Failed",
    "MaxRestartsExceeded",
    True,
    "One failure more than `maxRestarts` was counted. The message has the last one.",
    "`ddpjob describe NAME` has the last failure and those before it (`status.failure`, "
    "`status.history`). Mend the cause, and create the job anew; `ddpjob rerun NAME` does so with "
    "the same spec and code.",
)
NO_PROGRESS = Reason(
    "Failed",
    "NoProgress",
    True,
    "Three counted failures in a row happened at one step, whatever `maxRestarts` is. A failure "
    "before any step begins the row anew.",
    "Look at what that step does: `ddpjob describe NAME` has the failures, and `ddpjob logs NAME` "
    "the last lines of the rank that failed first.",
)
FAILURE_POLICY = Reason(
    "Failed",
    "FailurePolicy",
    True,
    "A rule has `action: FailJob`. The message names the rule.",
    "Mend what `ddpjob describe NAME` names (`status.failure`), or change the rule, and create the "
    "job anew.",
)
LAUNCH_FAILED = Reason(
    "Failed",
    "LaunchFailed",
    True,
    "There is nothing to launch, so every attempt would fail in the same way. The next table "
    "has more.",
    "Correct the job or its image, and create the job anew.",
)
CODE_REFUSED = Reason(
    "Failed",
    "CodeInvalid",
    True,
    "The archive of `spec.code` is refused, so every attempt would fail in the same way. The next "
    "table has more.",
    "Make the archive and the job anew.",
)
DEADLINE_EXCEEDED = Reason(
    "Failed",
    "DeadlineExceeded",
    True,
    "The job was active for longer than `activeDeadlineSeconds`.",
    "Create the job anew with a longer deadline: `ddpjob rerun NAME --set "
    "activeDeadlineSeconds=86400`. With a checkpoint it goes on where it was.",
)

CONDITIONS = (
    *(ACCEPTED, INVALID, NAME_TAKEN, LAUNCHER_NONE, AGENT_RUNS),
    *(STARTING, ALL_NODES_RUNNING, CREATE_REFUSED, UNSCHEDULABLE, IMAGE_PULL),
    *(PULLING, POD_INITIALIZING, CONTAINER_CREATING, RESTARTING),
    *(NOT_RUNNING_SUSPENDED, FINISHED, SUSPENDING, SUSPENDED, RESUMED),
    *(NO_STEP, PROGRESS, NOT_WATCHED, STALLED),
    *(ALL_RANKS_SUCCEEDED, RANK0_SUCCEEDED),
    *(MAX_RESTARTS_EXCEEDED, NO_PROGRESS, FAILURE_POLICY, LAUNCH_FAILED, CODE_REFUSED),
    DEADLINE_EXCEEDED,
)
"""Every reason of a condition. Those of a failure and of a kubelet stand for many."""


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

FAILURES = (
    FailureReason(
        EXCEPTION,
        "The script ended with an uncaught exception. `exception` is its type, and `message` is "
        "its last line.",
        do="Read the traceback, which `ddpjob describe NAME` shows (`status.failure`), and the "
        "lines before it in the log of that rank: `ddpjob logs NAME`.",
    ),
    FailureReason(
        EXIT_CODE,
        "A rank ended with `exitCode`, without an exception. The message has what `sys.exit` or "
        "argparse printed.",
        do="Look for where the script exits with that code. The log of the rank has what it "
        "printed before: `ddpjob logs NAME`.",
    ),
    FailureReason(
        SIGNAL,
        "`signal` ended a rank.",
        do="SIGSEGV and SIGABRT come from native code: `ddpjob logs NAME` has its last words, and "
        "`PYTHONFAULTHANDLER=1` in `spec.env` adds the Python stack. SIGKILL without "
        "`OOMKilled` comes from outside, for example from the node's own memory shortage: "
        "`kubectl describe node NODE` names it.",
    ),
    FailureReason(
        OOM_KILLED,
        "The memory limit was reached. The kernel counts the end of one process, and the kubelet "
        "reports that of a whole container.",
        do="Raise the limit, as with `ddpjob rerun NAME --set resources.limits.memory=32Gi`, or "
        "use less: smaller batches, fewer data-loader workers. /dev/shm counts against the limit.",
    ),
    FailureReason(
        HANG,
        "No step was made for `hangTimeoutSeconds`. The message has the last step, and the place "
        "of the rank that the others wait for.",
        do="The log of each node has the stacks of its ranks at that moment: `ddpjob logs NAME "
        "--node N`. Mostly one rank takes another path than the others, or waits for data. If the "
        "step is only slow, raise `hangTimeoutSeconds`.",
    ),
    FailureReason(
        PEER_ENDED,
        "A rank ended with exit code 0 while others still waited for it, in a gradient's "
        "all-reduce, a barrier or another collective. The message has the last step of both; "
        "`traceback` tells where the other one waited.",
        do="Give all ranks the same number of steps: `DistributedSampler` and `drop_last=True`, or "
        "DDP's `join()` where the rows differ. If they have it, look for a rank that leaves its "
        "loop early, or skips a collective that the others are in.",
    ),
    FailureReason(
        RENDEZVOUS,
        "The group did not come together in 15 minutes. The message has the address that the "
        "nodes waited for.",
        do="Look whether a NetworkPolicy or a service mesh lies between the pods, and whether "
        "the cluster's DNS answers for the job's Service.",
        exception="not if some node never ran",
    ),
    FailureReason(
        NOTHING_TO_LAUNCH,
        "The launcher could not start the script: the file or module does not exist, the image "
        'has no torch or no python3 (`StartError` with "executable file not found in $PATH"), '
        "or an option is wrong. The job fails at once. It restarts if a step of it was seen "
        "before, because then the script is missing on some node alone. It restarts too if an "
        "exception ended the launcher, which may be the network's (`exception` names it). A rule "
        "with this reason in `onReasons` and `action: Restart` has every launch tried again; "
        "`avoidNode: true` helps against one bad node.",
        do="Correct `args`, `launcher` or the image, and create the job anew. `args` begins with "
        "the script, or with `-m` and a module.",
    ),
    FailureReason(
        CODE_INVALID,
        "The code of `spec.code` could not be unpacked. The archive has another SHA-256 than "
        "`spec.code.sha256`, or something in it is not a plain file or folder ([code](code.md)): "
        "the job fails at once, unless a step of it was seen before. Or a ConfigMap or a file is "
        "missing, or a disk is full (`exception` names the error): the group restarts.",
        do="Make the archive and the job anew; `ddpjob validate --code FILE` checks an archive. "
        "Where a ConfigMap is missing, create it, or let `ddpjob submit` do so.",
    ),
    FailureReason(
        INIT_CONTAINER_FAILED,
        "An init container failed. The message has its name, its exit code and its last line.",
        do="Read that container's log: `ddpjob logs NAME` shows it.",
    ),
    FailureReason(
        FOREIGN_ORDER,
        "The pods were restarted in place, and the operator had not ordered it: somebody has the "
        "job's token (an annotation of its Service, which the role `view` may read) and reaches "
        "the agent's port. The message has both rounds.",
        do="Find out who it was. The job's NetworkPolicy keeps other pods from the port where the "
        "cluster's network enforces it (`networkPolicy.enabled`).",
    ),
    FailureReason(
        "Error, StartError …",
        "The kubelet's reason, where the agent left none.",
        do="`ddpjob describe NAME` names the pod. The kubelet's events have the details: `kubectl "
        "describe pod POD`.",
    ),
    FailureReason(
        PREEMPTED,
        "A pod of higher priority took the node. Or the ranks were asked to end, saved, and ended "
        "with exit code 75.",
        do="Nothing is wrong with the training. Give the job a higher priority in `template` if "
        "it should not be preempted.",
        counts=False,
        loss="A pod is preempted, or its ranks saved and ended with exit code 75",
        follows="The group restarts. The other ranks have their grace period to save with it.",
    ),
    FailureReason(
        EVICTED,
        "Kubernetes evicted the pod.",
        do="The message has Kubernetes' reason. Where it is a node's memory or disk, set "
        "requests that the ranks really need.",
        counts=False,
        loss="A pod is evicted",
        follows="The group restarts. The other ranks have their grace period to save with it.",
    ),
    FailureReason(
        POD_DELETED,
        "Somebody deleted the pod.",
        do="Nothing, if somebody drained the node or deleted the pod on purpose.",
        counts=False,
        loss="Somebody deletes a pod",
        follows="The group restarts. The other ranks have their grace period to save with it.",
    ),
    FailureReason(
        NODE_LOST,
        "The pod's node no longer answers.",
        do="`ddpjob describe NAME` names the node. Look at it: `kubectl describe node NODE`.",
        counts=False,
        loss="A node no longer answers",
        follows="After about 50 s (Kubernetes waits for 40 s, and the pods tolerate the loss for "
        "5 s) the group restarts. 10 s after the loss is known the pod is deleted by force.",
    ),
    FailureReason(
        NODE_SILENT,
        "Nobody heard the pod's node for `nodeTimeoutSeconds`: neither the agent of rank 0 nor the "
        "operator. Or the node heard nobody, and ended its ranks (exit code 78).",
        do="Look at the node, which `ddpjob describe NAME` names, and at its network. Where "
        "networks pause for seconds, raise `nodeTimeoutSeconds`.",
        counts=False,
        loss="A node is silent for `nodeTimeoutSeconds`",
        follows="The group restarts at once, on other nodes. The node has ended its ranks by then, "
        "so its pods are deleted by force. The job keeps off the node for 60 s, within which "
        "Kubernetes finds out whether it is well.",
    ),
    FailureReason(
        NODE_REFUSED,
        "A kubelet refused the pod that was bound to its node.",
        do="The message has the kubelet's reason, such as a lack of devices. Another node may "
        "take the pod.",
        counts=False,
        loss="A kubelet refuses a pod that was bound to its node",
        follows="The group restarts.",
    ),
    FailureReason(
        RESULT_UNKNOWN,
        "The pod is gone, and the operator has not seen how it ended.",
        do="Nothing. Something deleted the pod faster than the operator could read its result.",
        counts=False,
        loss="A pod is gone before the operator has seen how it ended",
        follows="The group restarts.",
    ),
    FailureReason(
        NOT_STARTED,
        "A part of the group did not start within `startupDeadlineSeconds`. The message has the "
        "reason.",
        do="The message has the scheduler's or the kubelet's words. Ask for less, wait for room, "
        "or raise the deadline.",
        counts=False,
    ),
    FailureReason(
        SPEC_CHANGED,
        "`template` was edited while pods were being created, so all pods are made anew.",
        do="Nothing: the group starts again from the edited spec.",
        counts=False,
    ),
    FailureReason(
        AVOIDANCE_OVER,
        "Pods that had to keep off a silent node found no other one, so all pods are made anew and "
        "may run there again.",
        do="Nothing, if the node is well. If it falls silent again, cordon it: `kubectl cordon "
        "NODE`.",
        counts=False,
    ),
)
"""Every reason of a failure. A kubelet has more."""

UNCOUNTED = frozenset(reason.name for reason in FAILURES if not reason.counts)
"""Failures that are not the training's fault, so restarts because of them do not count."""
