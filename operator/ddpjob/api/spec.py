"""What a job asks for: the model of `spec`."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ddpjob import names
from ddpjob.api.base import (
    IMAGE,
    MANAGER,
    Model,
    Quantity,
    Rule,
    Text,
    broken_rules,
    quantity_value,
    unique,
)
from ddpjob.api.failure_policy import FailurePolicy
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
from ddpjob.ranks import MAX_NNODES, MAX_NPROC

GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")
"""What counts as a GPU among a container's limits: these names, and all that begin with one that
ends in - or /."""

# As JSON, without blanks. Neither schema nor CEL can bound an open subtree, or a whole spec.
MAX_OVERLAY_BYTES = 32 * 1024  # of spec.template, and of spec.master.template
MAX_SPEC_BYTES = 64 * 1024  # of the rest of spec


def _port(port: int) -> int:
    if port == names.AGENT_PORT:
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
                    "rule": f"self != {names.AGENT_PORT}",
                    "message": f"{names.AGENT_PORT} is the agent's",
                }
            ],
        }
    ),
]


Overlay = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


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
    master_port: MasterPort = names.MASTER_PORT
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


MUTABLE_FIELDS = (
    *("suspend", "failurePolicy", "cleanPodPolicy"),
    *("activeDeadlineSeconds", "ttlSecondsAfterFinished"),
)
"""Fields of the spec that may change at any time. `template` cannot be compared by the API server
(it is open)."""
