"""What the operator says of a job: the model of `status`, and how a strange one is read."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema

from ddpjob import names
from ddpjob.api.base import DNS_SUBDOMAIN, Model, Short, broken_rules, unique
from ddpjob.ranks import MAX_NNODES, MAX_WORLD_SIZE, RANKS
from ddpjob.text import printable
from ddpjob.times import unix_seconds


def _printable(limit: int) -> BeforeValidator:
    """Text that is shown to people, cut and escaped as it enters the status."""
    return BeforeValidator(lambda text: printable(text, limit) if isinstance(text, str) else text)


State = Literal["Pending", "Starting", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
Truth = Literal["True", "False", "Unknown"]
FINISHED: tuple[State, ...] = ("Succeeded", "Failed")
MAX_REASON = 1024
MAX_CONDITIONS = 16
_EXACT = 2**53 - 1  # JSON readers keep integers exact up to here
NUMBER = r"^(nan|-?inf|-?[0-9]+(\.[0-9]+)?(e[+-][0-9]{2,3})?)$"
RATIO = r"^[01]\.[0-9]{3}$"
TALLY = "^[0-9]{1,16}(/[0-9]{1,16})?$"
DURATION = "^[0-9]{1,16}[dhms]([0-9]{1,2}[hms])?$"
STAMP = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"


def _whole_number(count: Any) -> Any:
    """With room above, so that what is counted on can be written."""
    return min(count, 2**52) if isinstance(count, int) else count


def _time(text: str) -> str:
    if unix_seconds(text) is None:
        raise broken_rules(("must be a time", ""))
    return text


Bounded = Annotated[str, Field(max_length=1024)]
Words = Annotated[str, Field(max_length=1024), _printable(1024)]
"""Of a pod, of Kubernetes, of whoever refused something: they may quote anybody."""
Message = Annotated[str, Field(max_length=4096), _printable(4096)]
Stamp = Annotated[
    str,
    Field(max_length=20, pattern=STAMP),
    AfterValidator(_time),
    WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 20, "pattern": STAMP}),
]
"""As `stamp` writes it."""
Count = Annotated[int, Field(ge=0, le=_EXACT), BeforeValidator(_whole_number)]
"""What the operator counts: it goes on from what it reads."""
Step = Annotated[int, Field(ge=0, le=_EXACT)]
AttemptNumber = Annotated[int, Field(ge=0, le=names.MAX_ATTEMPT)]
Rank = Annotated[int, Field(ge=0, le=2**31 - 1)]
NodeCount = Annotated[int, Field(ge=0, le=MAX_NNODES)]
Number = Annotated[str, Field(max_length=32, pattern=NUMBER)]
"""What may be NaN or infinite, which JSON has no numbers for."""


class Summary(Model):
    """Ready-made strings for the columns of `kubectl get`."""

    nodes: Annotated[str, Field(max_length=33, pattern=TALLY)] | None = None
    """Running or finished nodes of all, such as `2/2`."""
    step: Annotated[str, Field(max_length=33, pattern=TALLY)] | None = None
    """Step of all steps, such as `1240/2260`."""
    loss: Number | None = None
    """Last loss, four significant digits."""
    eta: Annotated[str, Field(max_length=32, pattern=DURATION)] | None = None
    """Time that is left, such as `14s`."""


class Condition(Model):
    """One aspect of the job's state, as in all of Kubernetes."""

    type: Annotated[str, Field(max_length=316)]
    status: Truth
    reason: Words
    message: Message
    last_transition_time: Stamp
    observed_generation: Count | None = None


class Nodes(Model):
    """Nodes of the current attempt by what they do; each is one pod."""

    desired: NodeCount = 0
    pending: NodeCount = 0
    running: NodeCount = 0
    succeeded: NodeCount = 0
    failed: NodeCount = 0


class Metric(Model):
    """One of the script's own figures."""

    name: Annotated[str, Field(max_length=63)]
    value: Number


class Progress(Model):
    """What the training last reported. Numbers that may be NaN or infinite are strings."""

    attempt: AttemptNumber | None = None
    """`attempt` is the attempt that has reported this. The next one may not have reported yet."""
    step: Step
    first_step: Step | None = None
    """`firstStep` is the first step that was seen in that attempt."""
    total_steps: Step | None = None
    epoch: Number | None = None
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    eta_seconds: Step | None = None
    loss: Number | None = None
    samples_per_second: Number | None = None
    source: Literal["file", "counted"] = "file"
    updated_at: Stamp | None = None
    metrics: Annotated[list[Metric], Field(max_length=32), unique("name")] = []


class Failure(Model):
    """The first cause of the last failure: of all ranks' failures, the one that began it."""

    attempt: AttemptNumber
    rank: Rank | None = None
    """Global rank of the process, where the agent knows it; else the pod's node rank."""
    pod: Short | None = None
    node: Short | None = None
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """The worker's own exit code."""
    signal: Annotated[str, Field(max_length=63), _printable(63)] | None = None
    reason: Words
    exception: Annotated[str, Field(max_length=253), _printable(253)] | None = None
    """Type of the uncaught exception."""
    message: Message = ""
    time: Stamp | None = None


