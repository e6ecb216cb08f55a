"""The API: models of `DDPJob`'s spec and status.

The schema, the defaults, the docs and every check come from here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

from ddpjob import keys
from ddpjob.api import expressions
from ddpjob.api.explain import explain, show
from ddpjob.api.model import (
    CAMEL_CASE,
    DNS_SUBDOMAIN,
    IMAGE,
    MANAGER,
    SIGNAL,
    Model,
    Quantity,
    Rule,
    Short,
    Text,
    broken_rules,
    quantity_value,
    unique,
)
from ddpjob.api.podtypes import (
    EgressRule,
    EnvFrom,
    EnvVar,
    LocalReference,
    MountPath,
    Resources,
    Volume,
    VolumeMount,
    VolumeSource,
)
from ddpjob.errors import InvalidJob
from ddpjob.nesting import MAX_LEVELS, is_deep
from ddpjob.ranks import RANKS
from ddpjob.text import printable
from ddpjob.times import unix_seconds

GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")
"""What counts as a GPU among a container's limits: these names, and all that begin with one that
ends in - or /."""

# As JSON, without blanks. Neither schema nor CEL can bound an open subtree, or a whole spec.
MAX_OVERLAY_BYTES = 32 * 1024  # of spec.template, and of spec.master.template
MAX_SPEC_BYTES = 64 * 1024  # of the rest of spec
MAX_NAME = 52  # leaves `-<attempt>-<rank>` 11 of the 63 characters of a hostname


def _port(port: int) -> int:
    if port == keys.AGENT_PORT:
        raise broken_rules((f"{port} is the agent's", ""))
    return port


MasterPort = Annotated[
    int,
    Field(ge=1024, le=65535),
    AfterValidator(_port),
    WithJsonSchema(
        {
            "type": "integer",
            "format": "int32",
            "minimum": 1024,
            "maximum": 65535,
            "x-kubernetes-validations": [
                {
                    "rule": f"self != {keys.AGENT_PORT}",
                    "message": f"{keys.AGENT_PORT} is the agent's",
                }
            ],
        }
    ),
]


Overlay = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


MAX_NNODES = 5000
MAX_NPROC = 128
MAX_WORLD_SIZE = MAX_NNODES * MAX_NPROC
_NPROC_RULE = f"must be 'auto' or an integer from 1 to {MAX_NPROC}"


def _nproc(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value != "auto" and not (is_number and 1 <= value <= MAX_NPROC):
        raise broken_rules((_NPROC_RULE, ""))
    return value


NprocPerNode = Annotated[
    int | str,
    BeforeValidator(_nproc),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 8,
            "x-kubernetes-int-or-string": True,
            "x-kubernetes-validations": [
                {
                    "rule": "type(self) == string ? self == 'auto' : "
                    f"1 <= int(self) && int(self) <= {MAX_NPROC}",
                    "message": _NPROC_RULE,
                }
            ],
        }
    ),
]


class Shm(Model):
    """/dev/shm: data-loader workers and NCCL share memory through it."""

    enabled: bool = True
    """Mount a memory-backed /dev/shm. Without it the container runtime's own applies, often 64
    MiB."""
    size_limit: Quantity | None = None
    """At most so much. What is in it counts against the container's memory limit."""


class Checkpoint(Model):
    """Where checkpoints go."""

    volume: VolumeSource
    """A volume source without a name, such as `{persistentVolumeClaim: {claimName: ckpt}}`."""
    mount_path: MountPath = "/checkpoints"
    """Where it is mounted; DDPJOB_CHECKPOINT_DIR says so to the trainer."""
    mount_on: Literal["All", "Rank0"] = "All"
    """`All`: every pod mounts it, so across nodes it must be ReadWriteMany. `Rank0`: that pod
    alone, so ReadWriteOnce will do; the trainer must hand on what it loads, as ddptrain does, and
    the job cannot survive the loss of the volume's node."""


class Data(Model):
    """Where the training data are; every rank mounts it read-only."""

    volume: VolumeSource
    """A volume source without a name, such as `{persistentVolumeClaim: {claimName: data}}`."""
    mount_path: MountPath = "/data"
    """Where it is mounted; DDPJOB_DATA_DIR says so to the trainer."""


