"""Makes the spec of a DDPJob of pods of another operator, and checks the result."""

from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from ddpjob import api, names
from ddpjob.api.podtypes import VOLUME_SOURCES, Resources
from ddpjob.api.spec import NPROC_WORDS, Spec, gpus
from ddpjob.convert.command import Program, number
from ddpjob.convert.fields import Fields, Notes
from ddpjob.convert.pod import Pod
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import NOT_ALLOWED, Policy
from ddpjob.pods.overlay import MERGE_KEYS, is_keyed

MOST_RESTARTS = 1000
# The fields of the trainer's container that a DDPJob's spec has itself.
_OF_TRAINER = ("image", "imagePullPolicy", "env", "envFrom", "resources")
_SOURCES = frozenset({"name", *VOLUME_SOURCES})
_MOUNT = frozenset({"name", "mountPath", "subPath", "subPathExpr", "readOnly"})
# Where rank 0 may have more than it asked for, because an overlay can remove nothing.
_OPEN = ("", "metadata", "labels", "annotations", "spec", "nodeSelector")
_CONTAINERS = ("containers", "initContainers")
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
    _move(parts, "imagePullSecrets", spec, frozenset({"name"}))
    _move(parts, "volumes", spec, _SOURCES)
    _move(trainer, "volumeMounts", spec, _MOUNT)
    fields = {"masterPort": pod.port, "terminationGracePeriodSeconds": pod.grace}
    spec |= {name: value for name, value in fields.items() if value is not None}
    spec |= {"shm": pod.shm} if pod.shm else {}
    overlay = _without_bare_trainer(template)
    return spec | ({"template": overlay} if overlay else {})


def _move(source: Body, name: str, spec: Body, known: frozenset[str]) -> None:
    """Move the items that `spec` can have itself; the others stay in the overlay."""
    items = source.pop(name, [])
    for place, has_all in ((spec, True), (source, False)):
        if found := [item for item in items if (set(item) <= known) is has_all]:
            place[name] = found


def _without_bare_trainer(overlay: Body) -> Body:
    """Return the overlay without empty parts, and without a trainer that has nothing but a name."""
    bare = {"name": names.TRAINER_CONTAINER}
    spec = dict(overlay.get("spec") or {})
    containers = [item for item in spec.pop("containers", []) if item != bare]
    spec |= {"containers": containers} if containers else {}
    found = {**overlay, "spec": spec}
    return {name: part for name, part in found.items() if part}


def as_rank_0(master: Pod, others: Pod, notes: Notes) -> Body:
    """Return the fields of the spec that make the pod of rank 0 like `master`, if it differs."""
    if others.program != master.program:
        rule = "must be as in the Master, because all nodes of a DDPJob run the same program"
        raise InvalidJob(f"{others.trainer_path}.command", rule)
    reason = "the Worker has another, and all pods get that"
    if others.shm != master.shm:
        notes.changed(f"{master.trainer_path}.volumeMounts[/dev/shm]", reason)
    if others.grace != master.grace:
        notes.changed(f"{master.path}.spec.terminationGracePeriodSeconds", reason)
    bodies = deepcopy((others.template, master.template))
    resources = [body["spec"]["containers"][0].pop("resources", {}) for body in bodies]
    overlay = _Difference(others, notes).of(*bodies, others.path, "") or {}
    found: Body = {} if resources[0] == resources[1] else {"resources": resources[1]}
    for container in overlay.get("spec", {}).get("containers", []):
        if container["name"] == names.TRAINER_CONTAINER and "image" in container:
            found["image"] = container.pop("image")
    overlay = _without_bare_trainer(overlay)
    found |= {"template": overlay} if overlay else {}
    fields = {"master": found, "masterPort": master.port}
    return {name: value for name, value in fields.items() if value}


class _Difference:
    """Makes overlays, and notes what they cannot remove."""

    def __init__(self, others: Pod, notes: Notes) -> None:
        self._others, self._notes = others, notes

    def of(self, base: Any, wanted: Any, path: str, field: str) -> Any:
        """Return the part of an overlay that makes `wanted` of `base`; None if they are equal.

        `field` is the name of the part in the pod.
        """
        key = MERGE_KEYS.get(field, "")
        if base == wanted:
            return None
        if isinstance(base, dict) and isinstance(wanted, dict):
            return self._of_parts(base, wanted, path, field) or None
        if not (key and is_keyed(base, key) and is_keyed(wanted, key)):
            return wanted
        known, asked = ({item[key]: item for item in items} for items in (base, wanted))
        if (len(known), len(asked)) != (len(base), len(wanted)):
            raise InvalidJob(path, f"must be as in the Master, or have each {key} once")
        found = self._of_parts(known, asked, path, field, is_list=True)
        return [{key: name, **part} for name, part in found.items()] or None

    def _of_parts(
        self, base: Body, wanted: Body, path: str, field: str, *, is_list: bool = False
    ) -> Body:
        is_open, found = is_list or field in (*_OPEN, *_CONTAINERS), Body()
        for name in [*base, *(name for name in wanted if name not in base)]:
            where = f"{path}[{name}]" if is_list else f"{path}.{name}"
            within = field if is_list else name
            if name not in wanted:
                self._keep(where, is_open=is_open)
            elif name not in base:
                found[name] = wanted[name]
            elif (part := self.of(base[name], wanted[name], where, within)) is not None:
                found[name] = part
        return {name: found[name] for name in wanted if name in found}

    def _keep(self, path: str, *, is_open: bool) -> None:
        """Note what only the others have."""
        trainer = f"{self._others.path}.spec.containers[{names.TRAINER_CONTAINER}]"
        path = path.replace(trainer, self._others.trainer_path, 1)
        if not is_open:
            rule = "must be in the Master too, because an overlay for rank 0 can remove nothing"
            raise InvalidJob(path, rule)
        self._notes.changed(path, "is not in the Master, but rank 0 gets it too")


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


def finished(metadata: Body, spec: Body, notes: Notes) -> Body:
    """Return the DDPJob with this metadata and spec, and note what an installation must allow."""
    limit = spec.get("failurePolicy", {}).get("maxRestarts")
    if isinstance(limit, int) and limit > MOST_RESTARTS:
        spec["failurePolicy"]["maxRestarts"] = MOST_RESTARTS
        notes.changed("spec.failurePolicy.maxRestarts", f"{limit}: {MOST_RESTARTS} are the most")
    ordered = {name: spec[name] for name in sorted(spec, key=_ORDER.index)}
    job: Body = {"apiVersion": names.API_VERSION, "kind": names.KIND}
    job |= {"metadata": metadata, "spec": ordered}
    for problem in api.validate(job) or render.problems(api.DDPJob.parse(job), Policy()):
        if NOT_ALLOWED not in problem.rule:
            raise InvalidJob(f"DDPJob {problem.path}", problem.rule, problem.value)
        notes.changed(problem.path, f"{problem.rule} by default; see the chart's values")
    return job