class Attempt(Model):
    """An attempt that is over."""

    attempt: AttemptNumber
    start_time: Stamp | None = None
    """When all of its nodes ran; absent if they never did."""
    end_time: Stamp
    reason: Words
    """Of its failure, or `Succeeded`, `Suspended`, `SpecChanged`, `DeadlineExceeded`."""
    charged: bool = False
    """Whether it counts towards `failurePolicy.maxRestarts`."""
    rank: Rank | None = None
    """Of the first cause, as in `failure`."""
    pod: Short | None = None
    node: Short | None = None
    first_step: Step | None = None
    """The first that was seen, and"""
    step: Step | None = None
    """the last."""


class Budget(Model):
    """What `failurePolicy` has to remember."""

    charged: Count = 0
    """Failures that count towards `maxRestarts`, since the script last got further than ever."""
    consecutive_restarts: Count = 0
    """Restarts in a row, counted or not: what the pauses grow with."""
    highest_step: Step | None = None
    """The highest step that the script has reported in the attempts that are over."""
    failed_step: Step | None = None
    """The last that it had reported at the last counted failure."""
    same_step_failures: Count = 0
    """Counted failures in a row at that step."""
    next_restart_time: Stamp | None = None
    """Pods of the current attempt are not created before."""


class Goodput(Model):
    """Where the time went, in seconds; the current state's is booked when it ends."""

    queued_seconds: Count = 0
    """Before the first pods."""
    starting_seconds: Count = 0
    """From the first pod of an attempt until all nodes run, pauses between attempts included."""
    productive_seconds: Count = 0
    """All nodes ran, and what they did was kept."""
    lost_seconds: Count = 0
    """All nodes ran, and the next attempt had to do it again. By the steps that the script
    reports; without them it stays 0."""
    ratio: Annotated[str, Field(max_length=8, pattern=RATIO)] | None = None
    """Productive of starting, productive and lost."""
    since: Stamp | None = None
    """From then on nothing is booked yet."""


class OwnPods(Model):
    """What tells the operator's own pods of an attempt from those that somebody else has made."""

    attempt: AttemptNumber
    roots: Annotated[
        list[Annotated[str, Field(max_length=22, pattern="^[A-Za-z0-9_-]{22}$")]],
        Field(max_length=4),
    ] = []
    """Roots of hash trees: pods prove by an annotation that they belong to one."""
    uids: Annotated[
        str, Field(max_length=6 * MAX_NNODES, pattern=r"^([A-Za-z0-9_-]{6}|[.]{6})*$")
    ] = ""
    """Six characters of a hash of each pod's uid, in the order of node ranks."""


class Status(Model):
    """What the operator has seen and decided."""

    observed_generation: Count | None = None
    state: State | None = None
    summary: Summary = Summary()
    conditions: Annotated[list[Condition], Field(max_length=MAX_CONDITIONS), unique("type")] = []
    attempt: AttemptNumber = 0
    """Number of the current attempt, from 0; pods and rendezvous carry it."""
    restarts: Count = 0
    """How often the group was started again after it had failed or lost a pod."""
    nodes: Nodes = Nodes()
    world_size: Annotated[int, Field(ge=0, le=MAX_WORLD_SIZE)] | None = None
    """Processes in all."""
    start_time: Stamp | None = None
    completion_time: Stamp | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    history: Annotated[list[Attempt], Field(max_length=10)] = []
    """The last ten attempts that are over, the latest last."""
    budget: Budget = Budget()
    goodput: Goodput = Goodput()
    succeeded_ranks: Annotated[str, Field(max_length=20000, pattern=RANKS)] = ""
    """Node ranks of this attempt that have ended well, or whose end is ignored, such as `0-3,7`."""
    pods: Annotated[list[OwnPods], Field(max_length=2)] = []
    """Which pods the operator has made, of this attempt and the one before; no other counts."""
    avoided_nodes: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=DNS_SUBDOMAIN)]], Field(max_length=32)
    ] = []
    """Nodes that no further pod of the job is to run on, by `avoidNode`."""

    @property
    def current_progress(self) -> Progress | None:
        """The progress of the current attempt; None if only an earlier one has reported."""
        progress = self.progress
        if progress is None or progress.attempt not in (None, self.attempt):
            return None
        # Earlier operators wrote no attempt, and took `firstStep` away when one ended.
        return progress if progress.attempt is not None or progress.first_step is not None else None

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, if there is one."""
        return next((c for c in self.conditions if c.type == kind), None)


_READS = 8  # a status is four levels deep; each read may leave a level to be dropped


def read_status(status: Any) -> "Status":
    """`status` as far as it can be read: a part that breaks a rule is left out, alone.

    Whoever may write a status of the namespace may write anything there, and an older schema let
    more in. A lost `attempt` is 0: pods of other attempts are deleted as ones that nobody has
    begun, and the job starts again.
    """
    if isinstance(status, Status):
        return status
    for _ in range(_READS):
        try:
            return Status.model_validate(status)
        except ValidationError as error:
            wrong = {
                detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
                for detail in error.errors(include_url=False, include_context=False)
            }
            status = _without(status, wrong)
    return Status()


def _without(
    value: Any, wrong: set[tuple[int | str, ...]], path: tuple[int | str, ...] = ()
) -> Any:
    """`value` without what stands at these places; an empty object for one that is wrong itself."""
    if path in wrong:
        return {}
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    kept = {
        name: _without(part, wrong, (*path, name)) if isinstance(part, Mapping | list) else part
        for name, part in pairs
        if (*path, name) not in wrong
    }
    return kept if isinstance(value, Mapping) else list(kept.values())
