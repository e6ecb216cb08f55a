"""Creates a job, and the ConfigMaps that have its code.

A job with code is created suspended. Then its ConfigMaps are created, with the job as their owner,
and then the job is resumed. So no pod looks for code that is not there yet. If this process dies
in between, it leaves a suspended job, which holds nothing, is seen in every list, and takes its
ConfigMaps with it when it is deleted. ConfigMaps that were created first would have no owner then.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ddpjob import names
from ddpjob.client import code_maps, why
from ddpjob.client.connection import MERGE, Connection
from ddpjob.cluster import DDPJOBS
from ddpjob.errors import DDPJobError, NotFound, Refused, Unavailable
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob.client.code import CodeArchive

# A field that the cluster does not know would be dropped in silence.
STRICT = {"fieldValidation": "Strict"}
DRY_RUN = {"dryRun": "All"}
# Seconds before each further try to resume the job; a server may be starting.
RESUME_PAUSES = (0.5, 1.0, 2.0, 4.0)


def with_code(job: Body, archive: "CodeArchive | None", code: Body | None = None) -> Body:
    """Return the job with the archive as its code, and the commit that this comes from. Pure.

    `code` says where the archive is; by default it is in ConfigMaps.
    """
    if archive is None:
        return job
    code = dict(archive.spec() if code is None else code)
    if mount_path := why.part(job, "spec", "code", "mountPath"):
        code["mountPath"] = mount_path
    metadata = dict(job.get("metadata") or {})
    if archive.revision:
        revision = f"{archive.revision}-dirty" if archive.is_dirty else archive.revision
        annotations = {**(metadata.get("annotations") or {}), names.REVISION_ANNOTATION: revision}
        metadata["annotations"] = annotations
    return {**job, "metadata": metadata, "spec": {**job["spec"], "code": code}}


def create(
    connection: Connection,
    body: Body,
    archive: "CodeArchive | None" = None,
    config_maps: Sequence[Body] = (),
) -> Body:
    """Create the job, whose namespace is set, with the archive as its code. Return it as stored.

    `config_maps` are those that its spec names, where there is no archive. Without them these must
    exist. If an error is raised, the job does not exist, or its advice says that it may. Raises
    InvalidJob or ClusterError.
    """
    body = with_code(body, archive)
    config_maps = archive.config_maps() if archive else config_maps
    if not config_maps:
        code_maps.check(connection, body, body["metadata"]["namespace"])
    if not code_maps.names_of(body):
        return _post(connection, body)
    waits = why.part(body, "spec", "suspend") is not True  # else its user wants it suspended
    job = _post(connection, {**body, "spec": {**body["spec"], "suspend": True}})
    with _deleted_on_error(connection, job):
        if config_maps:
            code_maps.provide(connection, job, config_maps)
        else:
            code_maps.adopt(connection, job)
        return _resume(connection, job) if waits else job


def rehearse(
    connection: Connection,
    body: Body,
    archive: "CodeArchive | None" = None,
    config_maps: Sequence[Body] = (),
) -> Body:
    """Have the API server check all that `create` would create, and store nothing.

    Return the job as it would be stored. Raises as `create`.
    """
    body = with_code(body, archive)
    namespace = body["metadata"]["namespace"]
    config_maps = archive.config_maps() if archive else config_maps
    if config_maps:
        code_maps.rehearse(connection, namespace, config_maps)
    else:
        code_maps.check(connection, body, namespace)
    return _post(connection, body, **DRY_RUN)


def _post(connection: Connection, body: Mapping[str, Any], **query: str) -> Body:
    path = DDPJOBS.path(body["metadata"]["namespace"])
    try:
        return connection.request("POST", path, body, query={**STRICT, **query})
    except Refused as error:
        if error.code == 400 and 'unknown field "spec.' in error.message:
            error.advice = "the cluster's DDPJob is older than this ddpjob: see ddpjob doctor"
        raise


def _resume(connection: Connection, job: Body) -> Body:
    body = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": {"suspend": False}}
    for pause in (*RESUME_PAUSES, None):
        try:
            return connection.request("PATCH", _path(job), body, content_type=MERGE)
        except Unavailable:  # it may have come through, which another try does not change
            if pause is None:
                raise
            time.sleep(pause)
    raise AssertionError


@contextmanager
def _deleted_on_error(connection: Connection, job: Body) -> Iterator[None]:
    """Delete the job, which has not run yet, if the block raises or is interrupted."""
    try:
        yield
    except BaseException as error:
        body = {"preconditions": {"uid": job["metadata"]["uid"]}}
        try:
            connection.request("DELETE", _path(job), body)
        except NotFound:
            pass
        except DDPJobError:
            if isinstance(error, DDPJobError):
                name = job["metadata"]["name"]
                error.advice = f"{name} may be left behind: ddpjob delete {name}"
        raise


def _path(job: Body) -> str:
    return DDPJOBS.path(job["metadata"]["namespace"], job["metadata"]["name"])
