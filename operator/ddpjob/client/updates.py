"""Changes what the ranks of a job run: code, arguments, variables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import names, why
from ddpjob.client import edits
from ddpjob.client.creation import with_code
from ddpjob.cluster import is_name
from ddpjob.cluster.connection import Connection
from ddpjob.code import code_maps
from ddpjob.errors import Conflict
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob.code.archive import CodeArchive

_WITH_PODS = ("Starting", "Running", "Restarting")


def edited(
    job: Body,
    archive: "CodeArchive | None",
    script_args: Sequence[str] | None,
    env: Mapping[str, str],
) -> Body:
    """Return the job with other code, arguments of its script, and variables. Raises InvalidJob."""
    body = with_code(job, archive)
    settings = ("env.{}={}".format(name.replace(".", r"\."), env[name]) for name in env)
    spec = edits.with_settings(body["spec"], settings)
    if script_args is not None:
        spec = edits.with_script_args(spec, script_args)
    return {**body, "spec": spec}


def patch(connection: Connection, job: Body, new: Body, archive: "CodeArchive | None") -> Body:
    """Return the merge patch that makes `new` of the job, once its code is in ConfigMaps.

    Those of the code before the last are deleted. Raises Conflict for pods that take no other code,
    or another ClusterError.
    """
    status, metadata = job.get("status"), dict[str, Any]()
    if why.state(status) in _WITH_PODS and why.part(status, "program") is None:
        name = job["metadata"]["name"]
        text = (
            f"the pods of {name} were made by an earlier version of ddpjob, and run on as they are"
        )
        raise Conflict(409, "Conflict", f"{text}; suspend and resume it, and new ones are made")
    if archive is not None:
        code_maps.provide(connection, new, archive.config_maps())
        before, now = code_maps.code_names(job), code_maps.code_names(new)
        noted = why.text(job, "metadata", "annotations", names.PREVIOUS_CODE_ANNOTATION, limit=1024)
        # Pods that have yet to start may mount them.
        seen = why.number(job, "status", "observedGeneration")
        is_settled = seen == job["metadata"].get("generation")
        old = {*filter(is_name, noted.split(","))} - {*before, *now}
        if is_settled and why.state(job.get("status")) in ("Running", "Idle"):
            for name in old:
                code_maps.leave(connection, job, name)
            old = set()
        annotations = dict(new["metadata"].get("annotations") or {})
        if before != now:
            annotations[names.PREVIOUS_CODE_ANNOTATION] = ",".join([*sorted(old), *before])
        known = job["metadata"].get("annotations") or {}
        metadata = {"annotations": edits.merge_patch(known, annotations)}
    return {"metadata": metadata, "spec": edits.merge_patch(job["spec"], new["spec"])}


def load(code: "Path | CodeArchive | None") -> "CodeArchive | None":
    """Return the archive of a folder. Raises InvalidJob."""
    from ddpjob.code.archive import pack

    return pack(code) if isinstance(code, Path) else code
