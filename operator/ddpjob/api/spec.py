"""The model of `spec`: all that a user asks of a job.

This file is longer than 400 lines because it is the definition that users read: each field stands
once, with its bounds, its default and its description.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from ddpjob import names
from ddpjob.api.base import (
    IMAGE,
    MANAGER,
    MODULE,
    Broken,
    DnsSubdomain,
    Model,
    Quantity,
    Rule,
    Text,
    broken_rules,
    keeps,
    quantity_value,
    unique,
)
from ddpjob.api.code import Code
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
from ddpjob.names import GPU_RESOURCES, is_gpu
from ddpjob.ranks import MAX_NNODES, MAX_NPROC

# The largest spec.template, and the largest spec.master.template, as JSON without blanks. Neither
# the schema nor CEL can bound an open subtree, or a whole spec.
MAX_OVERLAY_BYTES = 32 * 1024
# The rest of spec.
MAX_SPEC_BYTES = 64 * 1024


MasterPort = Annotated[
    int,
    Field(ge=1024, le=65535),
    keeps(
        Rule(
            f"self != {names.AGENT_PORT}",
            lambda port: port != names.AGENT_PORT,
            f"{names.AGENT_PORT} is the port of ddpjob's agent",
        )
    ),
]
Overlay = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


NPROC_WORDS = ("auto", "cpu", "gpu")  # torchrun's
_NPROC_RULE = f"must be 'auto', 'cpu', 'gpu' or an integer from 1 to {MAX_NPROC}"


def _nproc(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value not in NPROC_WORDS and not (is_number and 1 <= value <= MAX_NPROC):
        raise broken_rules(Broken(_NPROC_RULE))
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
                    "rule": f"type(self) == string ? self in {list(NPROC_WORDS)} : "
                    f"1 <= int(self) && int(self) <= {MAX_NPROC}",
                    "message": _NPROC_RULE,
                }
            ],
        }
    ),
]


class Shm(Model):
    """`shm` describes /dev/shm, through which data-loader workers and NCCL share memory."""

    enabled: bool = True
    """`enabled` mounts a memory-backed /dev/shm. If it is false, the pods have the container
    runtime's own /dev/shm, which often has 64 MiB."""
    size_limit: Quantity | None = None
    """`sizeLimit` is the largest size of /dev/shm. The container's memory limit includes the files
    in it. By default Kubernetes sets the size."""


ModuleName = Annotated[str, Field(max_length=253, pattern=MODULE)]


class WarmStart(Model):
    """`warmStart` describes the fork server, from which the processes of a pod are forked."""

    enabled: bool = True
    """`enabled` starts a process in each pod that imports torch once. The launcher and its workers
    are forked from it, so they need not import torch again. A script that would notice the
    difference is started as usual, and the pod's log says why. If it is false, there is no fork
    server."""
    modules: Annotated[list[ModuleName], Field(max_length=16)] = []
    """`modules` are further modules that the fork server imports after torch, such as
    `transformers`. They must start no thread and use no GPU when they are imported."""
    checks = (
        Rule(
            "self.enabled || self.modules.size() == 0",
            lambda self: self.enabled or not self.modules,
            "needs enabled: true",
            "modules",
        ),
    )


class Checkpoint(Model):
    """`checkpoint` is a volume for checkpoints."""

    volume: VolumeSource
    """`volume` is a volume source without a name, such as `{persistentVolumeClaim: {claimName:
    ckpt}}`."""
    mount_path: MountPath = "/checkpoints"
    """`mountPath` is the path at which the volume is mounted. The trainer gets the path as
    DDPJOB_CHECKPOINT_DIR."""
    mount_on: Literal["All", "Rank0"] = "All"
    """`mountOn` chooses the pods that mount the volume. `All` is every pod, so a volume of several
    nodes must be ReadWriteMany. `Rank0` is the pod of rank 0 alone, so ReadWriteOnce is enough.
    With `Rank0` the trainer must send the loaded checkpoint to the other ranks, as ddptrain does,
    and the job cannot survive the loss of the volume's node."""


class Data(Model):
    """`data` is a volume with training data. Every pod mounts it read-only."""

    volume: VolumeSource
    """`volume` is a volume source without a name, such as `{persistentVolumeClaim: {claimName:
    data}}`."""
    mount_path: MountPath = "/data"
    """`mountPath` is the path at which the volume is mounted. The trainer gets the path as
    DDPJOB_DATA_DIR."""


