"""Creates a job, and the ConfigMaps that have its code.

A job with code is created suspended. Then its ConfigMaps are created, with the job as their owner,
and then the job is resumed. So no pod looks for code that is not there yet. If this process dies
in between, it leaves a suspended job, which holds nothing, is seen in every list, and takes its
ConfigMaps with it when it is deleted. ConfigMaps that were created first would have no owner then.

Whoever creates a job may be interrupted at any moment, or get no answer. So the name is known
before the request is sent, and a job that nobody has been told of is deleted again.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import names, why
from ddpjob.client.jobfile import JobFile, named, read_job
from ddpjob.cluster import DDPJOBS
from ddpjob.cluster.answers import may_have_come
from ddpjob.cluster.connection import MERGE, Connection
from ddpjob.code import code_maps
from ddpjob.code.code_maps import code_names
from ddpjob.errors import Conflict, DDPJobError, InvalidJob, NotFound, Refused
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.code.archive import CodeArchive

# The metadata of a model that are sent. What a cluster has written is refused in a new object.
METADATA = ("name", "namespace", "labels", "annotations")
# Seconds after each look for a job whose creation was not answered.
FIND_PAUSES = (0.25, 0.5, 1.0)


def submit(
    connection: Connection,
    job: "api.DDPJob | Mapping[str, Any] | Path | JobFile",
    *,
    code: "Path | CodeArchive | None" = None,
    dry_run: bool = False,
) -> Body:
    """Create the job, as `Client.submit` describes it, and return it as it is stored."""
    from ddpjob.code.archive import pack

    archive = pack(code) if isinstance(code, Path) else code
    file = job
    if isinstance(job, Path):
        from ddpjob.client.build import problems  # the models are slow to import

        file = read_job(str(job))
        for problem in problems(file.job):
            raise problem
    body = _body(file.job if isinstance(file, JobFile) else file)
    metadata = dict(body.get("metadata") or {})
    annotations = {names.USER_ANNOTATION: connection.user, **(metadata.get("annotations") or {})}
    namespace = metadata.get("namespace") or connection.namespace
    body["metadata"] = {**metadata, "namespace": namespace, "annotations": annotations}
    config_maps: Sequence[Body] = file.config_maps if isinstance(file, JobFile) else ()
    if archive is not None:
        body, config_maps = with_code(body, archive), archive.config_maps()
    return create(connection, body, config_maps, dry_run=dry_run)


def _body(job: Any) -> Body:
    """Return the object to create, without a status. Raises InvalidJob for what is no job."""
    if isinstance(job, Mapping):
        return {name: part for name, part in job.items() if name != "status"}
    from ddpjob.api import DDPJob  # whoever has a model has imported it

    if not isinstance(job, DDPJob):
        raise InvalidJob("job", f"must be a DDPJob, a mapping or a Path, got {job!r}", job)
    metadata = job.metadata.to_json()
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {field: metadata[field] for field in METADATA if metadata.get(field)},
        "spec": job.spec.to_json(),
    }


def with_code(job: Body, archive: "CodeArchive | None") -> Body:
    """Return the job with the archive as its code, and the commit that this comes from. Pure."""
    if archive is None:
        return job
    code = archive.spec()
    if mount_path := why.part(job, "spec", "code", "mountPath"):
        code["mountPath"] = mount_path
    metadata = dict(job.get("metadata") or {})
    if archive.revision:
        revision = f"{archive.revision}-dirty" if archive.is_dirty else archive.revision
        annotations = {**(metadata.get("annotations") or {}), names.REVISION_ANNOTATION: revision}
        metadata["annotations"] = annotations
    return {**job, "metadata": metadata, "spec": {**job["spec"], "code": code}}


def create(
    connection: Connection, body: Body, config_maps: Sequence[Body] = (), *, dry_run: bool = False
) -> Body:
    """Create the job, whose namespace is set, and return it as it is stored.

    `config_maps` have its code; those that its spec names beside them must exist. With `dry_run`
    the API server checks all objects and stores none. If this raises or is interrupted, the job
    does not exist, or the error's advice, or a note of it, says that it may. Raises InvalidJob or
    ClusterError.
    """
    if dry_run:
        code_maps.rehearse(connection, body, config_maps)
        return _post(connection, body, dryRun="All")
    body = named(body)
    has_code = bool(code_names(body))
    waits = has_code and why.part(body, "spec", "suspend") is not True  # else its user wants it so
    sent = {**body, "spec": {**body["spec"], "suspend": True}} if waits else body
    # The field manager of the job that this creates, by which it is known without an answer.
    mark = f"ddpjob-{secrets.token_hex(8)}"
    job = None
    try:
        job = _post(connection, sent, fieldManager=mark)
        code_maps.provide(connection, job, config_maps)
        if not waits:
            return job
        resumed = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": {"suspend": False}}
        return connection.request("PATCH", _path(job), resumed, content_type=MERGE)
    except BaseException as error:
        if (job or may_have_come(error)) and (left := _undo(connection, sent, mark)):
            if isinstance(error, DDPJobError):
                error.advice = left
            else:
                error.add_note(left)
        raise


def _undo(connection: Connection, sent: Body, mark: str) -> str:
    """Delete the job that was made of `sent`. Return what is left to do, if that fails.

    It is known by its field manager: another one of the name stays. The connection may be what was
    closed, so another one is used.
    """
    name, namespace = sent["metadata"].get("name"), sent["metadata"]["namespace"]
    connection = connection.outliving()
    try:
        for pause in FIND_PAUSES:
            try:
                found = connection.request("GET", _path(sent))
                break
            except NotFound:  # the request may still be on its way
                connection.pause(pause)
        else:
            return f"{name} may be created still: ddpjob get {name} -n {namespace}"
        managers = why.part(found, "metadata", "managedFields") or ()
        if mark in [why.part(each, "manager") for each in managers]:
            body = {"preconditions": {"uid": found["metadata"]["uid"]}}
            with suppress(NotFound, Conflict):
                connection.request("DELETE", _path(found), body)
    except (DDPJobError, KeyboardInterrupt):
        return f"{name} may be left behind: ddpjob delete {name} -n {namespace}"
    finally:
        connection.close()
    return ""


def _post(connection: Connection, body: Mapping[str, Any], **query: str) -> Body:
    path = DDPJOBS.path(body["metadata"]["namespace"])
    strict = {"fieldValidation": "Strict"}  # an unknown field would be dropped in silence
    try:
        return connection.request("POST", path, body, query={**strict, **query})
    except Refused as error:
        if error.code == 400 and 'unknown field "spec.' in error.message:
            error.advice = "the cluster's DDPJob is older than this ddpjob: see ddpjob doctor"
        raise


def _path(job: Body) -> str:
    return DDPJOBS.path(job["metadata"]["namespace"], job["metadata"]["name"])
