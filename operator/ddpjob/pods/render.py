"""Renders the objects of a job. Pure: the same job, attempt and agent give the same bytes.

The pod is rendered once for an attempt, with marks
in place of what its ranks differ in, and each rank replaces the marks. To render each of a thousand
pods would cost more than to create them.

This file is longer than 400 lines because one pod is put together here, part by part, in the order
of the template; every part is a function of its own that only this file needs.
"""

import base64
import hashlib
import posixpath
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import orjson

from ddpjob import names
from ddpjob.api import Admission, DDPJob, Master, Status
from ddpjob.api.base import called, quantity_value
from ddpjob.api.messages import misfit
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import code, overlay
from ddpjob.pods.allowlist import Policy, refusals
from ddpjob.pods.gang import Gang, gang_of, outside
from ddpjob.pods.objects import labels_of, render_object
from ddpjob.pods.program import line_of, takes_programs, without_program

# The time for which pods stay on a node after Kubernetes has taken it for lost, which takes 40 s.
LOST_NODE_SECONDS = 5
# Terms of an overlay's node affinity if there are nodes to avoid.
MAX_TERMS = 64
# How the agent runs the launcher; `python`: a command of Python's that may start warm.
_MODES = {"torchrun": "torchrun", "accelerate": "python", "python": "python"}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# The fields that `master` may have for the pod of rank 0.
_OF_RANK_0 = ("image", "resources")
# Kueue takes it away once it has chosen a pod's node.
_TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
# The marks in place of what the pods of an attempt differ in (a spare has a number in its name, but
# no rank in its environment), and of the job's token. Nobody knows them, so they are in no job.
_RANK, _ENV_RANK, _PROOF, _TOKEN = (f"@{secrets.token_hex(8)}@" for _ in range(4))


@dataclass(frozen=True)
class Agent:
    """The zip that runs inside the pods, and the digest that names its ConfigMap."""

    archive: bytes

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the zip, hexadecimal."""
        return hashlib.sha256(self.archive).hexdigest()


@dataclass(frozen=True)
class PodTemplate:
    """The pods of an attempt as JSON, without their ranks, proofs and the job's token."""

    first: tuple[bytes, ...]
    """The parts of rank 0's pod between the places of its rank."""
    others: tuple[bytes, ...]
    """The same parts of all other pods."""
    spares: tuple[bytes, ...]
    """And of spares."""
    spec_hash: str
    """Of all but the program."""
    program: bytes
    """What the ranks run, as a line of JSON."""
    gang: Gang | None = None
    """What has to be there before them."""

    def body(self, rank: int, proof: str = "", token: str = "") -> bytes:
        """Return the pod of node rank `rank` as JSON, with the proof that the operator made it.

        -1 is the first spare, which needs no proof.
        """
        parts = self.spares if rank < 0 else self.others if rank else self.first
        pod = names.rank_text(rank).encode().join(parts)
        env_rank = names.OWN_RANK if rank < 0 else str(rank)
        for mark, text in ((_PROOF, proof), (_TOKEN, token), (_ENV_RANK, env_rank)):
            pod = pod.replace(mark.encode(), text.encode())
        return pod


def service(job: DDPJob, token: str) -> Body:
    """Return the job's headless Service, which keeps the token that agents and operator share."""
    return render_object("service.json.j2", job, token=token)


def config_map(job: DDPJob, agent: Agent) -> Body:
    """Return the ConfigMap with the agent for all jobs of the namespace. This job owns it."""
    archive = base64.b64encode(agent.archive).decode()
    return render_object("configmap.json.j2", job, digest=agent.digest, archive=archive)


def network_policy(job: DDPJob, policy: Policy) -> Body | None:
    """Return the job's NetworkPolicy, or None if the job has none."""
    if not job.spec.network_policy.enabled:
        return None
    return render_object("networkpolicy.json.j2", job, policy=policy)


