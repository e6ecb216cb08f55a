"""Makes a job of the SDK's of a model or a mapping, and has it created."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import names
from ddpjob.client import creation
from ddpjob.client.job import Job
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.client.client import Client
    from ddpjob.client.code import CodeArchive


def submit(
    client: "Client",
    job: "api.DDPJob | Mapping[str, Any] | Path",
    *,
    code: "Path | CodeArchive | None" = None,
    dry_run: bool = False,
) -> Job:
    """Create the job, as `Client.submit` describes it."""
    archive = _pack(code) if isinstance(code, Path) else code
    body = _body(job)
    metadata = dict(body.get("metadata") or {})
    annotations = {names.USER_ANNOTATION: client.user, **(metadata.get("annotations") or {})}
    namespace = str(metadata.get("namespace") or client.namespace)
    body["metadata"] = {**metadata, "namespace": namespace, "annotations": annotations}
    make = creation.rehearse if dry_run else creation.create
    return Job(client.connection, make(client.connection, body, archive))


def _pack(folder: Path) -> "CodeArchive":
    from ddpjob.client.code import pack

    return pack(folder)


def _body(job: "api.DDPJob | Mapping[str, Any] | Path") -> Body:
    """Return the object to create, without a status."""
    if isinstance(job, Path):
        found = _read(job)
    elif isinstance(job, Mapping):
        found = dict(job)
    else:
        found = {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "metadata": job.metadata.to_json(),
            "spec": job.spec.to_json(),
        }
    found.pop("status", None)
    return found


def _read(file: Path) -> Body:
    """Return the job in a file. Raises InvalidJob for the first rule that it breaks."""
    from ddpjob.client.build import problems
    from ddpjob.client.jobfile import read_job

    job = read_job(str(file)).job
    for problem in problems(job):
        raise problem
    return dict(job)