class NetworkPolicy(Model):
    """`networkPolicy` describes the NetworkPolicy of the job's pods."""

    enabled: bool = True
    """`enabled` creates a NetworkPolicy for the job's pods. It lets in the job's own pods on all
    ports. On the agent's port it lets in the operator and the clients that the installation names.
    It lets in nobody else. The cluster's network must enforce NetworkPolicies."""
    egress: Annotated[list[EgressRule], Field(max_length=32)] | None = None
    """`egress` lets traffic out to the peers of these rules, to the job's own pods and to DNS, and
    to nobody else. If it is absent, traffic may go everywhere."""
    checks = (
        Rule(
            "self.enabled || !has(self.egress)",
            lambda self: self.enabled or self.egress is None,
            "needs enabled: true",
            "egress",
        ),
    )


Image = Annotated[str, Field(max_length=1024, pattern=IMAGE)]


class Master(Model):
    """`master` overrides fields for the pod of rank 0. Absent fields are as in the other pods."""

    image: Image | None = None
    """`image` is the image of rank 0's trainer container."""
    resources: Resources | None = None
    """`resources` are the requests and limits of rank 0's trainer container. Its limits must have
    as many GPUs as those of the other pods."""
    template: Overlay | None = None
    """`template` is an overlay for the pod of rank 0. It is merged after `spec.template`, and has
    at most 32 KiB as JSON."""


Argument = Annotated[list[Text], Field(max_length=1024)]


def _gpus_cel(resources: str) -> str:
    """Return the CEL expression for `gpus` of the resources at this path."""
    names = " || ".join(
        f"r.startsWith('{name}')" if name[-1] in "-/" else f"r == '{name}'"
        for name in GPU_RESOURCES
    )
    limits = f"{resources}.limits"
    count = f"int(quantity(string({limits}[r])).asApproximateFloat())"
    return f"(has({limits}) ? {limits}.filter(r, {names}).map(r, {count}).sum() : 0)"


_CPUS_CEL = (
    "(has(self.resources.limits) && 'cpu' in self.resources.limits ? "
    "int(quantity(string(self.resources.limits['cpu'])).asApproximateFloat()) : 0)"
)
_PROCESSES_CEL = (
    "(type(self.nprocPerNode) != string ? int(self.nprocPerNode) : self.nprocPerNode == 'cpu' ? "
    f"[1, {_CPUS_CEL}].max() : [1, {_gpus_cel('self.resources')}].max())"
)
_AGENT_CEL = "self.launcher != 'none' || has(self.command) && self.command.size() > 0"


def _mounts(spec: "Spec") -> list[str]:
    """Return the paths of all volumes but that of the code."""
    mounts = [part.mount_path for part in (*spec.volume_mounts, spec.checkpoint, spec.data) if part]
    return mounts + (["/dev/shm"] if spec.shm.enabled else [])


_MOUNTS_CEL = (
    "(self.volumeMounts.map(m, m.mountPath) + "
    "(has(self.checkpoint) ? [self.checkpoint.mountPath] : []) + "
    "(has(self.data) ? [self.data.mountPath] : []) + (self.shm.enabled ? ['/dev/shm'] : []))"
)


def _claims(spec: "Spec") -> list[str]:
    """Return the names of the claims of all volumes but that of the code."""
    sources = [*spec.volumes, *(part.volume for part in (spec.checkpoint, spec.data) if part)]
    claims = (source.persistent_volume_claim for source in sources)
    return [claim.claim_name for claim in claims if claim]


def _claim_cel(part: str) -> str:
    volume = f"self.{part}.volume.persistentVolumeClaim"
    return f"(has(self.{part}) && has({volume}) ? [{volume}.claimName] : [])"


_CLAIMS_CEL = (
    "(self.volumes.filter(v, has(v.persistentVolumeClaim))"
    ".map(v, v.persistentVolumeClaim.claimName) + "
    f"{_claim_cel('checkpoint')} + {_claim_cel('data')})"
)


def _differ_cel(items: str) -> str:
    """Return the CEL expression that these items are all different."""
    return f"[{items}].all(x, x.all(one, x.exists_one(other, other == one)))"


def _code_is_apart(spec: "Spec") -> bool:
    folder = f"{spec.code.mount_path}/" if spec.code else ""
    return not spec.code or not any(f"{mount}/".startswith(folder) for mount in _mounts(spec))


