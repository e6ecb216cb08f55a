"""Creates a job from a model or a mapping, and with it the ConfigMaps that have its code.

A job with code is created suspended. Then its ConfigMaps are created, with the job as their owner,
and then the job is resumed. So no pod looks for code that is not there yet. If this process dies
in between, it leaves a suspended job, which holds nothing, is seen in every list, and takes its
ConfigMaps with it when it is deleted. ConfigMaps that were created first would have no owner then.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import names
from ddpjob.client import code_maps, why
from ddpjob.client.job import Job
from ddpjob.cluster import DDPJOBS
from ddpjob.errors import DDPJobError, InvalidJob, NotFound, Refused, Unavailable
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.client.client import Client
    from ddpjob.client.code import CodeArchive

# A field that the cluster does not know would be dropped in silence.
STRICT = {"fieldValidation": "Strict"}
DRY_RUN = {"dryRun": "All"}
# Seconds before each further try to resume the job; a server may be starting.
RESUME_PAUSES = (0.5, 1.0, 2.0, 4.0)


def submit(
    client: "Client",
    job: "api.DDPJob | Mapping[str, Any] | Path",
    *,
    code: "Path | CodeArchive | None" = None,
    dry_run: bool = False,
) -> Job:
    """Create the job, as `Client.submit` describes it."""
    archive = _pack(code) if isinstance(code, Path) else code
    body = with_code(_body(job), archive)
    metadata = body["metadata"]
    annotations = {names.USER_ANNOTATION: client.user, **(metadata.get("annotations") or {})}
    namespace = str(metadata.get("namespace") or client.namespace)
    body["metadata"] = {**metadata, "namespace": namespace, "annotations": annotations}
    if archive is None:
        code_maps.check(client.connection, body, namespace)
    if dry_run:
        if archive is not None:
            code_maps.rehearse(client.connection, namespace, archive.config_maps())
        return _create(client, body, dry_run=True)
    if not code_maps.names_of(body):
        return _create(client, body)
    return _create_with_code(client, body, archive)


def with_code(job: Body, archive: "CodeArchive | None") -> Body:
    """Return the job with the archive as its code, and the commit it comes from. Pure."""
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


def _create_with_code(client: "Client", body: Body, archive: "CodeArchive | None") -> Job:
    waits = why.part(body, "spec", "suspend") is not True  # else its user wants it suspended
    job = _create(client, {**body, "spec": {**body["spec"], "suspend": True}})
    with _deleted_on_error(job):
        if archive is None:
            code_maps.adopt(client.connection, job)
        else:
            code_maps.provide(client.connection, job, archive.config_maps())
        if waits:
            _resume(job)
    return job


def _create(client: "Client", body: Body, *, dry_run: bool = False) -> Job:
    path = DDPJOBS.path(body["metadata"]["namespace"])
    query = {**STRICT, **(DRY_RUN if dry_run else {})}
    try:
        return Job(client.connection, client.connection.request("POST", path, body, query=query))
    except Refused as error:
        if error.code == 400 and 'unknown field "spec.' in error.message:
            error.advice = "the cluster's DDPJob is older than this ddpjob: see ddpjob doctor"
        raise


def _resume(job: Job) -> None:
    for pause in RESUME_PAUSES:
        try:
            job.resume()
        except Unavailable:  # it may have come through, which another try does not change
            time.sleep(pause)
        else:
            return
    job.resume()


@contextmanager
def _deleted_on_error(job: Job) -> Iterator[None]:
    """Delete the job, which has not run yet, if the block raises or is interrupted."""
    try:
        yield
    except BaseException as error:
        try:
            job.delete()
        except NotFound:
            pass
        except DDPJobError:
            if isinstance(error, DDPJobError):
                error.advice = f"{job.name} may be left behind: ddpjob delete {job.name}"
        raise


def _pack(folder: Path) -> "CodeArchive":
    from ddpjob.client.code import pack

    return pack(folder)


def _body(job: "api.DDPJob | Mapping[str, Any] | Path") -> Body:
    """Return the object to create, without a status."""
    if isinstance(job, Path):
        raise InvalidJob("(file)", "this version cannot read a file")
    if isinstance(job, Mapping):
        found = dict(job)
    else:
        found = {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "metadata": job.metadata.to_json(),
            "spec": job.spec.to_json(),
        }
    found.pop("status", None)
    return {**found, "metadata": dict(found.get("metadata") or {})}
