"""Makes the spec of a DDPJob of pods of another operator, and checks the result."""

from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from ddpjob import api, names
from ddpjob.api.base import fields_of
from ddpjob.api.podtypes import Resources, Volume
from ddpjob.api.spec import NPROC_WORDS, Spec, gpus
from ddpjob.convert.command import Program, number
from ddpjob.convert.fields import Fields, Notes
from ddpjob.convert.pod import Pod
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import NOT_ALLOWED, Policy

# The fields of the trainer's container that a DDPJob's spec has itself.
_OF_TRAINER = ("image", "imagePullPolicy", "env", "envFrom", "resources")
_MOUNT = frozenset({"name", "mountPath", "subPath", "subPathExpr", "readOnly"})
# The order of the fields of a spec.
_ORDER = [str(field.alias) for field in Spec.model_fields.values()]


def spec_of(pod: Pod) -> Body:
    """Return the fields of a DDPJob's spec that make its pods like `pod`.

    What the spec does not have itself is in `template`. Only `command` is missing, because it may
    depend on the number of processes.
    """
    template = deepcopy(pod.template)
    parts, trainer = template["spec"], template["spec"]["containers"][0]
    spec: Body = {} if pod.program.launcher == "torchrun" else {"launcher": pod.program.launcher}
    if pod.program.args:
        spec["args"] = list(pod.program.args)
    spec |= {name: trainer.pop(name) for name in _OF_TRAINER if name in trainer}
    if any(mount["mountPath"] == "/dev/shm" for mount in trainer.get("volumeMounts", [])):
        spec["shm"] = {"enabled": False}
    _move(parts, "imagePullSecrets", spec, frozenset({"name"}))
    _move(parts, "volumes", spec, frozenset(fields_of(Volume)))
    _move(trainer, "volumeMounts", spec, _MOUNT)
    fields = {"masterPort": pod.port, "terminationGracePeriodSeconds": pod.grace}
    spec |= {name: value for name, value in fields.items() if value is not None}
    bare = {"name": names.TRAINER_CONTAINER}
    containers = [container for container in parts.pop("containers") if container != bare]
    parts |= {"containers": containers} if containers else {}
    overlay = {name: part for name, part in template.items() if part}
    return spec | ({"template": overlay} if overlay else {})


def _move(source: Body, name: str, spec: Body, known: frozenset[str]) -> None:
    """Move the items that `spec` can have itself; the others stay in the overlay."""
    items = source.pop(name, [])
    for place, has_all in ((spec, True), (source, False)):
        if found := [item for item in items if (set(item) <= known) is has_all]:
            place[name] = found


def as_rank_0(master: Pod, others: Pod, notes: Notes) -> Body:
    """Return the fields of the spec that make the pod of rank 0 like `master`.

    These are its image, its resources and its port. All other differences are noted.
    """
    if others.program != master.program:
        rule = "must be as in the Master, because all nodes of a DDPJob run the same program"
        raise InvalidJob(f"{others.trainer_path}.command", rule)
    own, mine, theirs = Body(), _fields(master, master), _fields(others, master)
    for path in {**mine, **theirs}:
        name = path.removeprefix(f"{master.trainer_path}.")
        if mine.get(path) == theirs.get(path):
            continue
        if name in ("image", "resources"):
            own[name] = mine.get(path, {})
        else:
            notes.lost(path, "rank 0 gets what the Worker has; see spec.master.template")
    fields = {"master": own, "masterPort": master.port}
    return {name: value for name, value in fields.items() if value}


def _fields(pod: Pod, master: Pod) -> Body:
    """Return the fields of a pod by their paths in the Master."""
    spec = dict(pod.template["spec"])
    trainer, *spec["containers"] = spec["containers"]
    spec["terminationGracePeriodSeconds"] = pod.grace
    found: Body = {f"{master.path}.metadata": pod.template.get("metadata")}
    found |= {f"{master.path}.spec.{name}": part for name, part in spec.items()}
    return found | {f"{master.trainer_path}.{name}": part for name, part in trainer.items()}


def resources_of(resources: Any) -> Resources:
    """Return the resources; none if these are no resources, as the check of the result will say."""
    try:
        return Resources.model_validate(resources or {})
    except ValidationError:
        return Resources()