def pods(job: DDPJob, agent: Agent, policy: Policy) -> PodTemplate:
    """Return the pods of the job's current attempt.

    Raises InvalidJob if the overlay or the volumes ask for something that ddpjob sets itself, or
    that `policy` does not allow.
    """
    first, others, found = both(job, agent, policy)
    for problem in found:
        raise problem
    if job.status.admission:
        first, others = _admitted(job.status.admission, first, others)
        for problem in chain(refusals(first, policy), refusals(others, policy)):
            raise problem  # somebody else has written that into the status
    if job.spec.scheduling and job.spec.scheduling.queue and policy.gang.scheduler != "volcano":
        rule = f"is of Volcano, and this installation has gang.scheduler {policy.gang.scheduler}"
        raise InvalidJob("spec.scheduling.queue", rule, job.spec.scheduling.queue)
    line = line_of(job, others)
    bare = without_program(job).model_copy(update={"status": Status()})
    text = orjson.dumps(both(bare, agent, policy)[:2]).decode()
    for mark, word in ((_RANK, "rank"), (_ENV_RANK, "rank"), (_TOKEN, "token")):
        text = text.replace(mark, f"@{word}@")
    spec_hash = hashlib.sha256(text.encode()).hexdigest()[:16]
    for pod in (first, others):
        own = {names.SPEC_HASH_ANNOTATION: spec_hash, names.PROOF_ANNOTATION: _PROOF}
        if job.spec.restarts_in_place:
            own[names.RESTART_ANNOTATION] = "InPlace"
        if timeout := _node_timeout(job):
            own[names.NODE_TIMEOUT_ANNOTATION] = str(timeout)
        pod["metadata"]["annotations"] |= own

    def parts(pod: Body) -> tuple[bytes, ...]:
        return tuple(orjson.dumps(pod).split(_RANK.encode()))

    spares = parts(_spare(job, others)) if job.spec.spares or job.spec.elastic else ()
    return PodTemplate(parts(first), parts(others), spares, spec_hash, line, gang_of(job, policy))


def problems(job: DDPJob, policy: Policy) -> list[InvalidJob]:
    """Return an InvalidJob for each reason why `pods` refuses the job."""
    return both(job, Agent(b""), policy)[2]


def both(job: DDPJob, agent: Agent, policy: Policy) -> tuple[Body, Body, list[InvalidJob]]:
    """Return the pod of rank 0, that of all others, and what is wrong with them."""
    master, checkpoint = job.spec.master, job.spec.checkpoint
    is_alone = checkpoint is not None and checkpoint.mount_on == "Rank0"
    gang = gang_of(job, policy)
    others, found = _pod(_with(job, checkpoint=None) if is_alone else job, agent, policy, gang)
    if (name := job.spec.spare_priority_class_name) is not None:
        found += _wrong_class(name, _spare(job, others), policy, gang)
    if not job.spec.has_own_rank_0:
        return others, others, found
    own = {name: getattr(master, name, None) or getattr(job.spec, name) for name in _OF_RANK_0}
    first, more = _pod(_with(job, **own), agent, policy, gang, master)
    names_of_class = [pod["spec"].get("priorityClassName") for pod in (first, others)]
    if gang and names_of_class[0] != names_of_class[1]:
        where = "spec.master.template.spec.priorityClassName"
        rule = "must be as in spec.template: the pods of a gang have one priority"
        found.append(misfit(where, rule, names_of_class[0]))
    common = {str(problem) for problem in found}
    for problem in more:
        if str(problem) not in common:  # so it is in the master's part
            where = problem.path.replace("spec.template", "spec.master.template", 1)
            found.append(InvalidJob(where, problem.rule, problem.value))
    return first, others, found


def _spare(job: DDPJob, pod: Body) -> Body:
    """Return a spare: a pod as the `others`, on another node than they are, where there is room."""
    name, kind = _pod_name(job, 0), "preferredDuringSchedulingIgnoredDuringExecution"
    spec = {**pod["spec"], "hostname": name}
    affinity = spec.get("affinity") or {}
    apart = affinity.get("podAntiAffinity") or {}
    ours = {"matchLabels": {names.JOB_UID_LABEL: job.uid}}
    term = {"labelSelector": ours, "topologyKey": "kubernetes.io/hostname"}
    wishes = [*(apart.get(kind) or []), {"weight": 100, "podAffinityTerm": term}]
    spec = {**spec, "affinity": {**affinity, "podAntiAffinity": {**apart, kind: wishes}}}
    if job.spec.spare_priority_class_name is not None:
        spec["priorityClassName"] = job.spec.spare_priority_class_name
    return {**pod, "metadata": {**pod["metadata"], "name": name}, "spec": spec}


