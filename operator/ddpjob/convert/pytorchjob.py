"""Turns a PyTorchJob of Kubeflow's Training Operator (kubeflow.org/v1) into a DDPJob."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddpjob.convert import tables
from ddpjob.convert.fields import Dropped, Fields, Note, Notes
from ddpjob.convert.pod import Pod, read_metadata, read_pod
from ddpjob.convert.spec import as_rank_0, finished, read_processes, spec_of, start_of
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import overlay

CONTAINER, PORT_NAME = "pytorch", "pytorchjob-port"
MASTER, WORKER = "Master", "Worker"
# The exit codes after which `ExitCode` restarts nothing. A rule has at most 64 of them.
_PERMANENT = (range(1, 65), range(65, 128))
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")


@dataclass(frozen=True)
class _Role:
    """The replicas of one kind, Master or Worker."""

    path: str
    replicas: int
    restart_policy: str
    pod: Pod


def convert_pytorch_job(source: Fields) -> Body:
    """Return the DDPJob that does what the PyTorchJob does, and note the differences."""
    metadata, fields = read_metadata(source), source.part("spec")
    roles = _read_roles(fields.part("pytorchReplicaSpecs"))
    main = roles.get(WORKER) or roles[MASTER]
    processes = read_processes(fields, "nprocPerNode")
    processes = read_processes(fields, "elasticPolicy.nProcPerNode") or processes
    failures = _failures(roles, main, fields)
    # The pods' own priority class outranks that of the pod group.
    spec: Body = overlay.merge(
        {"cleanPodPolicy": "None", **fields.read(tables.PYTORCH_JOB)},
        spec_of(main.pod) | {"nnodes": sum(role.replicas for role in roles.values())},
    )
    if len(roles) > 1:  # the Master is rank 0: when it has succeeded, the job has
        spec |= {"successPolicy": "Rank0"} | as_rank_0(roles[MASTER].pod, main.pod, source.notes)
    path = fields.where("nprocPerNode")
    spec |= start_of(main.pod.program, spec, processes or "auto", path, source.notes)
    spec |= {"failurePolicy": failures} if failures else {}
    source.end()
    return finished(metadata, spec, source.notes)


def _read_roles(source: Fields) -> dict[str, _Role]:
    """Return the roles that have replicas."""
    notes: dict[str, Notes] = {}
    found: dict[str, _Role] = {}
    for name in source:
        title, value = name.capitalize(), source.take(name, object)
        if title not in (MASTER, WORKER) or title in notes:
            raise source.error(name, "must be Master or Worker, each once", value)
        notes[title] = Notes()
        part = Fields(value, source.where(title), notes[title])
        if role := _read_role(part, title):
            found[title] = role
        part.end()
    source.notes.update(dict.fromkeys(_joined(notes, source.path)))
    if not found:
        raise InvalidJob(source.path, "must have a Master, or a Worker with replicas")
    return found


def _read_role(part: Fields, title: str) -> _Role | None:
    """Return the role, or None if it has no replicas."""
    replicas = part.take("replicas", int)
    count = 1 if replicas is None else replicas
    if count < 0 or title == MASTER and count != 1:
        rule = "must be 1" if title == MASTER else "must be at least 0"
        raise part.error("replicas", rule, count)
    if count == 0:
        part.read({"*": Dropped("there are no replicas")})
        return None
    policy = part.take("restartPolicy", str) or "OnFailure"
    if policy not in RESTART_POLICIES:
        raise part.error("restartPolicy", f"must be one of {', '.join(RESTART_POLICIES)}", policy)
    return _Role(part.path, count, policy, read_pod(part.part("template"), CONTAINER, PORT_NAME))


def _joined(notes: Mapping[str, Notes], path: str) -> list[Note]:
    """Return the notes of both roles. What is noted of both stands once."""
    found: dict[Note, list[Note]] = {}
    for role, own in notes.items():
        for note in own:
            shared = replace(note, path=note.path.replace(f"{path}.{role}", f"{path}.*", 1))
            found.setdefault(shared, []).append(note)
    return [shared if len(own) > 1 else own[0] for shared, own in found.items()]


def _failures(roles: Mapping[str, _Role], main: _Role, fields: Fields) -> Body:
    """Return the failure policy. Of several limits that nearest to the script counts."""
    path, policy, notes = f"{main.path}.restartPolicy", main.restart_policy, fields.notes
    if len({role.restart_policy for role in roles.values()}) > 1:
        notes.changed(path, f"{policy}: counts for the Master too, as for the group")
    limit, where = main.pod.program.max_restarts, fields.where("runPolicy.backoffLimit")
    elastic = fields.take("elasticPolicy.maxRestarts", int)
    limit = elastic if limit is None else limit
    backoff_limit = fields.take("runPolicy.backoffLimit", int)
    if backoff_limit is not None and (limit is not None or policy == "Never"):
        notes.lost(where, f"{backoff_limit}: another field limits the restarts")
    elif backoff_limit is not None:
        notes.changed(where, f"{backoff_limit}: is failurePolicy.maxRestarts, {tables.COUNTED}")
        limit = backoff_limit
    if policy == "Never" and limit is None:
        reason = "after a failure the job fails; a pod that was deleted or lost is still replaced"
        notes.changed(path, f"Never: {reason}")
        return {"maxRestarts": 0}
    found: Body = {} if limit is None else {"maxRestarts": limit}
    if policy == "ExitCode":
        reason = "the exit code that counts is that of the worker, not that of its launcher"
        notes.changed(path, f"ExitCode: rules of failurePolicy; {reason}")
        found["rules"] = [{"onExitCodes": list(codes), "action": "FailJob"} for codes in _PERMANENT]
    if policy == "Always":
        notes.lost(path, "Always: a rank that has ended well is not started again")
    if limit is None:
        notes.changed(path, f"{policy}: {tables.GROUP_RESTARTS}")
    return found