def read_processes(source: Fields, path: str) -> int | str | None:
    """Take the processes of each node: a number, `auto`, `cpu` or `gpu`, or None if absent."""
    value = source.take(path, object)
    count = number(value) if isinstance(value, str) else value
    if value is None or isinstance(value, str) and value in NPROC_WORDS:
        return value
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise source.error(path, "must be auto, cpu, gpu or a number from 1", value)
    return count


def start_of(program: Program, spec: Body, declared: int | str, path: str, notes: Notes) -> Body:
    """Return `nprocPerNode` and `command` of the spec, each left out where the default fits.

    `declared` is what the object asks for at `path`: a number, `auto`, `cpu` or `gpu`. The
    program's own command line outranks it.
    """
    gpu_count, nnodes = gpus(resources_of(spec.get("resources"))), spec["nnodes"]
    if program.total is None:
        count = _processes(program, declared, gpu_count, path, notes)
    elif program.total and nnodes and not program.total % nnodes:
        count = program.total // nnodes
    else:
        rule = f"must be a multiple of the {nnodes} nodes, got {program.total}"
        raise InvalidJob(f"{path}: --num_processes", rule, program.total)
    default = max(1, gpu_count)
    found: Body = {} if count in (None, default) else {"nprocPerNode": count}
    command = program.command_for(nnodes * (count or default))
    return found | ({"command": command} if command else {})


def _processes(
    program: Program, declared: int | str, gpu_count: int, path: str, notes: Notes
) -> int | None:
    """Return how many processes each node starts, or None for the default."""
    if isinstance(declared, int) and declared > 1 and not program.starts_workers:
        reason = "the program starts once on each node, and WORLD_SIZE counts the nodes"
        notes.changed(path, f"{declared}: {reason}")
    if program.is_one_process:
        return 1 if gpu_count > 1 else None
    wanted: int | str = number(program.nproc) or program.nproc or declared
    if isinstance(wanted, str) and wanted not in NPROC_WORDS:
        notes.lost(path, "the command line has its processes from a variable; set nprocPerNode")
        wanted = declared
    if isinstance(wanted, int):
        return wanted
    if wanted == "cpu":
        notes.lost(path, "cpu: one process starts, as no file has the CPUs; set nprocPerNode")
        return 1
    if not gpu_count and program.starts_workers:
        text = f"{wanted}: one process starts, as there are no GPUs in resources.limits"
        notes.changed(path, f"{text}; set nprocPerNode, as torchrun starts one for each CPU")
    return None


# Volcano's, on the pods of a TrainJob.
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"


def _queue(metadata: Body, spec: Body, notes: Notes) -> None:
    """Say in a DDPJob's words which queue it waits in."""
    metadata_of_pods = spec.get("template", {}).get("metadata", {})
    asked = metadata_of_pods.get("annotations", {})
    if queue := asked.pop(_VOLCANO_QUEUE, ""):
        if not asked:
            del metadata_of_pods["annotations"]
        spec.setdefault("scheduling", {})["queue"] = queue
        words = f"{queue}: is scheduling.queue, which needs gang.scheduler: volcano in the chart"
        notes.changed(_VOLCANO_QUEUE, words)
    if names.QUEUE_LABEL in metadata.get("labels", {}) and spec.pop("suspend", False):
        notes.changed("suspend", "true: left out, since a DDPJob waits for Kueue without it")


def finished(metadata: Body, spec: Body, notes: Notes) -> Body:
    """Return the DDPJob with this metadata and spec, and note what an installation must allow."""
    _queue(metadata, spec, notes)
    ordered = {name: spec[name] for name in sorted(spec, key=_ORDER.index)}
    job: Body = {"apiVersion": names.API_VERSION, "kind": names.KIND}
    job |= {"metadata": metadata, "spec": ordered}
    for problem in api.validate(job) or render.problems(api.DDPJob.parse(job), Policy()):
        if NOT_ALLOWED not in problem.rule:
            raise InvalidJob(f"DDPJob {problem.path}", problem.rule, problem.value)
        notes.changed(problem.path, f"{problem.rule} by default; see the chart's values")
    return job
