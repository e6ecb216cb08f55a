"""A DDPJob as the cache keeps it: no more of it than may be needed without being read again. Pure.

Of ten thousand finished jobs, and of those that somebody has suspended, a few hundred bytes each:
what they ask for is read again when something is to be done about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ddpjob import api, names
from ddpjob.api import DDPJob, oversize
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import read_json, write_json

_AT_REST = ("suspend", "managedBy", "nnodes", "cleanPodPolicy", "ttlSecondsAfterFinished")
"""What is kept of the spec of a job at rest; the rest are fields that a spec must have."""
_FINISHED = (
    *("observedGeneration", "state", "summary", "attempt", "restarts", "nodes"),
    *("completionTime", "progress", "goodput"),
)
"""What is kept of the status of a finished job, its conditions' messages apart."""
_LARGE = 16 * 1024  # bytes of JSON; up to 3 ms to read and 14 ms to render
_STAND_IN = {"image": "none", "args": ["none"]}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A DDPJob as JSON, the whole or a part of it."""

    name: str
    namespace: str
    uid: str
    resource_version: int
    body: bytes
    is_part: bool = False
    """The job is at rest, and its spec and its status are not whole."""
    refused: InvalidJob | None = None
    """Why its spec is not kept, if it is too large to be read again and again."""

    @property
    def is_large(self) -> bool:
        """Whether it may take more than some milliseconds to read, and to render."""
        return len(self.body) > _LARGE

    def parse(self) -> DDPJob:
        """The job. Raises InvalidJob."""
        if self.refused is not None:  # an error of its own, since each grows by where it passed
            raise InvalidJob(self.refused.path, self.refused.rule)
        return (_parse if self.is_large else _parsed)(self.body)


def _parse(body: bytes) -> DDPJob:
    return DDPJob.parse(read_json(body))


# While pods come up, a job is read again with each of their events. Few and small ones are kept:
# of all live jobs it would be tens of MiB.
_parsed = lru_cache(maxsize=32)(_parse)


def job_record(body: Mapping[str, Any]) -> JobRecord:
    """The record of a DDPJob, whatever stands in it."""
    found = body["metadata"]
    metadata = {name: found[name] for name in names.METADATA if name in found}
    spec, status = body.get("spec"), body.get("status") or {}
    is_part, refused = False, None
    if isinstance(spec, dict) and isinstance(status, dict) and _is_at_rest(spec, status):
        is_part = True
        spec = {**_STAND_IN, **{name: spec[name] for name in _AT_REST if name in spec}}
        status = _in_brief(status) if status.get("state") in api.FINISHED else status
    elif (found_large := next(oversize(body), None)) is not None:
        refused, spec = InvalidJob(found_large.path, found_large.rule), {}  # without the value
    kept = {"metadata": metadata, "spec": spec, "status": status}
    return JobRecord(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        resource_version=int(metadata["resourceVersion"]),
        body=write_json({"apiVersion": names.API_VERSION, "kind": names.KIND, **kept}),
        is_part=is_part,
        refused=refused,
    )


def _is_at_rest(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether nothing is to be done about the job until somebody changes something."""
    state = status.get("state")
    theirs = spec.get("managedBy") not in (None, names.MANAGER)
    return state in api.FINISHED or state == "Suspended" and spec.get("suspend") is True or theirs


def _in_brief(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = status.get("conditions")
    named = [c for c in conditions if isinstance(c, dict)] if isinstance(conditions, list) else []
    brief = {name: status[name] for name in _FINISHED if name in status}
    return brief | {"conditions": [{**condition, "message": ""} for condition in named]}
