"""The model of `status`."""

from typing import Annotated, Literal

from pydantic import Field

from ddpjob.api.admission import Admission
from ddpjob.api.base import DnsSubdomain, Model, unique
from ddpjob.api.ownpods import MAX_SPARES, OwnPods
from ddpjob.api.values import (
    DURATION,
    MAX_CONDITIONS,
    MAX_POINTS,
    NODES,
    PLACE,
    RATIO,
    TALLY,
    AttemptNumber,
    Column,
    ConditionType,
    Count,
    Entry,
    Message,
    Name,
    NodeCount,
    Number,
    Point,
    ShortName,
    Stamp,
    Step,
    Traceback,
    Words,
)
from ddpjob.names import MAX_RESULT
from ddpjob.ranks import MAX_WORLD_SIZE, RANKS

State = Literal[
    "Pending",
    "Queued",
    "Starting",
    "Running",
    "Restarting",
    "Idle",
    "Suspended",
    "Succeeded",
    "Failed",
]
Truth = Literal["True", "False", "Unknown"]
FINISHED: tuple[State, ...] = ("Succeeded", "Failed")


class Summary(Model):
    """`summary` holds the strings that `kubectl get` prints as columns."""

    nodes: Annotated[str, Field(max_length=36, pattern=NODES)] | None = None
    """`nodes` is the number of nodes that run or have succeeded, of all nodes, such as `2/2`, or
    `2/2+1` with a spare."""
    step: Annotated[str, Field(max_length=33, pattern=TALLY)] | None = None
    """`step` is the last reported step, of all steps if their number is known, such as
    `1240/2260`."""
    loss: Number | None = None
    """`loss` is the last reported loss, with four significant digits."""
    eta: Annotated[str, Field(max_length=32, pattern=DURATION)] | None = None
    """`eta` is the time that is left while the job is Running, such as `14s`."""
    reason: Column | None = None
    """`reason` is the reason for which the job is not simply running, or has failed, with the words
    of whoever gave it. It is absent if all is well."""
    pod: Name | None = None
    """`pod` is the name of the pod that `reason` is about, or else that of node rank 0."""
    node: Name | None = None
    """`node` is the name of the Kubernetes node on which `pod` runs or ran."""
    attempt: Annotated[str, Field(max_length=33, pattern=PLACE)] | None = None
    """`attempt` is the number of the current attempt and that of its round, such as `2.1`."""


class Condition(Model):
    """A condition is one aspect of the job's state, as in other objects of Kubernetes."""

    type: ConditionType
    """`type` is the name of the condition, such as Running."""
    status: Truth
    """`status` is True, False or Unknown."""
    reason: Words
    """`reason` is the reason of the condition's status, one word in CamelCase."""
    message: Message
    """`message` describes the reason in words."""
    last_transition_time: Stamp
    """`lastTransitionTime` is the time at which `status` last changed."""
    observed_generation: Count | None = None
    """`observedGeneration` is the `metadata.generation` for which the condition was set."""


class Nodes(Model):
    """`nodes` counts the nodes of the current attempt. Each node is one pod."""

    desired: NodeCount = 0
    """`desired` is the number of nodes that the attempt needs."""
    pending: NodeCount = 0
    """`pending` is the number of nodes whose trainer container has not started."""
    running: NodeCount = 0
    """`running` is the number of nodes whose trainer container runs."""
    succeeded: NodeCount = 0
    """`succeeded` is the number of nodes that have exited with code 0, or whose failure a rule
    ignores."""
    failed: NodeCount = 0
    """`failed` is the number of nodes that have failed."""
    spares: Annotated[int, Field(ge=0, le=MAX_SPARES)] | None = None
    """`spares` is the number of spares that run."""


class Metric(Model):
    """A metric is one of the numbers that the script itself reports."""

    name: ShortName
    """`name` is the name that the script gave to the metric."""
    value: Number
    """`value` is a string, because it may be NaN or infinite."""


