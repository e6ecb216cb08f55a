"""Creates a job, and the ConfigMaps that have its code.

A job with code is created suspended. Then its ConfigMaps are created, with the job as their owner,
and then the job is resumed. So no pod looks for code that is not there yet. If this process dies
in between, it leaves a suspended job, which holds nothing, is seen in every list, and takes its
ConfigMaps with it when it is deleted. ConfigMaps that were created first would have no owner then.

Whoever creates a job may be interrupted at any moment, or get no answer. So the name is known
before the request is sent, and a job that nobody has been told of is deleted again.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from ddpjob import names
from ddpjob.client import code_maps, why
from ddpjob.client.answers import may_have_come
from ddpjob.client.connection import MERGE, Connection
from ddpjob.client.generated import generated
from ddpjob.cluster import DDPJOBS
from ddpjob.errors import (
    AlreadyExists,
    Conflict,
    DDPJobError,
    NotFound,
    Refused,
    Unavailable,
)
from ddpjob.json_depth import Body

if TYPE_CHECKING:
    from ddpjob.code.archive import CodeArchive

# A field that the cluster does not know would be dropped in silence.
STRICT = {"fieldValidation": "Strict"}
DRY_RUN = {"dryRun": "All"}
# Seconds before each further try to resume the job; a server may be starting.
RESUME_PAUSES = (0.5, 1.0, 2.0, 4.0)
# Seconds before each further look for a job whose creation was not answered.
FIND_PAUSES = (0.25, 0.5, 1.0)
# Names that are tried for a job that has none.
NAME_TRIES = 5


def with_code(job: Body, archive: "CodeArchive | None") -> Body:
    """Return the job with the archive as its code, and the commit that this comes from. Pure."""
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


def create(
    connection: Connection,
    body: Body,
    archive: "CodeArchive | None" = None,
    config_maps: Sequence[Body] = (),
) -> Body:
    """Create the job, whose namespace is set, with the archive as its code. Return it as stored.

    `config_maps` are those that its spec names, where there is no archive. Without them these must
    exist. If this raises or is interrupted, the job does not exist, or the error's advice, or a
    note of it, says that it may. Raises InvalidJob or ClusterError.
    """
    body = with_code(body, archive)
    config_maps = archive.config_maps() if archive else config_maps
    if not config_maps:
        code_maps.check(connection, body, body["metadata"]["namespace"])
    with _Attempt(connection) as attempt:
        if not code_maps.names_of(body):
            return attempt.post(body)
        waits = why.part(body, "spec", "suspend") is not True  # else its user wants it suspended
        job = attempt.post({**body, "spec": {**body["spec"], "suspend": True}})
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


class _Attempt:
    """A job that is being created. If the block raises or is interrupted, it is deleted again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The field manager of the job that this creates, by which it is known without an answer.
        self._mark = f"ddpjob-{secrets.token_hex(8)}"
        self._sent: Body | None = None
        """The job that may exist, as it was sent."""
        self._made: Body | None = None
        """The same as it was stored."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or self._sent is None or not (left := self._undo()):
            return
        if isinstance(error, DDPJobError):
            error.advice = left
        else:
            error.add_note(left)

    def post(self, body: Body) -> Body:
        """Create the job. Its name is made here, so that it is known before there is an answer."""
        metadata = body["metadata"]
        start = None if metadata.get("name") else metadata.get("generateName")
        tries = NAME_TRIES if isinstance(start, str) else 1
        for number in range(1, tries + 1):
            named = {**metadata, "name": generated(start)} if isinstance(start, str) else metadata
            self._sent = {**body, "metadata": named}
            try:
                self._made = _post(self._connection, self._sent, fieldManager=self._mark)
                return self._made
            except BaseException as error:
                if not may_have_come(error):
                    self._sent = None
                if not isinstance(error, AlreadyExists) or number == tries:
                    raise
        raise AssertionError

    def _undo(self) -> str:
        """Delete the job. Return what is left to do, if that fails.

        The connection may be what was closed, so another one is used.
        """
        assert self._sent
        metadata = self._sent["metadata"]
        name, namespace = metadata.get("name"), metadata["namespace"]
        if not name:
            return ""
        connection = self._connection.outliving()
        try:
            found = self._made or self._find(connection, self._sent)
            if found is None:  # the request may still be on its way
                return f"{name} may be created still: ddpjob get {name} -n {namespace}"
            if found is self._made or self._is_own(found):
                delete(connection, found)
        except (DDPJobError, KeyboardInterrupt):
            return f"{name} may be left behind: ddpjob delete {name} -n {namespace}"
        finally:
            connection.close()
        return ""

    def _find(self, connection: Connection, sent: Body) -> Body | None:
        """Return the job of this name, once there is one, within a short time."""
        for pause in (*FIND_PAUSES, None):
            try:
                return connection.request("GET", _path(sent))
            except NotFound:
                if pause is not None:
                    connection.pause(pause)
        return None

    def _is_own(self, found: Body) -> bool:
        """Return whether this has created the job, and not somebody else one of the name."""
        managers = why.part(found, "metadata", "managedFields")
        marks = [why.part(each, "manager") for each in managers or ()]
        return self._mark in marks


def delete(connection: Connection, job: Body) -> None:
    """Delete this job, and no other one of its name; one that is gone is fine."""
    body = {"preconditions": {"uid": job["metadata"]["uid"]}}
    with suppress(NotFound, Conflict):
        connection.request("DELETE", _path(job), body)


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
            connection.pause(pause)
    raise AssertionError


def _path(job: Body) -> str:
    return DDPJOBS.path(job["metadata"]["namespace"], job["metadata"]["name"])