class NetworkPolicy(Model):
    """Who may talk to the job's pods, where the cluster's network enforces NetworkPolicies.

    Rendezvous and collectives know no authentication: whoever reaches them can join, or worse.
    """

    enabled: bool = True
    """Let in the job's own pods on all ports, and on the agent's the operator and whoever else the
    installation names; nobody else."""
    egress: Annotated[list[EgressRule], Field(max_length=32)] | None = None
    """Let out to these, the job's own pods and DNS alone; absent: everywhere."""
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.enabled || !has(self.egress)",
            lambda self: self.enabled or self.egress is None,
            "needs enabled: true",
            "egress",
        ),
    )


Image = Annotated[str, Field(max_length=1024, pattern=IMAGE)]


class Master(Model):
    """What is different for the pod of rank 0; what is absent is as for the others."""

    image: Image | None = None
    """The image of rank 0."""
    resources: Resources | None = None
    """Of rank 0's trainer container, with as many GPUs as the others have."""
    template: Overlay | None = None
    """Pod overlay of rank 0, merged after `spec.template`; at most 32 KiB."""


MessagePattern = Annotated[str, Field(min_length=1, max_length=256)]
_PATTERN_CEL = "!has(self.onMessagePattern) || (''.matches(self.onMessagePattern) ? true : true)"
"""CEL's expressions are RE2's too; one that does not compile is an error, which `?:` hands on."""


class BackoffSeconds(Model):
    """Pauses before restarts in a row: none, `first`, twice that, and so on up to `cap`."""

    first: Annotated[int, Field(ge=0, le=3600)] = 10
    """Seconds before the second restart in a row; the first is at once."""
    cap: Annotated[int, Field(ge=0, le=86400)] = 360
    """At most so many seconds. A row ends with progress, or with an attempt that ran for longer."""
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.cap >= self.first",
            lambda self: self.cap >= self.first,
            "must be at least first",
            "cap",
        ),
    )


Reason = Annotated[str, Field(max_length=63, pattern=CAMEL_CASE)]


class FailureRule(Model):
    """What a failure must be, in every field that is there, and what follows from it."""

    on_exit_codes: (
        Annotated[list[Annotated[int, Field(ge=1, le=255)]], Field(min_length=1, max_length=64)]
        | None
    ) = None
    """The worker's own exit code is one of these."""
    on_signals: (
        Annotated[
            list[Annotated[str, Field(max_length=16, pattern=SIGNAL)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """The worker was ended by one of these, such as SIGSEGV."""
    on_reasons: Annotated[list[Reason], Field(min_length=1, max_length=32)] | None = None
    """`status.failure.reason` is one of these, such as OOMKilled or Evicted."""
    on_ranks: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=MAX_WORLD_SIZE - 1)]],
            Field(min_length=1, max_length=64),
        ]
        | None
    ) = None
    """The global rank of the worker is one of these."""
    on_message_pattern: MessagePattern | None = None
    """An RE2 expression that is found in `status.failure.message`. All expressions of a job
    together may have 2000 instructions as RE2 compiles them, about as many as characters (but
    `.{100}` has 800), and 16 Unicode classes such as `\\pL`."""
    action: Literal["FailJob", "Restart", "Ignore"]
    """`FailJob`: no restart. `Restart`: the whole group. `Ignore`: the pod counts as finished."""
    counts_towards_max: bool | None = None
    """Whether a restart counts towards `maxRestarts`; absent: it does, unless the pod was deleted,
    evicted, preempted or lost with its node, or the group could not be started."""
    avoid_node: bool = False
    """Keep all later pods of the job off the node of the failed one."""
    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.onExitCodes) || has(self.onSignals) || has(self.onReasons) || "
            "has(self.onRanks) || has(self.onMessagePattern)",
            lambda self: any(
                wanted is not None
                for wanted in (
                    self.on_exit_codes,
                    self.on_signals,
                    self.on_reasons,
                    self.on_ranks,
                    self.on_message_pattern,
                )
            ),
            "must have one of onExitCodes, onSignals, onReasons, onRanks and onMessagePattern",
        ),
        Rule(
            "self.action == 'Restart' || !has(self.countsTowardsMax) && !self.avoidNode",
            lambda self: (
                self.action == "Restart" or self.counts_towards_max is None and not self.avoid_node
            ),
            "countsTowardsMax and avoidNode are about restarts: action must be Restart",
            "action",
        ),
        Rule(
            _PATTERN_CEL,
            lambda self: True,  # see broken_expressions: to compile costs more than to parse
            "must be an RE2 expression",
            "onMessagePattern",
        ),
    )