def _wrong_class(name: str, spare: Body, policy: Policy, gang: Gang | None) -> Iterator[InvalidJob]:
    """Yield an InvalidJob if spares may not have this priority class."""
    where = "spec.sparePriorityClassName"
    if gang:
        yield misfit(where, "must be absent: the pods of a gang have one priority", name)
    for problem in refusals(spare, policy):
        if problem.path == "spec.template.spec.priorityClassName":
            yield InvalidJob(where, problem.rule, name)


def _admitted(admission: Admission, first: Body, others: Body) -> tuple[Body, Body]:
    """Return the pods with what Kueue asks of them."""
    asked = {found.name: found for found in admission.pod_sets}

    def with_wish(pod: Body, name: str) -> Body:
        wish = asked.get(name) or asked.get("main")
        if wish is None:
            return pod
        metadata, spec = pod["metadata"], pod["spec"]
        gates = [{"name": _TOPOLOGY_GATE}] if wish.gated else []
        spec = {
            **spec,
            "nodeSelector": {**spec.get("nodeSelector", {}), **wish.node_selector},
            "tolerations": [*spec["tolerations"], *(each.to_json() for each in wish.tolerations)],
            "schedulingGates": [*spec.get("schedulingGates", []), *gates],
        }
        own = {kind: {**getattr(wish, kind), **metadata[kind]} for kind in overlay.METADATA}
        return {**pod, "metadata": {**metadata, **own}, "spec": spec}

    return with_wish(first, "first"), with_wish(others, "others")


def _node_timeout(job: DDPJob) -> int:
    """Return the seconds after which a node that nobody hears counts as silent; 0 if none does."""
    return job.spec.node_timeout_seconds if job.spec.has_agent and job.spec.nnodes > 1 else 0


def _with(job: DDPJob, **changes: Any) -> DDPJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes)})


def _pod(
    job: DDPJob, agent: Agent, policy: Policy, gang: Gang | None, master: Master | None = None
) -> tuple[Body, list[InvalidJob]]:
    """Return a pod with its marks, and an InvalidJob for each broken rule."""
    pod = render_object("pod.json.j2", job, **_pod_values(job, agent))
    found: list[InvalidJob] = []
    pod = overlay.merge(pod, gang.member if gang else {})
    for template in (job.spec.template, master.template if master else None):
        if template:
            pod, wrong = overlay.apply(pod, template)
            found += wrong
    found += outside(gang, pod) if gang else []
    if not found:  # else a volume may be missing because its template was not merged
        found += _unmounted(pod)
    _secure(pod)
    _mount_tmp(pod)
    if job.spec.code:
        found += code.misplaced(job.spec.code, overlay.trainer(pod)["volumeMounts"])
    _leave_lost_nodes(pod)
    silent = [node.name for node in job.status.silent_nodes]
    found += _avoid(pod, job.status.avoided_nodes, silent)
    found += [_at_its_source(job, problem) for problem in refusals(pod, policy)]
    return pod, found


def _at_its_source(job: DDPJob, problem: InvalidJob) -> InvalidJob:
    """Return a problem with a volume of the pod, with the volume's path in the job."""
    fields = {volume.name: f"spec.volumes[{i}]" for i, volume in enumerate(job.spec.volumes)}
    fields |= {"ddpjob-checkpoint": "spec.checkpoint.volume", "ddpjob-data": "spec.data.volume"}
    fields |= code.FIELDS
    for name, field in fields.items():
        where = f"spec.template.spec.volumes{called(name)}"
        if problem.path.startswith(where):
            return InvalidJob(field + problem.path[len(where) :], problem.rule, problem.value)
    return problem