class Progress(Model):
    """`progress` is the last report of rank 0. Numbers that may be NaN or infinite are strings."""

    attempt: AttemptNumber | None = None
    """`attempt` is the number of the attempt that made the report. A later attempt may not have
    reported yet."""
    round: Count = 0
    """`round` is the number of the round of `attempt` that made the report."""
    step: Step
    """`step` is the number of finished optimizer steps. Counted steps begin at 0 in each round of
    each attempt."""
    first_step: Step | None = None
    """`firstStep` is the first step that was seen in `round`."""
    total_steps: Step | None = None
    """`totalSteps` is the number of steps of the whole training, if the script reports it."""
    epoch: Number | None = None
    """`epoch` is the epoch that the script reports."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """`percent` is the part of `totalSteps` that is done, from 0 to 100."""
    eta_seconds: Step | None = None
    """`etaSeconds` is the time in seconds that the remaining steps take, at the mean rate of
    `round`."""
    loss: Number | None = None
    """`loss` is the loss that the script reports, with four significant digits."""
    samples_per_second: Number | None = None
    """`samplesPerSecond` is the rate that the script reports, of all ranks together."""
    source: Literal["file", "callback", "counted"] = "file"
    """`source` is `file` if the script's progress file has these numbers, `callback` if the Trainer
    of transformers reports them, and `counted` if the agent counts the optimizer steps."""
    updated_at: Stamp | None = None
    """`updatedAt` is the time of the report."""
    metrics: Annotated[list[Metric], Field(max_length=32), unique("name")] = []
    """`metrics` are further numbers that the script reports."""


Revision = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _Round(Model):
    """A round of an attempt, and the primary failure that has ended it."""

    attempt: AttemptNumber
    """`attempt` is the number of the attempt."""
    round: Count = 0
    """`round` is the number of the round in the attempt."""
    rank: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """`rank` is the global rank of the process. It is absent if a pod of several processes failed
    as a whole, such as by an eviction, or if its agent does not know which of them failed."""
    pod: Name | None = None
    """`pod` is the name of the pod that failed."""
    node: Name | None = None
    """`node` is the name of the Kubernetes node on which the pod ran."""
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """`exitCode` is the worker's own exit code."""
    signal: ShortName | None = None
    """`signal` is the name of the signal that ended the worker, such as SIGKILL."""
    exception: Name | None = None
    """`exception` is the type of the uncaught exception."""
    revision: Revision | None = None
    """`revision` is that of `program`, if it is not the first."""


class Failure(_Round):
    """`failure` is the primary failure of the last attempt that failed.

    The failures of other ranks follow from it.
    """

    reason: Words
    """`reason` is the reason of the failure, such as Exception, OOMKilled or Evicted."""
    message: Message = ""
    """`message` describes the failure in words."""
    traceback: Traceback | None = None
    """`traceback` is the traceback of the uncaught exception, or the stack of a rank that hangs, in
    several lines. It is the end where it is longer."""
    time: Stamp | None = None
    """`time` is the time of the failure."""


class Attempt(_Round):
    """An entry describes one round that is over.

    An attempt without a restart in place has one round.
    """

    start_time: Stamp | None = None
    """`startTime` is the time from which all nodes of the round ran. It is absent if they never all
    ran."""
    end_time: Stamp
    """`endTime` is the time at which the round was over."""
    reason: Words
    """`reason` is that of the round's failure, or of another end, such as GroupResized."""
    charged: bool = False
    """`charged` is true if the failure counts towards `failurePolicy.maxRestarts`."""
    message: Entry | None = None
    """`message` has the first 512 bytes of the failure's message."""
    first_step: Step | None = None
    """`firstStep` is the first step that was seen in the round."""
    step: Step | None = None
    """`step` is the last step that was seen in the round."""


class Budget(Model):
    """`budget` holds the counts by which `failurePolicy` judges the next failure."""

    charged: Count = 0
    """`charged` is the number of failures that count towards `maxRestarts`. It is 0 again when the
    script reports a step that no earlier round or attempt has reached."""
    consecutive_restarts: Count = 0
    """`consecutiveRestarts` is the number of restarts in a row, counted or not. The pauses of
    `backoffSeconds` grow with it."""
    highest_step: Step | None = None
    """`highestStep` is the highest step that the script has reported in the rounds and attempts
    that are over."""
    failed_step: Step | None = None
    """`failedStep` is the step that the script had reported when the last counted failure
    happened."""
    same_step_failures: Count = 0
    """`sameStepFailures` is the number of counted failures in a row at `failedStep`."""
    next_restart_time: Stamp | None = None
    """`nextRestartTime` is the time before which no pods of the current attempt are created."""


class Goodput(Model):
    """`goodput` divides the job's time by its use.

    The time of a state is added when the state ends.
    """

    queued_seconds: Count = 0
    """`queuedSeconds` is the time in seconds before the job's first pods were created."""
    starting_seconds: Count = 0
    """`startingSeconds` is the time in seconds in which pods or processes were started, until all
    nodes ran. It includes the pauses between attempts."""
    productive_seconds: Count = 0
    """`productiveSeconds` is the time in seconds in which all nodes ran and their work was kept:
    of a round that failed, until the last step that was seen."""
    lost_seconds: Count = 0
    """`lostSeconds` is the time in seconds in which all nodes ran, but the next round or
    attempt had to repeat their work, or a failure ended it without another step. What was
    repeated is computed from the steps that the script reports."""
    idle_seconds: Count | None = None
    """`idleSeconds` is the time in seconds in which pods were kept though all ranks had ended."""
    ratio: Annotated[str, Field(max_length=8, pattern=RATIO)] | None = None
    """`ratio` is `productiveSeconds` divided by the sum of `startingSeconds`, `productiveSeconds`
    and `lostSeconds`."""
    since: Stamp | None = None
    """`since` is the time at which the current state began. The time after it has not been added
    yet."""