class FailurePolicy(Model):
    """What happens when a rank fails: the whole group starts again, as a new attempt."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """So many failures are followed by a restart; the next one fails the job. Deleted,
    evicted, preempted and lost pods and groups that cannot be started do not count, and a job whose
    script reports a step that none of its attempts had reached has all of them again. Three counted
    failures in a row at one reported step fail it in any case."""
    backoff_seconds: BackoffSeconds = BackoffSeconds()
    """How long to wait before a restart."""
    rules: Annotated[list[FailureRule], Field(max_length=32)] = []
    """The first that fits decides; without one the group restarts. But a job of which no step was
    ever seen fails at once where there is nothing to launch (LaunchFailed): no such script, module
    or option, no torch."""

    def message_patterns(self) -> tuple[str, ...]:
        """The expressions of the rules, in their order."""
        return tuple(rule.on_message_pattern for rule in self.rules if rule.on_message_pattern)


def broken_expressions(policy: FailurePolicy) -> list[InvalidJob]:
    """What is wrong with the expressions of the rules. No part of parsing: it compiles them."""
    places = [place for place, rule in enumerate(policy.rules) if rule.on_message_pattern]
    texts = policy.message_patterns()
    return [
        InvalidJob(
            f"spec.failurePolicy.rules[{places[position]}].onMessagePattern",
            f"{rule}, got {show(texts[position])}",
            texts[position],
        )
        for position, rule in expressions.broken(texts)
    ]


Argument = Annotated[list[Text], Field(max_length=1024)]


def _gpus_cel(resources: str) -> str:
    """CEL: `gpus` of the resources at this path."""
    names = " || ".join(
        f"r.startsWith('{name}')" if name[-1] in "-/" else f"r == '{name}'"
        for name in GPU_RESOURCES
    )
    limits = f"{resources}.limits"
    count = f"quantity(string({limits}[r])).asInteger()"
    return f"(has({limits}) ? {limits}.filter(r, {names}).map(r, {count}).sum() : 0)"


def _own_mounts(spec: "Spec") -> list[str]:
    return [part.mount_path for part in (spec.checkpoint, spec.data) if part]


_CLAIM_RULE = "the same claim in two volumes keeps a pod from starting"


def _claims(sources: Iterable[VolumeSource]) -> list[str]:
    claims = (source.persistent_volume_claim for source in sources)
    return [claim.claim_name for claim in claims if claim]


def _own_claims(spec: "Spec") -> list[str]:
    return _claims(part.volume for part in (spec.checkpoint, spec.data) if part)


def _claims_are_single(spec: "Spec") -> bool:
    claims = _claims(spec.volumes)
    return len(set(claims)) == len(claims) and not set(claims) & set(_own_claims(spec))


def _claim_cel(part: str) -> str:
    volume = f"self.{part}.volume.persistentVolumeClaim"
    return f"(has(self.{part}) && has({volume}) ? [{volume}.claimName] : [])"


def _mounts_are_free(spec: "Spec") -> bool:
    taken = [*_own_mounts(spec), *(["/dev/shm"] if spec.shm.enabled else [])]
    return not any(mount.mount_path in taken for mount in spec.volume_mounts)


def _begins_with_a_script(spec: "Spec") -> bool:
    if spec.launcher == "none" or spec.command:
        return True
    if not spec.args or not spec.args[0]:
        return False
    return not spec.args[0].startswith("-") or (spec.args[0] == "-m" and len(spec.args) > 1)


class Spec(Model):
    """What to train, on how many nodes, and what to do when something fails.

    At most 64 KiB as JSON, beside `template` and `master.template`.
    """

    image: Image
    """The trainer image, for all ranks. It needs `python3` and torch, nothing of ours."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """As in a pod."""
    image_pull_secrets: (
        Annotated[list[LocalReference], Field(max_length=16), unique("name")] | None
    ) = None
    """As in a pod."""
    launcher: Literal["torchrun", "accelerate", "python", "none"] = "torchrun"
    """What runs `args`: `torchrun`; `accelerate launch`; `python`, one process a pod, for scripts
    that use `env://` or start their processes themselves. `none`: the environment is set and
    nothing else is ours."""
    command: Argument | None = None
    """Replaces the launcher's whole command. With launcher `none` and no command, the image's entry
    point runs."""
    args: Argument | None = None
    """What the launcher runs: a script or `-m module`, then its arguments."""
    nnodes: Annotated[int, Field(ge=1, le=MAX_NNODES)] = 1
    """Number of nodes: one pod each."""
    nproc_per_node: NprocPerNode = "auto"
    """Processes in each pod; `auto` is the number of GPUs in `resources.limits`, else 1."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Process-group backend, given to the trainer as DDPJOB_BACKEND; `auto` is nccl with GPUs, else
    gloo."""
    master_port: MasterPort = keys.MASTER_PORT
    """Port of the rendezvous on rank 0's pod."""
    env: Annotated[list[EnvVar], Field(max_length=256), unique("name")] = []
    """As in a pod. What ddpjob sets itself (RANK, WORLD_SIZE, MASTER_*, PET_*, DDPJOB_* …) is
    refused."""
    env_from: Annotated[list[EnvFrom], Field(max_length=32)] = []
    """As in a pod."""
    resources: Resources = Resources()
    """Of each pod's trainer container."""
    volumes: Annotated[list[Volume], Field(max_length=32), unique("name")] = []
    """As in a pod; the installation decides which sources are allowed."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=64), unique("mountPath")] = []
    """As in a pod, for the trainer container."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """A NetworkPolicy for the job's pods, on by default."""
    shm: Shm = Shm()
    """Memory-backed /dev/shm, on by default; it counts against the container's memory limit."""
    checkpoint: Checkpoint | None = None
    """A volume for checkpoints."""
    data: Data | None = None
    """A volume with training data, read-only."""
    template: Overlay | None = None
    """Pod overlay (`metadata` labels and annotations, `spec`), merged as Kubernetes merges; at most
    32 KiB."""
    master: Master | None = None
    """Overrides for rank 0."""
    progress: Literal["auto", "file"] = "auto"
    """`auto`: the script's progress file, else optimizer steps counted from outside. `file`: the
    file alone."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What happens when a rank fails."""
    success_policy: Literal["All", "Rank0"] = "All"
    """`All`: the job has succeeded when every node has. `Rank0`: when that one has."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """If pods cannot be created, scheduled or given their image within so long, all of them are
    deleted and tried again later, as often as it takes, so that a part of a group does not hold
    nodes for nothing. A pull that goes on is waited for."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=315360000)] | None = None
    """The job fails after so many seconds of starting and running, all attempts together. Pods end
    with their grace period and keep their logs; suspended time does not count."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315360000)] | None = None
    """The finished job is deleted after so long, with all that is left of it."""
    managed_by: Annotated[str, Field(max_length=63, pattern=MANAGER)] | None = None
    """Another value than ddpjob.dev/operator: somebody else's controller runs the job."""
    hang_timeout_seconds: Annotated[int, Field(ge=0, le=604800)] = 0
    """No new step for so long, while all nodes run: the stacks of all ranks go into the pods' logs,
    and the attempt has failed with reason Hang. Longer than the longest pause between two steps,
    such as an evaluation or a checkpoint; judged from the first step on, reported or counted. 0:
    off."""
    suspend: bool = False
    """True: no pods, until it is false again."""
    clean_pod_policy: Literal["Running", "None", "All"] = "Running"
    """Which pods to delete when the job is finished: those still running, none, or all."""
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=86400)] = 60
    """How long ranks may take to save and end after SIGTERM; torchrun's own time-out is set 10 s
    below."""

    checks: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.launcher == 'none' || has(self.command) && self.command.size() > 0 || "
            "has(self.args) && self.args.size() > 0 && self.args[0] != '' && "
            "(!self.args[0].startsWith('-') || self.args[0] == '-m' && self.args.size() > 1)",
            _begins_with_a_script,
            "the launcher needs args that begin with a script or with -m and a module "
            "(for the launcher's own options set command)",
            "args",
        ),
        Rule(
            "self.launcher != 'python' || (type(self.nprocPerNode) != string ? "
            f"int(self.nprocPerNode) == 1 : {_gpus_cel('self.resources')} <= 1)",
            lambda self: self.launcher != "python" or self.processes_per_node == 1,
            "launcher python starts one process in each pod: must be 1, or auto with one GPU at "
            "most (for more processes use launcher torchrun; a script that starts them itself, "
            "with mp.spawn, has nprocPerNode: 1)",
            "nprocPerNode",
        ),
        Rule(
            f"type(self.nprocPerNode) != string || {_gpus_cel('self.resources')} <= {MAX_NPROC}",
            lambda self: self.processes_per_node <= MAX_NPROC,
            f"nprocPerNode auto starts a process for each GPU: at most {MAX_NPROC} in a pod",
            "resources.limits",
        ),
        Rule(
            "self.launcher != 'none' || has(self.command) && self.command.size() > 0 || "
            "self.progress != 'file'",
            lambda self: self.launcher != "none" or bool(self.command) or self.progress != "file",
            "progress: file needs the agent, which launcher none without command does not start",
            "progress",
        ),
        Rule(
            "self.launcher != 'none' || has(self.command) && self.command.size() > 0 || "
            "self.hangTimeoutSeconds == 0",
            lambda self: self.has_agent or not self.hang_timeout_seconds,
            "hangs are seen by the agent, which launcher none without command does not start",
            "hangTimeoutSeconds",
        ),
        Rule(
            "!has(self.master) || !has(self.master.resources) || "
            f"{_gpus_cel('self.master.resources')} == {_gpus_cel('self.resources')}",
            lambda self: (
                not (self.master and self.master.resources)
                or gpus(self.master.resources) == gpus(self.resources)
            ),
            "must have as many GPUs as spec.resources.limits: every node runs as many processes",
            "master.resources.limits",
        ),
        Rule(
            "!has(self.checkpoint) || !has(self.data) || "
            "self.checkpoint.mountPath != self.data.mountPath",
            lambda self: len(set(_own_mounts(self))) == len(_own_mounts(self)),
            "checkpoint and data cannot share a mountPath",
            "data.mountPath",
        ),
        Rule(
            "!self.shm.enabled || "
            "(!has(self.checkpoint) || self.checkpoint.mountPath != '/dev/shm') && "
            "(!has(self.data) || self.data.mountPath != '/dev/shm')",
            lambda self: not self.shm.enabled or "/dev/shm" not in _own_mounts(self),
            "must be false where checkpoint or data is mounted at /dev/shm",
            "shm.enabled",
        ),
        Rule(
            "self.volumeMounts.all(m, "
            "(!has(self.checkpoint) || m.mountPath != self.checkpoint.mountPath)"
            " && (!has(self.data) || m.mountPath != self.data.mountPath)"
            " && (!self.shm.enabled || m.mountPath != '/dev/shm'))",
            _mounts_are_free,
            "a mountPath of checkpoint, data or shm is taken",
            "volumeMounts",
        ),
        Rule(
            f"!has(self.checkpoint) || !has(self.data) || {_claim_cel('data')}"
            f".all(c, !(c in {_claim_cel('checkpoint')}))",
            lambda self: len(set(_own_claims(self))) == len(_own_claims(self)),
            f"{_CLAIM_RULE}: mount ddpjob-checkpoint, the volume of checkpoint, in volumeMounts",
            "data.volume.persistentVolumeClaim.claimName",
        ),
        Rule(
            "self.volumes.filter(v, has(v.persistentVolumeClaim)).all(v, "
            "self.volumes.exists_one(w, has(w.persistentVolumeClaim) && "
            "w.persistentVolumeClaim.claimName == v.persistentVolumeClaim.claimName) && "
            "!(v.persistentVolumeClaim.claimName in "
            f"{_claim_cel('checkpoint')} + {_claim_cel('data')}))",
            _claims_are_single,
            f"{_CLAIM_RULE}: mount the one volume in several places, in volumeMounts (that of "
            "checkpoint is named ddpjob-checkpoint, that of data ddpjob-data)",
            "volumes",
        ),
    )

    @property
    def gpus(self) -> int:
        """GPUs in each pod's limits."""
        return gpus(self.resources)

    @property
    def processes_per_node(self) -> int:
        """Processes in each pod: `nprocPerNode`, resolved."""
        if self.nproc_per_node == "auto":
            return max(1, self.gpus)
        return int(self.nproc_per_node)

    @property
    def world_size(self) -> int:
        """Processes in all."""
        return self.nnodes * self.processes_per_node

    @property
    def process_group_backend(self) -> str:
        """`nccl` or `gloo`: `backend`, resolved."""
        if self.backend == "auto":
            return "nccl" if self.gpus else "gloo"
        return self.backend

    @property
    def has_agent(self) -> bool:
        """Whether the agent wraps what runs in the pods."""
        return self.launcher != "none" or bool(self.command)