def _pod_name(job: DDPJob, since: int) -> str:
    """Return the name of a pod of the attempt, without its rank."""
    return names.pod_name(job.name, job.status.attempt, _RANK, since)


def pod_labels(attempt: int, rank: str) -> dict[str, str]:
    """Return the labels that a pod has besides `labels_of` its job."""
    return {names.ATTEMPT_LABEL: str(attempt), names.RANK_LABEL: rank}


def _pod_values(job: DDPJob, agent: Agent) -> Body:
    env = _environment(job)
    for variable in job.spec.env:  # a user's value replaces a default of ours
        env.pop(variable.name, None)
    volumes, mounts = _volumes(job, agent)
    return {
        "pod_name": _pod_name(job, job.status.own_pods.latest),
        "labels": labels_of(job) | pod_labels(job.status.attempt, _RANK),
        "token": _TOKEN,
        "command": _command(job),
        "args": _args(job),
        "env": env,
        "container_security": _CONTAINER_SECURITY,
        "volume_mounts": mounts,
        "volumes": volumes,
    }


def _command(job: DDPJob) -> list[str]:
    if not job.spec.has_agent:
        return []
    what = "command" if job.spec.command else _MODES.get(job.spec.launcher, "command")
    return ["python3", "-u", f"{names.AGENT_DIR}/{names.AGENT_ZIP}", what, "--"]


def _args(job: DDPJob) -> list[str]:
    spec = job.spec
    launchers = {"python": ["python3", "-u"], "accelerate": _accelerate(job)}
    command = spec.command or launchers.get(spec.launcher, [])
    return [*command, *(spec.args or [])]


def _accelerate(job: DDPJob) -> list[str]:
    """Return `accelerate launch` with all options that it would guess, or read from a file.

    `--multi_gpu` means several processes, on CPUs too: without it accelerate 1.15 starts one.
    """
    spec, (nnodes, world_size) = job.spec, _sizes(job)
    return [
        *("python3", "-u", "-m", "accelerate.commands.launch"),
        *(["--multi_gpu"] if spec.world_size > 1 else []),
        *("--num_machines", nnodes, "--num_processes", world_size),
        *("--machine_rank", "$(PET_NODE_RANK)"),
        *("--main_process_ip", "$(PET_MASTER_ADDR)", "--main_process_port", "$(PET_MASTER_PORT)"),
        *("--rdzv_backend", "static", "--mixed_precision", "no", "--dynamo_backend", "no"),
    ]


def _sizes(job: DDPJob) -> tuple[str, str]:
    """Return the number of nodes and that of all processes, or what stands for them."""
    if job.spec.elastic:
        return names.OWN_NNODES, names.OWN_WORLD_SIZE
    return str(job.spec.nnodes), str(job.spec.world_size)