class Program(Model):
    """`program` is what the ranks run: `args`, the variables in `env` that have values, `code`."""

    revision: Revision
    """`revision` is 1 at first, and grows with each edit."""
    hash: Annotated[str, Field(max_length=16, pattern="^[0-9a-f]{16}$")]
    """`hash` is that of what the ranks run."""
    round: Count = 0
    """`round` is the first round of the current attempt that runs it."""


class SilentNode(Model):
    """An entry is a node that nobody heard."""

    name: DnsSubdomain
    """`name` is the node's name."""
    time: Stamp
    """`time` is the time at which the group restarted because of it, or beside it."""


class Result(Model):
    """`result` is what rank 0 has left in its result file when it ended well."""

    value: Annotated[str, Field(max_length=MAX_RESULT, pattern="^[ -~]*$")] | None = None
    """`value` is the value as JSON. It is absent if it is no JSON or larger than 2048 bytes."""
    size_bytes: Annotated[int, Field(ge=0, le=2**53 - 1)]
    """`sizeBytes` is the size of the value in bytes."""


class Status(Model):
    """`status` holds the operator's observations of the job and its decisions."""

    observed_generation: Count | None = None
    """`observedGeneration` is the latest `metadata.generation` that the operator has seen."""
    state: State | None = None
    """`state` is the job's state in one word. `conditions` has the reasons."""
    summary: Summary = Summary()
    conditions: Annotated[list[Condition], Field(max_length=MAX_CONDITIONS), unique("type")] = []
    """`conditions` are the aspects of the job's state, one for each type."""
    attempt: AttemptNumber = 0
    """`attempt` is the number of the current attempt, beginning at 0. It is part of the names of
    the attempt's pods and of its rendezvous."""
    round: Count = 0
    """`round` is the number of the current round of the attempt, beginning at 0 in each attempt. A
    restart in place starts the next round: new processes, in the pods that stay."""
    restarts: Count = 0
    """`restarts` is the number of times that the group was started again: after a failure, the loss
    of a pod or an edit of `template`, or in another size."""
    program: Program | None = None
    nodes: Nodes = Nodes()
    world_size: Annotated[int, Field(ge=0, le=MAX_WORLD_SIZE)] | None = None
    """`worldSize` is the number of processes in all pods together."""
    start_time: Stamp | None = None
    """`startTime` is the time at which the operator began to create the job's first pods."""
    completion_time: Stamp | None = None
    """`completionTime` is the time at which the job succeeded or failed."""
    progress: Progress | None = None
    curve: Annotated[list[Point], Field(max_length=MAX_POINTS)] = []
    """`curve` has the reported losses, thinned out to 64 points at most. Each point has the step,
    the loss and, if the script reports them, the samples per second. Steps grow from point to
    point."""
    admission: Admission | None = None
    result: Result | None = None
    failure: Failure | None = None
    history: Annotated[list[Attempt], Field(max_length=10)] = []
    """`history` has the last ten attempts, or rounds of them, that are over, the latest last."""
    budget: Budget = Budget()
    goodput: Goodput = Goodput()
    succeeded_ranks: Annotated[str, Field(max_length=20000, pattern=RANKS)] = ""
    """`succeededRanks` are the node ranks of the current attempt that have exited with code 0, or
    whose failure a rule ignores, such as `0-3,7`."""
    pods: Annotated[list[OwnPods], Field(max_length=2)] = []
    """`pods` proves which pods of the current attempt and of the one before it the operator has
    created. Other pods do not count."""
    avoided_nodes: Annotated[list[DnsSubdomain], Field(max_length=32)] = []
    """`avoidedNodes` are the nodes that later pods of the job must not run on, because of
    `avoidNode`."""
    silent_nodes: Annotated[list[SilentNode], Field(max_length=32), unique("name")] = []
    """`silentNodes` are nodes that nobody heard for `nodeTimeoutSeconds`. The attempt's pods do not
    run on them, before Kubernetes has had the time to see for itself whether they are well."""

    @property
    def current_progress(self) -> Progress | None:
        """Return the progress of the current round, or None if it has not reported yet."""
        progress = self.progress
        if progress is None or progress.attempt not in (None, self.attempt):
            return None
        if progress.round != self.round:
            return None
        # Earlier operators wrote no attempt, and took `firstStep` away when one ended.
        return progress if progress.attempt is not None or progress.first_step is not None else None

    @property
    def ordered_program(self) -> str:
        """Return the hash of what the ranks run; "" if all the attempt's pods were made with it."""
        return self.program.hash if self.program and self.program.round else ""

    @property
    def own_pods(self) -> OwnPods:
        """Return what is known of the current attempt's own pods."""
        found = (table for table in self.pods if table.attempt == self.attempt)
        return next(found, OwnPods(attempt=self.attempt))

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type, or None if there is none."""
        return next((c for c in self.conditions if c.type == kind), None)