def _begins_with_a_script(spec: "Spec") -> bool:
    if spec.launcher == "none" or spec.command:
        return True
    if not spec.args or not spec.args[0]:
        return False
    return not spec.args[0].startswith("-") or (spec.args[0] == "-m" and len(spec.args) > 1)


class Scheduling(Model):
    """`scheduling` says how the scheduler takes the job's pods."""

    gang: Literal["Auto", "None"] = "Auto"
    """`gang` is `Auto` if the scheduler is to place all pods of the job or none of them, where the
    installation has such a scheduler and the job has more than one node. With `None` each pod is
    placed by itself."""
    queue: DnsSubdomain | None = None
    """`queue` is the queue of Volcano that the job waits in. Other schedulers have no queues, and
    Kueue's is in the label `kueue.x-k8s.io/queue-name`. By default it is Volcano's own default."""
    checks = (
        Rule(
            "!has(self.queue) || self.gang == 'Auto'",
            lambda self: self.queue is None or self.gang == "Auto",
            "needs gang: Auto",
            "queue",
        ),
    )


class Elastic(Model):
    """`elastic` says how small the group may get."""

    min_nodes: Annotated[int, Field(ge=1, le=MAX_NNODES)]
    """`minNodes` is the smallest number of nodes."""
    step: Annotated[int, Field(ge=1, le=MAX_NNODES)] = 1
    """`step` is the difference between two sizes. The largest one is `nnodes`."""
    replace_seconds: Annotated[int, Field(ge=0, le=86400)] = 30
    """`replaceSeconds` is the time in seconds for which the group waits for missing pods. 0 waits
    for none in the place of a lost one, and 30 s at an attempt's start."""
    grow_seconds: Annotated[int, Field(ge=1, le=604800)] = 600
    """`growSeconds` is the time in seconds for which a smaller group trains before it takes in pods
    that have come. With `checkpoint` it does so after the next save."""


