"""What the ranks of jobs run: whether an edit has changed it, and what agents get of it."""

import hashlib
import logging
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import CONFIGMAPS, Cluster
from ddpjob.controller.children import Children
from ddpjob.controller.memory import (
    JobRecord,
    Memory,
    Rendered,
    place_of,
    rendered,
)
from ddpjob.errors import ClusterError, InvalidJob, NotFound
from ddpjob.json_depth import aside
from ddpjob.pods.program import print_of

log = logging.getLogger(__name__)


class Programs:
    """Reads them as they are now."""

    def __init__(self, cluster: Cluster, children: Children) -> None:
        self._cluster, self._children = cluster, children

    async def check(self, job: DDPJob, memory: Memory) -> None:
        """Find out, once a generation, what an edit of a running job does to its pods and ranks."""
        place, known = place_of(job), memory.rendered
        if known is not None and known.place != place:
            known = None
        if known is not None and known.look_seconds > 0 or not checks_edits(job):
            return
        tries = min(known.tries + 1, 16) if known else 0
        try:
            found = rendered(job, await self._children.render(job))
            if job.status.program and job.status.program.hash != found.program:
                await self._archive(job)
            memory.rendered = found
        except InvalidJob as error:
            memory.rendered = Rendered(place, error=error, tries=tries)
        except ClusterError as error:
            where = InvalidJob("spec.code", f"its ConfigMaps cannot be read: {error.message}")
            memory.rendered = Rendered(place, error=where, tries=tries)

    async def content(self, record: JobRecord, wanted: str) -> bytes:
        """Return what has this hash and the job's ranks are to run; nothing if it is not there."""
        try:
            job = await aside(record.is_large, record.parse)
            line = (await self._children.render(job)).program
            if print_of(line) != wanted:  # the job has been edited since
                return b""
            return line + b"\n" + await self._archive(job)
        except (InvalidJob, ClusterError) as error:
            log.warning("program of job=%s/%s: %s", record.namespace, record.name, error)
            return b""

    async def _archive(self, job: DDPJob) -> bytes:
        """Return the archive of the job's code, if ConfigMaps have it.

        Raises InvalidJob if one is not there, or the archive is another one; ClusterError.
        """
        code = job.spec.code
        if code is None or code.config_maps is None:
            return b""
        parts = []
        for position, name in enumerate(code.config_maps):
            try:
                found = await self._cluster.get(CONFIGMAPS, job.namespace, name)
                parts.append(found["binaryData"][names.ARCHIVE_KEY])
            except (NotFound, KeyError, TypeError):
                where = f"spec.code.configMaps[{position}]"
                rule = f"there is no ConfigMap {name} with {names.ARCHIVE_KEY}"
                raise InvalidJob(where, rule, name) from None
        return await aside(True, _joined, parts, code.sha256)


def _joined(parts: Sequence[Any], sha256: str) -> bytes:
    """Return the archive with these parts. Raises InvalidJob if it has another SHA-256."""
    try:
        archive = b"".join(b64decode(part, validate=True) for part in parts)
    except (TypeError, ValueError):
        archive = b""
    found = hashlib.sha256(archive).hexdigest()
    if found != sha256:
        raise InvalidJob("spec.code.sha256", f"the archive's is {found}", sha256)
    return archive


def checks_edits(job: DDPJob) -> bool:
    """Whether pods may be running that are older than an edit of the job."""
    state, number = job.status.state, job.status.round
    return state in ("Starting", "Running", "Idle") or state == "Restarting" and number > 0