def _environment(job: DDPJob) -> dict[str, str]:
    spec, attempt, own = job.spec, job.status.attempt, job.status.own_pods
    nnodes, world_size = _sizes(job)
    rank = names.OWN_RANK if spec.elastic else _ENV_RANK
    master = f"{names.pod_name(job.name, *own.place(0, own.since.get(0, 0)))}.{job.name}"
    nproc = spec.processes_per_node
    env = {
        "HOME": names.HOME_DIR,
        "USER": "ddpjob",  # torch asks for the user's name, and uid 10001 has none in most images
        "LOGNAME": "ddpjob",
        "XDG_CACHE_HOME": f"{names.HOME_DIR}/.cache",
        "HF_HOME": f"{names.HOME_DIR}/.cache/huggingface",
        "TORCHINDUCTOR_CACHE_DIR": f"{names.HOME_DIR}/.cache/torchinductor",
        "TRITON_CACHE_DIR": f"{names.HOME_DIR}/.cache/triton",
        "PYTHONUNBUFFERED": "1",
        "NCCL_DEBUG": "WARN",
    }
    if cpus := (spec.resources.limits or {}).get("cpu"):
        env["OMP_NUM_THREADS"] = str(max(1, int(quantity_value(cpus) / nproc)))
    if not spec.gpus:
        # Without it accelerate leaves every process alone, silently.
        env["ACCELERATE_USE_CPU"] = "true"
    env |= {
        # torchrun reads these and ignores the next four.
        "PET_NNODES": nnodes,
        "PET_NPROC_PER_NODE": str(nproc),
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(spec.master_port),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": f"{job.uid}-{attempt}",
        # torchrun's own restarts do not work with several nodes; a round follows instead.
        "PET_MAX_RESTARTS": "0",
        # What env:// and managed services mean by them: the node's rank, the number of nodes.
        "MASTER_ADDR": master,
        "MASTER_PORT": str(spec.master_port),
        "RANK": rank,
        "WORLD_SIZE": nnodes,
        "DDPJOB_JOB": job.name,
        "DDPJOB_NAMESPACE": job.namespace,
        "DDPJOB_ATTEMPT": str(attempt),
        "DDPJOB_RESTARTS": str(max(0, job.status.restarts - job.status.round)),
        "DDPJOB_NODE_RANK": _ENV_RANK,
        "DDPJOB_NNODES": str(spec.nnodes),
        "DDPJOB_NPROC_PER_NODE": str(nproc),
        "DDPJOB_WORLD_SIZE": world_size,
        "DDPJOB_BACKEND": spec.process_group_backend,
        "DDPJOB_PROGRESS": spec.progress,
        "DDPJOB_PROGRESS_FILE": names.PROGRESS_FILE,
        "DDPJOB_RUN_DIR": names.RUN_DIR,
        "DDPJOB_AGENT_PORT": str(names.AGENT_PORT),
        "DDPJOB_GRACE_SECONDS": str(spec.termination_grace_period_seconds),
        "DDPJOB_TERMINATION_LOG": names.TERMINATION_LOG,
    }
    optional = {
        "LOCAL_RANK": "0" if nproc == 1 else None,
        "DDPJOB_SUCCESS_POLICY": None if spec.success_policy == "All" else spec.success_policy,
        "DDPJOB_RESTART": "InPlace" if spec.restarts_in_place else None,
        "DDPJOB_ROUND": own.latest,
        "DDPJOB_PROGRAM": takes_programs(job)
        and (job.status.ordered_program or names.FIRST_PROGRAM),
        "DDPJOB_MAX_WORLD_SIZE": spec.elastic and spec.world_size,
        "DDPJOB_WARM_START": None if spec.warm_start.enabled else "0",
        "DDPJOB_WARM_MODULES": ",".join(spec.warm_start.modules),
        "DDPJOB_HANG_SECONDS": spec.hang_timeout_seconds,
        "DDPJOB_KEEP_SECONDS": spec.kept_seconds,
        "DDPJOB_NODE_TIMEOUT": _node_timeout(job),
        "DDPJOB_CHECKPOINT_DIR": spec.checkpoint and spec.checkpoint.mount_path,
        "DDPJOB_DATA_DIR": spec.data and spec.data.mount_path,
    }
    env |= {name: str(value) for name, value in optional.items() if value}
    return env | (code.variables(spec.code) if spec.code else {})


def _volumes(job: DDPJob, agent: Agent) -> tuple[list[Body], list[Body]]:
    """Return the pod's volumes and the trainer container's mounts."""
    spec = job.spec
    volumes: list[Body] = []
    mounts: list[Body] = []

    def add(name: str, source: Body, path: str, **options: bool) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **options})

    add("ddpjob-run", {"emptyDir": {}}, names.RUN_DIR)
    add("ddpjob-home", {"emptyDir": {}}, names.HOME_DIR)
    if spec.has_agent:
        config_map = {"name": names.agent_config_name(agent.digest)}
        add("ddpjob-agent", {"configMap": config_map}, names.AGENT_DIR, readOnly=True)
    if spec.shm.enabled:
        limit = {"sizeLimit": spec.shm.size_limit} if spec.shm.size_limit is not None else {}
        add("ddpjob-shm", {"emptyDir": {"medium": "Memory", **limit}}, "/dev/shm")
    if spec.checkpoint:
        add("ddpjob-checkpoint", spec.checkpoint.volume.to_json(), spec.checkpoint.mount_path)
    if spec.data:
        add("ddpjob-data", spec.data.volume.to_json(), spec.data.mount_path, readOnly=True)
    volumes += [volume.to_json() for volume in spec.volumes]
    mounts += [mount.to_json() for mount in spec.volume_mounts]
    if spec.code:
        own = code.volumes(spec.code, volumes)
        return volumes + own[0], mounts + own[1]
    return volumes, mounts