def gpus(resources: Resources) -> int:
    """GPUs among the limits."""
    limits = resources.limits or {}
    return sum(int(quantity_value(limits[name])) for name in limits if is_gpu(name))


def is_gpu(resource: str) -> bool:
    """Whether this extended resource counts as a GPU."""
    return any(
        resource.startswith(name) if name[-1] in "-/" else resource == name
        for name in GPU_RESOURCES
    )


def _printable(limit: int) -> BeforeValidator:
    """Text that is shown to people, cut and escaped as it enters the status."""
    return BeforeValidator(lambda text: printable(text, limit) if isinstance(text, str) else text)


MUTABLE_FIELDS = (
    *("suspend", "failurePolicy", "cleanPodPolicy"),
    *("activeDeadlineSeconds", "ttlSecondsAfterFinished"),
)
"""Fields of the spec that may change at any time. `template` cannot be compared by the API server
(it is open)."""

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


def _counted(count: Any) -> Any:
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
Count = Annotated[int, Field(ge=0, le=_EXACT), BeforeValidator(_counted)]
"""What the operator counts: it goes on from what it reads."""
Step = Annotated[int, Field(ge=0, le=_EXACT)]
AttemptNumber = Annotated[int, Field(ge=0, le=keys.MAX_ATTEMPT)]
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

    step: Step
    first_step: Step | None = None
    """The first that was seen in this attempt."""
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
    in_row: Count = 0
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


