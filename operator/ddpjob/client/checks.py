"""What a user needs of a cluster, checked one by one: what is missing, and what to do about it."""

import re
import time
from collections.abc import Iterator, Sequence

from ddpjob import __version__, names
from ddpjob.client import why
from ddpjob.client.answers import not_installed
from ddpjob.client.check import Check, Level, Part
from ddpjob.client.connection import Connection
from ddpjob.client.creation import rehearse
from ddpjob.client.gpus import free_gpus
from ddpjob.client.installation import installation
from ddpjob.client.installed import Installed, Operator, look
from ddpjob.cluster import DDPJOBS
from ddpjob.errors import ClusterError, Forbidden, LoginFailed, NotInstalled, Refused
from ddpjob.json_depth import Body
from ddpjob.times import duration, unix_seconds

# The oldest minor version of Kubernetes 1 that docs/install.md promises to work.
OLDEST = 30
# Seconds for which a job may be without a status while an operator is there.
TAKEN_SECONDS = 60.0
# What the chart's admission policy asks for, and the words with which it refuses a job.
MAKE_PODS = ("", "pods", ("create",), "submit (the chart's admission policy asks for it)")
NO_PODS = "may not create pods in namespace"
# Group, resource, verbs, and which commands need them.
RIGHTS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (names.GROUP, names.PLURAL, ("create", "get", "list", "watch", "patch", "delete"), "submit"),
    ("", "configmaps", ("create", "get", "patch"), "submit with your own code"),
    MAKE_PODS,
    ("", "pods", ("list", "watch"), "logs, top and stacks"),
    ("", "pods/log", ("get",), "logs"),
    ("", "events", ("list",), "describe"),
)
# These are not needed: without them a command shows less.
WISHES = (("", "pods/portforward", ("get", "create"), "top and stacks"),)
_VERSION = re.compile(r"v?1\.([0-9]{1,4})")


def checks(connection: Connection, *, admin: bool = False) -> Iterator[Check]:
    """Yield the checks, most basic first. They end where the rest cannot work.

    `admin` adds those of the installation.
    """
    try:
        seen = look(connection)
        yield _server(connection, seen.server)
        if names.VERSION not in seen.versions:
            raise not_installed(404)
        refused = _refusal(connection)
        yield _api(seen, refused)
    except NotInstalled as error:
        yield Check(Part.API, Level.FAIL, error.message, error.advice)
        return
    except (LoginFailed, ClusterError) as error:
        yield _failed(Part.SERVER, error)
        return
    yield from _operator(connection, seen)
    yield from _rights(connection, is_accepted=refused is None)
    yield from _gpus(connection)
    if admin:
        yield from installation(connection, seen.operators)


def _failed(part: Part, error: LoginFailed | ClusterError) -> Check:
    text = error.message if isinstance(error, ClusterError) else str(error)
    return Check(part, Level.FAIL, text, error.advice)


def _server(connection: Connection, version: str) -> Check:
    login = connection.login
    where = f'context "{login.context}"' if login.context else "within a pod"
    text = f"API server {version.removeprefix('v')}, {where}, namespace {connection.namespace}, "
    text += f"you: {connection.user}"
    found = _VERSION.match(version)
    if found and int(found[1]) < OLDEST:
        advice = f"ddpjob needs Kubernetes 1.{OLDEST} or newer"
        return Check(Part.SERVER, Level.FAIL, text, advice)
    return Check(Part.SERVER, Level.OK, text)


def _refusal(connection: Connection) -> Refused | None:
    """Have a job checked. Return why the API server refuses it, or None."""
    try:
        rehearse(connection, _job(connection.namespace))
    except Refused as error:
        return error
    return None


def _api(seen: Installed, refused: Refused | None) -> Check:
    """Compare the definition with this client's, and say that any job is refused."""
    kind = f"{names.PLURAL}.{names.GROUP} {names.VERSION}"
    # A right that is missing is named among the rights.
    is_right = isinstance(refused, Forbidden) or refused and NO_PODS in refused.message
    if refused and not is_right:
        advice = "this refusal meets every job here"
        return Check(Part.API, Level.FAIL, f"a job is refused: {refused.message}", advice)
    if seen.missing:
        text = f"API {kind} is older than this ddpjob ({__version__}), "
        text += f"without {', '.join(seen.missing)}"
        return Check(Part.API, Level.WARN, text, "ask your admin: helm upgrade ddpjob …")
    return Check(Part.API, Level.OK, f"API {kind}")


def _job(namespace: str) -> Body:
    metadata = {"generateName": "ddpjob-doctor-", "namespace": namespace}
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata}
    return {**head, "spec": {"image": "none", "args": ["none.py"]}}