class Spec(Model):
    """`spec` describes the program to train, its nodes, and what happens when a rank fails.

    It has at most 64 KiB as JSON, without `template` and `master.template`.
    """

    image: Image
    """`image` is the image of the trainer container in all pods. It needs `python3` and torch, and
    nothing of ddpjob."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """`imagePullPolicy` decides when a kubelet pulls the image, as in a pod. If it is absent,
    Kubernetes chooses it by the image's tag."""
    image_pull_secrets: (
        Annotated[list[LocalReference], Field(max_length=16), unique("name")] | None
    ) = None
    """`imagePullSecrets` names Secrets of the namespace with which kubelets pull the image, as in a
    pod."""
    launcher: Literal["torchrun", "accelerate", "python", "none"] = "torchrun"
    """`launcher` is the program that runs `args`. `torchrun` and `accelerate` (`accelerate launch`)
    start `nprocPerNode` processes in each pod. `python` starts one process in each pod, for scripts
    that use `env://` or start their processes themselves. `none` sets the environment, and starts
    `command` or the image's entry point."""
    command: Argument | None = None
    """`command` replaces the launcher's whole command. If `launcher` is `none` and `command` is
    absent, the image's entry point runs, without ddpjob's agent."""
    args: Argument | None = None
    """`args` are the arguments of the launcher: a script or `-m module`, then the script's own
    arguments."""
    nnodes: Annotated[int, Field(ge=1, le=MAX_NNODES)] = 1
    """`nnodes` is the number of nodes. Each node is one pod."""
    spares: Annotated[int, Field(ge=0, le=16)] = 0
    """`spares` is the number of pods beside those of `nnodes` that wait for the rank of a lost one.
    They come once all nodes run. None gets rank 0 if `master` or `mountOn: Rank0` makes that pod
    differ."""
    spare_priority_class_name: DnsSubdomain | None = None
    """`sparePriorityClassName` is the priority class of spares, with a rank too. By default it is
    that of the other pods."""
    elastic: Elastic | None = None
    """`elastic` lets the group train with fewer nodes while pods are missing, if the script bears
    another world size. By default it waits for all."""
    nproc_per_node: NprocPerNode = "auto"
    """`nprocPerNode` is the number of processes in each pod. `auto` is the number of GPUs in
    `resources.limits`, or 1 without GPUs. `gpu` is the same, and needs GPUs. `cpu` is the number of
    whole CPUs in `resources.limits`, at least 1."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """`backend` is the backend of the process group. The trainer gets it as DDPJOB_BACKEND. `auto`
    is `nccl` with GPUs, and `gloo` without GPUs."""
    master_port: MasterPort = names.MASTER_PORT
    """`masterPort` is the port of rank 0's pod at which the ranks meet for the rendezvous."""
    env: Annotated[list[EnvVar], Field(max_length=256), unique("name")] = []
    """`env` are environment variables of the trainer container, as in a pod. Variables that ddpjob
    sets itself are refused, such as RANK, WORLD_SIZE, MASTER_ADDR, PET_* and DDPJOB_*."""
    env_from: Annotated[list[EnvFrom], Field(max_length=32)] = []
    """`envFrom` names ConfigMaps and Secrets whose keys become environment variables of the trainer
    container, as in a pod."""
    resources: Resources = Resources()
    """`resources` are the requests and limits of the trainer container in each pod."""
    volumes: Annotated[list[Volume], Field(max_length=32), unique("name")] = []
    """`volumes` are volumes that each pod gets, as in a pod. The installation decides which sources
    are allowed."""
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=64), unique("mountPath")] = []
    """`volumeMounts` mount volumes into the trainer container, as in a pod."""
    code: Code | None = None
    """`code` is the job's own code, which the agent unpacks in each pod. By default the code is in
    the image."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """`networkPolicy` describes the NetworkPolicy of the job's pods. By default there is one,
    because rendezvous and collectives have no authentication."""
    shm: Shm = Shm()
    """`shm` describes /dev/shm, through which data-loader workers and NCCL share memory. By default
    it is memory-backed, and counts against the container's memory limit."""
    warm_start: WarmStart = WarmStart()
    """`warmStart` describes the fork server, from which the processes of a pod are forked. By
    default there is one, because most of a start is the import of torch."""
    checkpoint: Checkpoint | None = None
    """`checkpoint` is a volume for checkpoints. By default there is none."""
    data: Data | None = None
    """`data` is a volume with training data. Every pod mounts it read-only. By default there is
    none."""
    template: Overlay | None = None
    """`template` is an overlay for all pods. It may have `spec`, and `metadata` with labels and
    annotations. It is merged into each pod by Kubernetes' merge keys, and has at most 32 KiB as
    JSON."""
    master: Master | None = None
    """`master` overrides `image` and `resources` for the pod of rank 0, and adds an overlay."""
    progress: Literal["auto", "file"] = "auto"
    """`progress` is the source of the progress report. `auto` is the script's progress file. If
    the script writes none, it is what the Trainer of transformers reports, and else the optimizer
    steps that the agent counts. `file` is the file alone."""
    failure_policy: FailurePolicy = FailurePolicy()
    """`failurePolicy` decides what happens when a rank fails. By default the whole group is
    restarted up to three times."""
    scheduling: Scheduling | None = None
    """`scheduling` says how the scheduler takes the job's pods. By default it places all of them or
    none, where the installation has such a scheduler."""
    success_policy: Literal["All", "Rank0"] = "All"
    """`successPolicy` decides when the job has succeeded. `All` waits until every node has
    succeeded. `Rank0` waits for the node of rank 0 alone."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """`startupDeadlineSeconds` is the time in seconds within which every pod must be created, be
    scheduled, and have its volumes and its network. After this time all pods are deleted and
    created again later, as often as it takes. The time of a gang begins with its first node. A pod
    that is still pulling its image is waited for from Kubernetes 1.36 on; before, the time must be
    longer than a first pull. By default there is no deadline."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=315360000)] | None = None
    """`activeDeadlineSeconds` is the time in seconds that the job may spend starting and running,
    in all attempts together. After this time the job fails. Its pods end with their grace period
    and keep their logs. Suspended time does not count. By default there is no deadline."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315360000)] | None = None
    """`ttlSecondsAfterFinished` is the time in seconds after which a finished job is deleted, with
    its pods and its other objects. By default the job stays."""
    managed_by: Annotated[str, Field(max_length=63, pattern=MANAGER)] | None = None
    """`managedBy` names the controller that runs the job. The operator leaves the job alone if the
    value is not `ddpjob.dev/operator`. By default the operator runs the job."""
    hang_timeout_seconds: Annotated[int, Field(ge=0, le=604800)] = 0
    """`hangTimeoutSeconds` is the longest time in seconds without a new step while all nodes run.
    After this time the stacks of all ranks are written to the pods' logs, and the attempt fails
    with reason Hang. The value must exceed the longest pause between two steps, such as an
    evaluation or a checkpoint. The time before an attempt's first step, reported or counted, does
    not count. 0 turns the check off."""
    keep_seconds: Annotated[int, Field(ge=0, le=604800)] = 0
    """`keepSeconds` is the time in seconds for which the pods stay once all ranks have ended, well
    or not. Until then the job is Idle, and an edit of `args`, `env` or `code` has ranks run again
    in these pods. 0 ends the pods with their ranks, and so does `restartStrategy: Recreate`."""
    node_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = 15
    """`nodeTimeoutSeconds` is the time in seconds after which a node counts as silent, if neither
    the agent of rank 0 nor the operator hears it. Then its pod is replaced, which is not counted
    against `maxRestarts`. A node that hears nobody ends its ranks before that time. The
    value is at least 5, or 0, which turns the check off. Jobs of one node are not checked."""
    suspend: bool = False
    """If `suspend` is true, the job's pods end with their grace period, and no pods are created
    until it is false again."""
    clean_pod_policy: Literal["Running", "None", "All"] = "Running"
    """`cleanPodPolicy` decides which pods are deleted when the job is finished. `Running` deletes
    the pods whose ranks still run, and ends those in which only a sidecar runs. `None` deletes no
    pod, and `All` deletes all pods."""
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=86400)] = 60
    """`terminationGracePeriodSeconds` is the time in seconds in which ranks may save and exit after
    SIGTERM. The timeout of torchrun itself is 10 s shorter."""

    checks = (
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
            f"self.launcher != 'python' || {_PROCESSES_CEL} == 1",
            lambda self: self.launcher != "python" or self.processes_per_node == 1,
            "launcher python starts one process in each pod: must be 1, or auto with one GPU at "
            "most (for more processes use launcher torchrun; a script that starts them itself, "
            "with mp.spawn, has nprocPerNode: 1)",
            "nprocPerNode",
        ),
        Rule(
            f"type(self.nprocPerNode) != string || {_PROCESSES_CEL} <= {MAX_NPROC}",
            lambda self: self.processes_per_node <= MAX_NPROC,
            f"nprocPerNode starts a process for each GPU or CPU: at most {MAX_NPROC} in a pod",
            "resources.limits",
        ),
        Rule(
            f"self.nprocPerNode != 'gpu' || {_gpus_cel('self.resources')} > 0",
            lambda self: self.nproc_per_node != "gpu" or self.gpus > 0,
            "gpu needs GPUs in resources.limits",
            "nprocPerNode",
        ),
        Rule(
            "self.nprocPerNode != 'cpu' || has(self.resources.limits) && "
            "'cpu' in self.resources.limits",
            lambda self: self.nproc_per_node != "cpu" or "cpu" in (self.resources.limits or {}),
            "cpu needs cpu in resources.limits",
            "nprocPerNode",
        ),
        Rule(
            f"{_AGENT_CEL} || self.progress != 'file'",
            lambda self: self.has_agent or self.progress != "file",
            "progress: file needs the agent, which launcher none without command does not start",
            "progress",
        ),
        Rule(
            f"{_AGENT_CEL} || self.hangTimeoutSeconds == 0",
            lambda self: self.has_agent or not self.hang_timeout_seconds,
            "hangs are seen by the agent, which launcher none without command does not start",
            "hangTimeoutSeconds",
        ),
        Rule(
            f"{_AGENT_CEL} || self.keepSeconds == 0",
            lambda self: self.has_agent or not self.keep_seconds,
            "pods are kept by the agent, which launcher none without command does not start",
            "keepSeconds",
        ),
        Rule(
            f"{_AGENT_CEL} || !has(self.code)",
            lambda self: self.has_agent or self.code is None,
            "is unpacked by the agent, which launcher none without command does not start",
            "code",
        ),
        Rule(
            f"!has(self.code) || {_MOUNTS_CEL}"
            ".all(p, !(p + '/').startsWith(self.code.mountPath + '/'))",
            _code_is_apart,
            "is emptied before each start, so no other volume can be mounted there or below",
            "code.mountPath",
        ),
        Rule(
            f"{_AGENT_CEL} || self.spares == 0",
            lambda self: self.has_agent or not self.spares,
            "wait in the agent, which launcher none without command does not start",
            "spares",
        ),
        Rule(
            f"{_AGENT_CEL} || !has(self.elastic)",
            lambda self: self.has_agent or self.elastic is None,
            "needs the agent, which launcher none without command does not start",
            "elastic",
        ),
        Rule(
            "!has(self.elastic) || self.elastic.minNodes <= self.nnodes",
            lambda self: self.elastic is None or self.elastic.min_nodes <= self.nnodes,
            "must be at most nnodes",
            "elastic.minNodes",
        ),
        Rule(
            "self.nodeTimeoutSeconds == 0 || self.nodeTimeoutSeconds >= 5",
            lambda self: self.node_timeout_seconds == 0 or self.node_timeout_seconds >= 5,
            "must be 0 or at least 5",
            "nodeTimeoutSeconds",
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
            _differ_cel(_MOUNTS_CEL),
            lambda self: len({*_mounts(self)}) == len(_mounts(self)),
            "checkpoint, data, shm and volumeMounts must each have a mountPath of their own",
        ),
        Rule(
            _differ_cel(_CLAIMS_CEL),
            lambda self: len({*_claims(self)}) == len(_claims(self)),
            "the same claim in two volumes keeps a pod from starting: mount the one volume in "
            "several places, in volumeMounts (that of checkpoint is named ddpjob-checkpoint, that "
            "of data ddpjob-data)",
        ),
    )

    @property
    def gpus(self) -> int:
        """Return the number of GPUs in each pod's limits."""
        return gpus(self.resources)

    @property
    def processes_per_node(self) -> int:
        """Return the number of processes in each pod, with torchrun's words resolved."""
        if isinstance(self.nproc_per_node, int):
            return self.nproc_per_node
        return max(1, cpus(self.resources) if self.nproc_per_node == "cpu" else self.gpus)

    @property
    def world_size(self) -> int:
        """Return the number of processes in all pods together."""
        return self.nnodes * self.processes_per_node

    @property
    def process_group_backend(self) -> str:
        """Return `nccl` or `gloo`, with `auto` resolved."""
        if self.backend == "auto":
            return "nccl" if self.gpus else "gloo"
        return self.backend

    @property
    def has_agent(self) -> bool:
        """Return whether the agent starts the pods' command."""
        return self.launcher != "none" or bool(self.command)

    @property
    def spare_pods(self) -> int:
        """Return the number of spares that are kept: none where a lost pod has all made anew."""
        return self.spares if self.restarts_in_place else 0

    @property
    def kept_seconds(self) -> int:
        """Return for how many seconds pods stay once all ranks have ended."""
        return self.keep_seconds if self.restarts_in_place else 0

    @property
    def least_nodes(self) -> int:
        """Return the smallest number of nodes with which the ranks may train."""
        return self.elastic.min_nodes if self.elastic and self.restarts_in_place else self.nnodes

    def largest_group(self, nodes: int) -> int:
        """Return the largest group that may train, of so many nodes; 0 if there is none."""
        step = self.elastic.step if self.elastic else 1
        missing = max(0, self.nnodes - nodes)
        size = self.nnodes + missing // -step * step
        return size if size >= self.least_nodes else 0

    @property
    def has_own_rank_0(self) -> bool:
        """Return whether the pod of rank 0 is made in another way than the others."""
        own_volume = self.checkpoint is not None and self.checkpoint.mount_on == "Rank0"
        return self.master is not None or own_volume

    @property
    def restarts_in_place(self) -> bool:
        """Return whether agents wait after a failure, to be asked for another round."""
        return self.has_agent and self.failure_policy.restart_strategy == "InPlace"


def gpus(resources: Resources) -> int:
    """Return the number of GPUs in the limits."""
    limits = resources.limits or {}
    return sum(int(quantity_value(limits[name])) for name in limits if is_gpu(name))


def cpus(resources: Resources) -> int:
    """Return the number of whole CPUs in the limits."""
    limits = resources.limits or {}
    return int(quantity_value(limits["cpu"])) if "cpu" in limits else 0


# Fields of the spec that may change at any time. `template` may too: it is open, so CEL cannot
# compare it.
MUTABLE_FIELDS = (
    *("args", "env", "code", "suspend", "failurePolicy", "cleanPodPolicy"),
    *("activeDeadlineSeconds", "ttlSecondsAfterFinished"),
)