_DNS_1035 = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

NAME_RULES = (
    Rule(
        f"size(self.metadata.name) <= {MAX_NAME}",
        lambda name: len(name) <= MAX_NAME,
        f"must be at most {MAX_NAME} characters: <name>-<attempt>-<rank> is a hostname",
        "metadata.name",
    ),
    Rule(
        f"self.metadata.name.matches('{_DNS_1035}')",
        lambda name: bool(re.fullmatch(_DNS_1035, name)),
        "must be a DNS-1035 label (a Service has that name): lower-case letters, digits and '-', "
        "beginning with a letter",
        "metadata.name",
    ),
)
"""What a job's name must be; `holds` takes the name. In CEL they stand at the root of the schema,
which alone can see the metadata."""


def _name(name: str) -> str:
    if broken := [(rule.message, "") for rule in NAME_RULES if not rule.holds(name)]:
        raise broken_rules(*broken)
    return name


_LABEL = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
_LABEL_RULE = "must be at most 63 letters, digits, '-', '_' and '.', neither end a mark"


def _keys(annotations: dict[str, str]) -> dict[str, str]:
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        if not re.fullmatch(_LABEL, name) or slash and not re.fullmatch(DNS_SUBDOMAIN, prefix):
            raise broken_rules((f"the key {key!r} must be <name> or <domain>/<name>", ""))
    return annotations


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in _keys(labels).items():
        if not re.fullmatch(f"({_LABEL})?", value):
            raise broken_rules((f"{key}: {_LABEL_RULE}, is {value!r}", ""))
    return labels


