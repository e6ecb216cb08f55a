"""What a user of a cluster needs, and its admin: what is missing, and what to do about it."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.answers import not_installed
from ddpjob.client.connection import Connection
from ddpjob.client.creation import create
from ddpjob.client.installed import Installed, Operator, free_gpus, look
from ddpjob.cluster import DDPJOBS, LEASES, Resource
from ddpjob.errors import ClusterError, Forbidden, LoginFailed, NotFound, NotInstalled, Refused
from ddpjob.json_depth import Body
from ddpjob.times import duration, seconds_since, unix_seconds
from ddpjob.version import __version__

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
CRD = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "")
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "")
# A leader renews its Lease every 2 s, and loses it after 15 s.
LEASE_SECONDS = 15.0
NAME_LABEL = "app.kubernetes.io/name=ddpjob"
FOR_EDITORS = "rbac.authorization.k8s.io/aggregate-to-edit"


class Level(StrEnum):
    """How a check has ended."""

    OK = "ok"
    WARN = "warn"
    """It works, though not all of it."""
    FAIL = "FAIL"
    SKIP = "?"
    """This user cannot see it."""


class Part(StrEnum):
    """What is checked."""

    SERVER = "server"
    API = "api"
    OPERATOR = "operator"
    RIGHTS = "rights"
    GPUS = "gpus"
    ADMIN = "admin"


@dataclass(frozen=True)
class Check:
    """One line of what is, and the next step where something is missing. Both are printable."""

    part: Part
    level: Level
    text: str
    advice: str = ""


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
        create(connection, _job(connection.namespace), dry_run=True)
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


def installation(connection: Connection, operators: Sequence[Operator]) -> Iterator[Check]:
    """Yield the checks: definition, leaders, roles of users, admission policy."""
    yield _seen(_definition, connection, "the definition of DDPJob")
    for operator in operators:
        if operator.lease:
            look = partial(_leader, place=operator.lease)
            yield _seen(look, connection, f"lease {operator.lease}")
    yield _seen(_roles, connection, "cluster roles")
    yield _seen(_policy, connection, "admission policies")


def _seen(look: Callable[[Connection], Check], connection: Connection, what: str) -> Check:
    try:
        return look(connection)
    except Forbidden as error:
        text = f"{what}: you may not {error.verb} {error.resource}"
        return Check(Part.ADMIN, Level.SKIP, text)
    except NotFound:
        return Check(Part.ADMIN, Level.WARN, f"{what}: there is none")
    except ClusterError as error:
        return Check(Part.ADMIN, Level.WARN, f"{what}: {error.message}")


def _definition(connection: Connection) -> Check:
    from ddpjob.api.crd import openapi_schema  # the models are slow to import

    name = f"{names.PLURAL}.{names.GROUP}"
    found = connection.request("GET", CRD.path(None, name))
    versions = why.part(found, "spec", "versions") or ()
    stored = [version for version in versions if version.get("name") == names.VERSION]
    schema = why.part(stored[0], "schema", "openAPIV3Schema") if stored else None
    if schema == openapi_schema():
        return Check(Part.ADMIN, Level.OK, f"the definition of DDPJob is that of {__version__}")
    text = f"the definition of DDPJob is not that of {__version__}"
    return Check(Part.ADMIN, Level.WARN, text, "ddpjob crd | kubectl apply --server-side -f -")


def _leader(connection: Connection, place: str) -> Check:
    namespace, _, name = place.partition("/")
    lease = connection.get(LEASES, name, namespace=namespace)
    holder = why.text(lease, "spec", "holderIdentity")
    age = seconds_since(why.text(lease, "spec", "renewTime") or None, time.time())
    if holder and age < LEASE_SECONDS:
        return Check(Part.ADMIN, Level.OK, f"leader: {holder}")
    words = f"{holder} was, {duration(age)} ago" if holder else "nobody has the lease"
    advice = f"kubectl -n {namespace} logs -l {NAME_LABEL} --prefix"
    return Check(Part.ADMIN, Level.FAIL, f"no operator leads: {words}", advice)


def _roles(connection: Connection) -> Check:
    found = connection.list(ROLES, labels=NAME_LABEL, keep=lambda body: body["metadata"]).items
    if any((metadata.get("labels") or {}).get(FOR_EDITORS) == "true" for metadata in found):
        return Check(Part.ADMIN, Level.OK, 'the roles "edit" and "view" include DDPJobs')
    text = 'the role "edit" does not include DDPJobs, so users need a role of their own'
    return Check(Part.ADMIN, Level.WARN, text, "helm upgrade --set userRoles.install=true")


def _policy(connection: Connection) -> Check:
    if connection.list(POLICIES, labels=NAME_LABEL, keep=lambda body: True).items:
        return Check(Part.ADMIN, Level.OK, "who may not create pods may not create DDPJobs either")
    text = "whoever may create DDPJobs has the operator create pods, with or without that right"
    return Check(Part.ADMIN, Level.WARN, text, "helm upgrade --set admissionPolicy.install=true")
