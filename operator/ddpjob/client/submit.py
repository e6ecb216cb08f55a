"""Makes a job of the SDK's of a model, a mapping or a file, and has it created."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import names
from ddpjob.client import creation
from ddpjob.client.job import Job
from ddpjob.client.jobfile import JobFile, read_job
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.client.client import Client
    from ddpjob.client.code import CodeArchive

# The metadata of a model that are sent. What a cluster has written is refused in a new object.
METADATA = ("name", "namespace", "labels", "annotations")


def submit(
    client: "Client",
    job: "api.DDPJob | Mapping[str, Any] | Path | JobFile",
    *,
    code: "Path | CodeArchive | None" = None,
    dry_run: bool = False,
) -> Job:
    """Create the job, as `Client.submit` describes it."""
    archive = _pack(code) if isinstance(code, Path) else code
    file = _read(job) if isinstance(job, Path) else job
    body = _body(file.job if isinstance(file, JobFile) else file)
    metadata = dict(body.get("metadata") or {})
    annotations = {names.USER_ANNOTATION: client.user, **(metadata.get("annotations") or {})}
    namespace = str(metadata.get("namespace") or client.namespace)
    body["metadata"] = {**metadata, "namespace": namespace, "annotations": annotations}
    make = creation.rehearse if dry_run else creation.create
    config_maps = file.config_maps if isinstance(file, JobFile) else ()
    return Job(client.connection, make(client.connection, body, archive, config_maps))


def _pack(folder: Path) -> "CodeArchive":
    from ddpjob.client.code import pack

    return pack(folder)


def _read(file: Path) -> JobFile:
    """Return the job in a file. Raises InvalidJob for the first rule that it breaks."""
    from ddpjob.client.build import problems  # the models are slow to import

    found = read_job(str(file))
    for problem in problems(found.job):
        raise problem
    return found


def _body(job: "api.DDPJob | Mapping[str, Any]") -> Body:
    """Return the object to create, without a status. Raises InvalidJob."""
    if isinstance(job, Mapping):
        found = dict(job)
        if not isinstance(found.get("metadata") or {}, Mapping):
            raise InvalidJob("metadata", "must be an object", found["metadata"])
    else:
        metadata = job.metadata.to_json()
        found = {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "metadata": {field: metadata[field] for field in METADATA if metadata.get(field)},
            "spec": job.spec.to_json(),
        }
    found.pop("status", None)
    return found