class Metadata(Model):
    """The part of an object's metadata that we read."""

    model_config = {"extra": "ignore"}

    name: Annotated[str, AfterValidator(_name)]
    namespace: str = ""
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = {}
    annotations: Annotated[dict[str, str], AfterValidator(_keys)] = {}


_METADATA_READ = tuple(to_camel(name) for name in Metadata.model_fields)


class DDPJob(Model):
    """A distributed PyTorch training: `spec.nnodes` pods, each running torchrun."""

    api_version: Literal["ddpjob.dev/v1alpha1"]
    kind: Literal["DDPJob"]
    metadata: Metadata
    spec: Spec
    status: Annotated[Status, BeforeValidator(read_status)] = Status()

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """What tells this job from an earlier one of the same name."""
        return self.metadata.uid

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> "DDPJob":
        """The job that `obj` (parsed YAML or JSON) describes, defaults filled in.

        Raises the first InvalidJob of `validate`.
        """
        rest = {name: part for name, part in obj.items() if name != "metadata"}
        for problem in chain(oversize(obj), _too_deep(rest)):
            raise problem
        try:
            return cls.model_validate(_read(obj))
        except ValidationError as error:
            raise explain(error, most=1)[0] from None


def validate(obj: Any) -> list[InvalidJob]:
    """Every rule that `obj` breaks; empty for a job that the API server accepts."""
    if not isinstance(obj, Mapping):
        return [InvalidJob("(file)", f"must be a DDPJob object, got {show(obj)}", obj)]
    # All else takes longer, and more of it, the larger the object is.
    if problems := list(oversize(obj)) or list(_too_deep(obj)):
        return problems
    problems = [*_unknown_metadata(obj.get("metadata")), *_unknown_nulls(obj)]
    try:
        job = DDPJob.model_validate(_read(obj))
    except ValidationError as error:
        return problems + explain(error)
    return problems + broken_expressions(job.spec.failure_policy)