def _operator(connection: Connection, seen: Installed) -> Iterator[Check]:
    """Yield what is known of the operator that serves this namespace."""
    jobs = _jobs(connection)
    namespace = connection.namespace
    waiting = [job for job in jobs if not job.get("status") and _age(job) > TAKEN_SECONDS]
    if seen.operators_hidden:
        served = next((job for job in jobs if job.get("status")), None)
        if served is not None:
            name = why.text(served, "metadata", "name")
            yield Check(Part.OPERATOR, Level.OK, f"an operator has taken job {name}")
        else:
            text = "operator: you may not list deployments, and no job shows its work"
            yield Check(Part.OPERATOR, Level.SKIP, text)
    else:
        yield from _operators(seen.operators, namespace)
    if waiting:
        name, age = why.text(waiting[0], "metadata", "name"), duration(_age(waiting[0]))
        text = f"no operator has taken job {name} for {age}"
        yield Check(Part.OPERATOR, Level.FAIL, text, "ask your admin: ddpjob doctor --admin")


def _operators(found: Sequence[Operator], namespace: str) -> Iterator[Check]:
    serving = [each for each in found if not each.watches or namespace in each.watches]
    if not serving:
        others = ", ".join(f"that in {o.namespace} serves {', '.join(o.watches)}" for o in found)
        text = f"no operator serves namespace {namespace}" + (f"; {others}" if others else "")
        yield Check(Part.OPERATOR, Level.FAIL, text, "ask your admin: helm install ddpjob …")
    for each in serving:
        ready = f"ready ({each.ready} of {each.replicas})" if each.ready else "is not ready"
        text = f"operator {each.version} in {each.namespace} {ready}"
        if not each.ready:
            advice = f"kubectl -n {each.namespace} describe deployment {each.name}"
            yield Check(Part.OPERATOR, Level.FAIL, text, advice)
        elif each.version != __version__:
            text += f"; this ddpjob is {__version__}"
            yield Check(Part.OPERATOR, Level.WARN, text, "use the same version for both")
        else:
            yield Check(Part.OPERATOR, Level.OK, text)


def _rights(connection: Connection, *, is_accepted: bool) -> Iterator[Check]:
    """Yield the rights that this user has in one line, and each that is missing in its own.

    A user whose job is accepted may lack MAKE_PODS: this cluster does not ask for it.
    """
    had: list[str] = []
    where = f"in namespace {connection.namespace}"
    for right in RIGHTS:
        group, resource, verbs, command = right
        missing = [verb for verb in verbs if not _may(connection, group, resource, verb)]
        if len(missing) < len(verbs):
            kept = ", ".join(verb for verb in verbs if verb not in missing)
            had.append(f"{kept} {resource}")
        if missing and not (is_accepted and right == MAKE_PODS):
            text = f"you may not {', '.join(missing)} {resource} {where}"
            advice = f'for {command}: ask for the role "edit" there'
            yield Check(Part.RIGHTS, Level.FAIL, text, advice)
    for group, resource, verbs, command in WISHES:
        if any(_may(connection, group, resource, verb) for verb in verbs):
            had.append(f"use {resource}")
        else:
            text = f"you may not use {resource} {where}"
            advice = f'for {command}: ask for the role "edit" there'
            yield Check(Part.RIGHTS, Level.WARN, text, advice)
    if had:
        yield Check(Part.RIGHTS, Level.OK, f"you may: {'; '.join(had)}")


def _may(connection: Connection, group: str, resource: str, verb: str) -> bool:
    """Ask the API server whether this user may do something in the namespace."""
    kind, slash, part = resource.partition("/")
    attributes = {"namespace": connection.namespace, "verb": verb, "group": group, "resource": kind}
    if slash:
        attributes["subresource"] = part
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return why.part(connection.request("POST", path, body), "status", "allowed") is True


def _gpus(connection: Connection) -> Iterator[Check]:
    try:
        found = free_gpus(connection)
    except Forbidden as error:
        text = f"free GPUs: you may not {error.verb} {error.resource} in the whole cluster"
        yield Check(Part.GPUS, Level.SKIP, text)
        return
    for kind, (free, total) in sorted(found.items()):
        yield Check(Part.GPUS, Level.OK, f"{free} of {total} {kind} free")
    if not found:
        yield Check(Part.GPUS, Level.OK, "no node has GPUs: jobs train on CPUs")


def _jobs(connection: Connection) -> list[Body]:
    """Return the namespace's jobs that this ddpjob's operator is to run, newest first."""

    def keep(body: Body) -> Body | None:
        metadata = {name: body["metadata"].get(name) for name in ("name", "creationTimestamp")}
        managed = why.text(body, "spec", "managedBy")
        is_ours = managed in ("", names.MANAGER)
        return {"metadata": metadata, "status": bool(body.get("status"))} if is_ours else None

    try:
        found = connection.list(DDPJOBS, namespace=connection.namespace, keep=keep).items
    except Refused:
        return []
    return sorted(found, key=_age)


def _age(job: Body) -> float:
    created = unix_seconds(why.text(job, "metadata", "creationTimestamp"))
    return 0.0 if created is None else max(0.0, time.time() - created)
