"""Creates a job from a model, a mapping or a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import names
from ddpjob.client.job import Job
from ddpjob.cluster import DDPJOBS
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob import api
    from ddpjob.client.client import Client


def submit(
    client: "Client",
    job: "api.DDPJob | Mapping[str, Any] | Path",
    *,
    code: Path | None = None,
    dry_run: bool = False,
) -> Job:
    """Create the job, as `Client.submit` describes it."""
    if code is not None:
        raise InvalidJob("code", "this version cannot send a folder")
    body = _body(job)
    metadata = dict(body.get("metadata") or {})
    annotations = {names.USER_ANNOTATION: client.user, **(metadata.get("annotations") or {})}
    namespace = str(metadata.get("namespace") or client.namespace)
    body["metadata"] = {**metadata, "namespace": namespace, "annotations": annotations}
    query = {"dryRun": "All"} if dry_run else None
    path = DDPJOBS.path(namespace)
    return Job(client.connection, client.connection.request("POST", path, body, query=query))


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
    return found