def with_defaults(obj: Mapping[str, Any]) -> dict[str, Any]:
    """`obj` as the API server would store it. Raises InvalidJob."""
    job = DDPJob.parse(obj)
    for problem in broken_expressions(job.spec.failure_policy):
        raise problem
    return {**obj, "spec": job.spec.to_json()}


_METADATA_FIELDS = {
    *("name", "generateName", "namespace", "labels", "annotations", "finalizers"),
    *("ownerReferences", "uid", "resourceVersion", "generation", "selfLink", "managedFields"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
}


def _unknown_metadata(metadata: Any) -> list[InvalidJob]:
    """Fields that no object has. The models read past them: a later Kubernetes may have more."""
    unknown = set(metadata) - _METADATA_FIELDS if isinstance(metadata, Mapping) else set()
    return [
        InvalidJob(f"metadata.{name}", f"unknown field, got {show(metadata[name])}", metadata[name])
        for name in sorted(map(str, unknown))
    ]


def _unknown_nulls(obj: Mapping[str, Any]) -> list[InvalidJob]:
    """Unknown fields without a value: the API server looks for them before it drops nulls."""
    try:
        DDPJob.model_validate(obj)
    except ValidationError as error:
        found = explain(error)
        return [p for p in found if p.value is None and p.rule.startswith("unknown field")]
    return []


def oversize(obj: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """Parts of the spec with more bytes than are worth a look."""
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return
    master = spec.get("master")
    rest = {name: part for name, part in spec.items() if name != "template"}
    parts = [("spec.template", spec.get("template"))]
    if isinstance(master, Mapping):
        parts.append(("spec.master.template", master.get("template")))
        rest["master"] = {name: part for name, part in master.items() if name != "template"}
    for path, part in parts:
        yield from _larger(path, part, MAX_OVERLAY_BYTES, "bytes as JSON")
    beside = "bytes as JSON beside template and master.template"
    yield from _larger("spec", rest, MAX_SPEC_BYTES, beside)


def _larger(path: str, part: Any, most: int, what: str) -> Iterator[InvalidJob]:
    try:
        size = len(orjson.dumps(part))
    except orjson.JSONEncodeError as error:
        if not is_deep(part):  # which comes next
            yield InvalidJob(path, f"must be JSON ({error}), got {show(part)}", part)
        return
    if size > most:
        yield InvalidJob(path, f"must be at most {most} {what}, is {size}, got {show(part)}", part)


def _too_deep(obj: Mapping[str, Any]) -> Iterator[InvalidJob]:
    """Parts with more objects within each other than can be dealt with, safely, at every place."""
    if is_deep(obj):
        spec = obj.get("spec")
        parts = spec.items() if isinstance(spec, Mapping) else ()
        paths = [f"spec.{name}" for name, part in parts if is_deep(part, MAX_LEVELS - 2)]
        for path in paths or ["(object)"]:
            yield InvalidJob(path, f"must have at most {MAX_LEVELS} objects within each other")


def _read(obj: Mapping[str, Any]) -> dict[str, Any]:
    """`obj` as the models read it: of the metadata only what they have, without nulls."""
    found = {
        name: part if name == "metadata" else _without_nulls(part) for name, part in obj.items()
    }
    if isinstance(metadata := found.get("metadata"), Mapping):
        found["metadata"] = _without_nulls({name: metadata.get(name) for name in _METADATA_READ})
    return {name: part for name, part in found.items() if part is not None}


def _without_nulls(value: Any) -> Any:
    """The API server drops nulls before it looks at defaults; so do we.

    In the overlay too, where it keeps them: what ddpjob sets for safety cannot be taken away.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
