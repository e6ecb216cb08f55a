"""The ConfigMaps with a job's code, of which each job that uses them is an owner.

Their names are made of what is in them, so jobs with the same code share them. Kubernetes deletes
them with the last of their owners. One that no job owns is somebody's own: it is used, and stays.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddpjob import names, why
from ddpjob.cluster import CONFIGMAPS
from ddpjob.cluster.connection import Connection
from ddpjob.errors import AlreadyExists, Conflict, Forbidden, InvalidJob, NotFound
from ddpjob.json_depth import Body

STRATEGIC = "application/strategic-merge-patch+json"
# A ConfigMap whose last owner has just been deleted is gone in a second or two.
WAIT_SECONDS, PAUSE_SECONDS = 60.0, 0.5


def rehearse(connection: Connection, job: Mapping[str, Any], config_maps: Sequence[Body]) -> None:
    """Ask the API server whether `provide` would succeed, and store nothing. Raises as that."""
    namespace = job["metadata"]["namespace"]
    given = {each["metadata"]["name"]: each for each in config_maps}
    for position, name in enumerate(code_names(job)):
        if name in given:
            _create(connection, namespace, given[name], dryRun="All")
        elif _read(connection, namespace, name) is None:
            raise _absent(position, name, namespace)


def provide(connection: Connection, job: Body, config_maps: Sequence[Body]) -> None:
    """Make the job an owner of the ConfigMaps that its spec names, and create those given here.

    Raises InvalidJob if another one does not exist, Conflict if one is being deleted without end,
    Forbidden or another ClusterError. What is in one that exists is not compared: the agent does.
    """
    namespace = job["metadata"]["namespace"]
    given = {each["metadata"]["name"]: each for each in config_maps}
    for position, name in enumerate(code_names(job)):
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            if name in given:
                metadata = {**given[name]["metadata"], "ownerReferences": [_owner(job)]}
                if _create(connection, namespace, {**given[name], "metadata": metadata}):
                    break
            found = _read(connection, namespace, name)
            if found is None and name not in given:
                raise _absent(position, name, namespace)
            if found is not None and _join(connection, job, found):
                break
            if time.monotonic() > deadline:
                text = (
                    f"ConfigMap {name} is being deleted, and is not gone after {WAIT_SECONDS:g} s"
                )
                raise Conflict(409, "Conflict", text)
            connection.pause(PAUSE_SECONDS)


def _create(connection: Connection, namespace: str, body: Body, **query: str) -> bool:
    """Create the ConfigMap, and return whether its name was free."""
    try:
        connection.request("POST", CONFIGMAPS.path(namespace), body, query=query)
    except AlreadyExists:
        return False
    return True


def _read(connection: Connection, namespace: str, name: str) -> Body | None:
    try:
        return connection.get(CONFIGMAPS, name, namespace=namespace)
    except NotFound:
        return None


def _join(connection: Connection, job: Body, found: Body) -> bool:
    """Make the job an owner of a ConfigMap. Return whether it stays, as far as it depends on us.

    The list of owners is merged by uid, so jobs that join at once keep each other's entries. The
    garbage collector deletes an object only in the version that it has read, so one that was not
    being deleted when the job joined is not deleted for its earlier owners.
    """
    if _is_shared(found):
        known = found["metadata"]
        owners = {"uid": known["uid"], "ownerReferences": [_owner(job)]}
        path = CONFIGMAPS.path(known["namespace"], known["name"])
        try:
            body = {"metadata": owners}
            found = connection.request("PATCH", path, body, content_type=STRATEGIC)
        except (Conflict, NotFound):  # it is gone, or was made anew
            return False
    return "deletionTimestamp" not in found["metadata"]


def leave(connection: Connection, job: Body, name: str) -> None:
    """Have a ConfigMap deleted if the job alone owns it, else make the job no owner of it.

    Where that is not allowed, it goes with the job. One that the job does not own stays as it is.
    """
    namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
    with suppress(NotFound, Conflict, Forbidden):
        known = connection.get(CONFIGMAPS, name, namespace=namespace)["metadata"]
        path = CONFIGMAPS.path(namespace, name)
        owners = [owner["uid"] for owner in known.get("ownerReferences", ())]
        if owners == [uid]:
            version = {"uid": known["uid"], "resourceVersion": known["resourceVersion"]}
            connection.request("DELETE", path, {"preconditions": version})
        elif uid in owners:
            own = [{"$patch": "delete", "uid": uid}]
            body = {"metadata": {"uid": known["uid"], "ownerReferences": own}}
            connection.request("PATCH", path, body, content_type=STRATEGIC)


def _owner(job: Body) -> Body:
    """Return the reference to the job. It blocks nothing, so it needs no right on the job."""
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND}
    known = job["metadata"]
    return {**head, "name": known["name"], "uid": known["uid"]}


def _is_shared(found: Body) -> bool:
    """Return whether jobs own the ConfigMap, so that it would go with the last of them."""
    return any(
        owner["apiVersion"].startswith(f"{names.GROUP}/") and owner["kind"] == names.KIND
        for owner in found["metadata"].get("ownerReferences", ())
    )


def _absent(position: int, name: str, namespace: str) -> InvalidJob:
    where = f"spec.code.configMaps[{position}]"
    error = InvalidJob(where, f"ConfigMap {name} does not exist in namespace {namespace}", name)
    error.advice = "send the folder itself: --code DIR"
    return error


def code_names(job: Any) -> list[str]:
    """Return the names of the ConfigMaps that the spec of a job names for its code."""
    found = why.part(job, "spec", "code", "configMaps")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