def _leave_lost_nodes(pod: Body) -> None:
    """Make Kubernetes delete pods 5 s after their node is lost, and not after 300 s.

    An overlay may tolerate these taints in another way.
    """
    tolerations = pod["spec"].get("tolerations") or []
    pod["spec"]["tolerations"] = tolerations + [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for taint in ("not-ready", "unreachable")
        if not any(_tolerates(own, f"node.kubernetes.io/{taint}") for own in tolerations)
    ]


def _tolerates(toleration: Body, key: str) -> bool:
    effect = toleration.get("effect") or "NoExecute"
    return effect == "NoExecute" and toleration.get("key", key) in (key, "")


def _avoid(pod: Body, nodes: Sequence[str], silent: Sequence[str]) -> list[InvalidJob]:
    """Keep the pod off these nodes, whatever else it asks of its node, or return why it cannot.

    It keeps off silent nodes where it can: no job is refused for their sake.
    """
    wish: Body = pod["spec"].get("affinity") or {}
    node_affinity: Body = wish.get("nodeAffinity") or {}
    required: Body = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    # Terms are alternatives; what all of them are to hold must stand in each.
    given = required.get("nodeSelectorTerms") or [{}]
    few = len(given) <= MAX_TERMS
    every = dict.fromkeys([*nodes, *(silent if few else ())])
    if not every:
        return []
    if not few:  # each gets all nodes: thousands of them make a pod of megabytes
        where = "spec.template.spec.affinity.nodeAffinity"
        rule = f"must have at most {MAX_TERMS} nodeSelectorTerms to keep off {len(nodes)} nodes"
        return [InvalidJob(where, f"{rule}, has {len(given)}")]
    off = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in every]
    terms = [{**term, "matchFields": [*(term.get("matchFields") or []), *off]} for term in given]
    node_affinity = {
        **node_affinity,
        "requiredDuringSchedulingIgnoredDuringExecution": {**required, "nodeSelectorTerms": terms},
    }
    pod["spec"]["affinity"] = {**wish, "nodeAffinity": node_affinity}
    return []


def _secure(pod: Body) -> None:
    """Give sidecars and init containers the trainer's defaults."""
    for kind in ("containers", "initContainers"):
        for container in pod["spec"].get(kind) or []:
            own = container.get("securityContext") or {}
            container["securityContext"] = overlay.merge(_CONTAINER_SECURITY, own)


def _mount_tmp(pod: Body) -> None:
    """Give the trainer a /tmp where its image may not be written to, unless it has one.

    torchrun and many scripts need a folder for temporary files. Other places of ours are mounted.
    """
    trainer = overlay.trainer(pod)
    mounts = trainer["volumeMounts"]
    is_there = any(posixpath.normpath(mount["mountPath"]) == "/tmp" for mount in mounts)
    if trainer["securityContext"].get("readOnlyRootFilesystem") is True and not is_there:
        mounts.append({"name": names.TMP_VOLUME, "mountPath": "/tmp"})
        pod["spec"]["volumes"].append({"name": names.TMP_VOLUME, "emptyDir": {}})


def _unmounted(pod: Body) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each mount that has no volume."""
    spec = pod["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    for kind in ("containers", "initContainers"):
        for position, container in enumerate(spec.get(kind) or []):
            for mount in container.get("volumeMounts") or []:
                if (name := mount.get("name")) not in volumes:
                    path = f"spec.volumeMounts{called(str(mount.get('mountPath')))}.name"
                    if container["name"] != names.TRAINER_CONTAINER:
                        path = f"spec.template.spec.{kind}[{position}].volumeMounts"
                    yield misfit(path, "no volume has the name", name)
