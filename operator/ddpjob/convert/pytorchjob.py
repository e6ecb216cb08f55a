"""Turns a PyTorchJob of Kubeflow's Training Operator (kubeflow.org/v1) into a DDPJob."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddpjob.convert.draft import spec_of
from ddpjob.convert.failures import failure_policy, read_restart_policy
from ddpjob.convert.fields import Fields, Note, Notes
from ddpjob.convert.master import master_of
from ddpjob.convert.metadata import read_metadata
from ddpjob.convert.pod import Pod, read_pod
from ddpjob.convert.processes import read_processes, start_of
from ddpjob.convert.result import finished
from ddpjob.convert.runpolicy import read_elastic_policy, read_run_policy
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import overlay

CONTAINER, PORT_NAME = "pytorch", "pytorchjob-port"
MASTER, WORKER = "Master", "Worker"


@dataclass(frozen=True)
class _Role:
    """The replicas of one kind, Master or Worker."""

    path: str
    replicas: int
    restart_policy: str
    pod: Pod


def convert_pytorch_job(source: Fields) -> Body:
    """Return the DDPJob that does what the PyTorchJob does, and note the differences.

    Raises InvalidJob, with the path, if no DDPJob does that.
    """
    metadata, fields = read_metadata(source), source.part("spec")
    roles = _read_roles(fields.part("pytorchReplicaSpecs"))
    main = roles.get(WORKER) or roles[MASTER]
    spec = spec_of(main.pod) | {"nnodes": sum(role.replicas for role in roles.values())}
    if len(roles) > 1:
        spec |= _master(roles, source.notes)
    run_policy, backoff_limit = read_run_policy(fields.part("runPolicy"))
    # The pods' own priority class outranks that of the pod group.
    template = overlay.merge(run_policy.pop("template", {}), spec.pop("template", {}))
    spec |= run_policy | ({"template": template} if template else {})
    elastic = fields.part("elasticPolicy")
    restarts, processes = read_elastic_policy(elastic)
    declared = read_processes(fields, "nprocPerNode")
    if None not in (declared, processes):
        rule = "must not be set beside spec.nprocPerNode"
        raise elastic.error("nProcPerNode", rule, processes)
    spec |= _start(main.pod, spec, declared or processes or "auto", fields)
    in_place = main.pod.program.max_restarts
    limits = restarts if in_place is None else in_place, backoff_limit
    spec |= _failures(roles, main, limits, fields)
    source.end()
    return finished(metadata, spec, source.notes)


def _read_roles(source: Fields) -> dict[str, _Role]:
    """Return the roles that have replicas. Raises InvalidJob if there is none."""
    notes: dict[str, Notes] = {}
    found: dict[str, _Role] = {}
    for name in source:
        title = name.capitalize()
        if title not in (MASTER, WORKER) or title in notes:
            raise source.error(
                name, "must be Master or Worker, each once", source.take(name, object)
            )
        notes[title] = Notes()
        part = Fields(source.take(name, object), source.where(title), notes[title])
        if role := _read_role(part, title):
            found[title] = role
        part.end()
    source.notes.add(*_joined(notes, source.path))
    if not found:
        raise InvalidJob(source.path, "must have a Master, or a Worker with replicas")
    return found


def _read_role(part: Fields, title: str) -> _Role | None:
    """Return the role, or None if it has no replicas."""
    replicas = part.take("replicas", int)
    count = 1 if replicas is None else replicas
    if title == MASTER and count != 1:
        raise part.error("replicas", "must be 1", count)
    if count < 0:
        raise part.error("replicas", "must be at least 0", count)
    if count == 0:
        part.leave_out("there are no replicas", list(part))
        return None
    policy = read_restart_policy(part) or "OnFailure"
    return _Role(part.path, count, policy, read_pod(part.part("template"), CONTAINER, PORT_NAME))


def _joined(notes: Mapping[str, Notes], path: str) -> list[Note]:
    """Return the notes of both roles. What is noted of both stands once."""
    found: dict[Note, list[Note]] = {}
    for role, own in notes.items():
        for note in own:
            shared = replace(note, path=note.path.replace(f"{path}.{role}", f"{path}.*", 1))
            found.setdefault(shared, []).append(note)
    return [shared if len(own) > 1 else own[0] for shared, own in found.items()]


def _master(roles: Mapping[str, _Role], notes: Notes) -> Body:
    """Return the fields that make the Master rank 0: when it has succeeded, the job has."""
    worker, master = roles[WORKER], roles[MASTER]
    found = master_of(worker.pod, master.pod, notes)
    port = {} if master.pod.port is None else {"masterPort": master.pod.port}
    return {"successPolicy": "Rank0", **port} | ({"master": found} if found else {})


def _start(pod: Pod, spec: Body, declared: int | str, fields: Fields) -> Body:
    path, program = fields.where("nprocPerNode"), pod.program
    is_known = program.is_one_process or program.launcher != "none"
    if isinstance(declared, int) and declared > 1 and not is_known:
        text = f"{declared}: WORLD_SIZE counts the nodes, where it was {declared} times as large"
        fields.notes.changed(path, text)
    return start_of(program, spec, declared, path, fields.notes)


def _failures(
    roles: Mapping[str, _Role],
    main: _Role,
    limits: tuple[int | None, int | None],
    fields: Fields,
) -> Body:
    """Return the failure policy. `limits` are those of torchrun and of the operator."""
    path, notes = f"{main.path}.restartPolicy", fields.notes
    if len({role.restart_policy for role in roles.values()}) > 1:
        notes.changed(path, f"{main.restart_policy}: counts for the Master too, as for the group")
    in_place, backoff_limit = limits
    where = fields.where("runPolicy.backoffLimit")
    if backoff_limit is not None and (in_place is not None or main.restart_policy == "Never"):
        notes.lost(where, f"{backoff_limit}: another field limits the restarts")
        backoff_limit = None
    limit = backoff_limit if in_place is None else in_place
    if backoff_limit is not None:
        notes.changed(where, f"{backoff_limit}: counts restarts of the group without progress")
    found = failure_policy(main.restart_policy, limit, path, notes)
    return {"failurePolicy": found} if found else {}
