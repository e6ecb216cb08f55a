"""Makes a job of the SDK's of a model, a mapping or a file, and has it created."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import names
from ddpjob.client import creation
from ddpjob.client.connection import Connection
from ddpjob.client.job import Job
from ddpjob.client.jobfile import JobFile, read_job
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.code.archive import CodeArchive

# The metadata of a model that are sent. What a cluster has written is refused in a new object.
METADATA = ("name", "namespace", "labels", "annotations")


def submit(
    connection: Connection,
    job: "api.DDPJob | Mapping[str, Any] | Path | JobFile",
    *,
    code: "Path | CodeArchive | None" = None,
    dry_run: bool = False,
) -> Job:
    """Create the job, as `Client.submit` describes it."""
    archive = None if code is None else _archive(code)
    file = _read(job) if isinstance(job, Path) else job
    body = _body(file.job if isinstance(file, JobFile) else file)
    if archive is not None:
        body["spec"] = _object(body, "spec", is_required=True)
    _check_json(body)
    metadata = body["metadata"]
    annotations = {names.USER_ANNOTATION: connection.user, **metadata["annotations"]}
    namespace = str(metadata.get("namespace") or connection.namespace)
    body["metadata"] = {**metadata, "namespace": namespace, "annotations": annotations}
    make = creation.rehearse if dry_run else creation.create
    config_maps = file.config_maps if isinstance(file, JobFile) else ()
    return Job(connection, make(connection, body, archive, config_maps))


def _archive(code: Any) -> "CodeArchive":
    from ddpjob.code.archive import CodeArchive, pack

    if isinstance(code, Path):
        _check_path("code", code)
        return pack(code)
    if not isinstance(code, CodeArchive):
        raise _no_path("code", code, "a Path or a CodeArchive")
    return code


def _read(file: Path) -> JobFile:
    """Return the job in a file. Raises InvalidJob for the first rule that it breaks."""
    from ddpjob.client.build import problems  # the models are slow to import

    _check_path("job", file)
    found = read_job(str(file))
    for problem in problems(found.job):
        raise problem
    return found


def _check_path(field: str, path: Path) -> None:
    """Raise InvalidJob for a path that no file can have."""
    try:
        with suppress(OSError):
            os.stat(path)
    except ValueError as error:  # such as a NUL in it
        raise InvalidJob(field, f"is no path, got {str(path)!r}: {error}", path) from None


def _no_path(field: str, value: Any, kinds: str) -> InvalidJob:
    advice = f"{field}=Path({value!r})" if isinstance(value, str) else ""
    return InvalidJob(field, f"must be {kinds}, got {value!r}", value, advice)


def _body(job: Any) -> Body:
    """Return the object to create, without a status. Raises InvalidJob.

    The API server checks it. What is checked here is what is read before that.
    """
    found = dict(job) if isinstance(job, Mapping) else _of_model(job)
    found.pop("status", None)
    metadata = _object(found, "metadata")
    for name in ("name", "generateName", "namespace"):
        text = metadata.get(name)
        if text is not None and not isinstance(text, str):
            raise InvalidJob(f"metadata.{name}", f"must be a string, got {text!r}", text)
    metadata["annotations"] = _object(metadata, "annotations", "metadata.")
    return {**found, "metadata": metadata}


def _of_model(job: Any) -> Body:
    from ddpjob.api import DDPJob  # whoever has a model has imported it

    if not isinstance(job, DDPJob):
        raise _no_path("job", job, "a DDPJob, a mapping or a Path")
    metadata = job.metadata.to_json()
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {field: metadata[field] for field in METADATA if metadata.get(field)},
        "spec": job.spec.to_json(),
    }


def _check_json(body: Body) -> None:
    """Raise InvalidJob if there is anything in the job that cannot be sent."""
    try:
        json.dumps(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob("job", f"must have nothing but JSON in it: {error}") from None


def _object(parent: Body, name: str, where: str = "", *, is_required: bool = False) -> Body:
    """Return a copy of the object at a field, empty if there is none. Raises InvalidJob."""
    found = parent.get(name)
    if found is None and is_required:
        raise InvalidJob(f"{where}{name}", "is required")
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise InvalidJob(f"{where}{name}", f"must be an object, got {found!r}", found)
    return dict(found)
