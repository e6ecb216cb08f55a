"""What a user of a cluster needs, and its admin: what is missing, and what to do about it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

from ddpjob import names
from ddpjob.client.creation import create
from ddpjob.client.installed import Installed, Operator, free_gpus, look
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster import DDPJOBS, LEASES, Resource
from ddpjob.cluster.answers import not_installed
from ddpjob.cluster.connection import Connection
from ddpjob.errors import ClusterError, Forbidden, LoginFailed, NotInstalled, Refused
from ddpjob.json_depth import Body
from ddpjob.times import duration, seconds_since
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


# What is checked.
Part = Literal["server", "api", "operator", "rights", "gpus", "admin"]


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
    except (LoginFailed, ClusterError) as error:
        part: Part = "api" if isinstance(error, NotInstalled) else "server"
        yield Check(part, Level.FAIL, getattr(error, "message", str(error)), error.advice)
        return
    yield from _operator(connection, seen)
    yield from _rights(connection, is_accepted=refused is None)
    yield from _gpus(connection)
    if admin:
        yield from _installation(connection, seen.operators)


def _server(connection: Connection, version: str) -> Check:
    login = connection.login
    where = f'context "{login.context}"' if login.context else "within a pod"
    text = f"API server {version.removeprefix('v')}, {where}, namespace {connection.namespace}, "
    text += f"you: {connection.user}"
    if int(version.split(".")[1]) < OLDEST:
        return Check("server", Level.FAIL, text, f"ddpjob needs Kubernetes 1.{OLDEST} or newer")
    return Check("server", Level.OK, text)


def _refusal(connection: Connection) -> Refused | None:
    """Have a job checked. Return why the API server refuses it, or None."""
    metadata = {"generateName": "ddpjob-doctor-", "namespace": connection.namespace}
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata}
    try:
        create(connection, {**head, "spec": {"image": "none", "args": ["none.py"]}}, dry_run=True)
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
        return Check("api", Level.FAIL, f"a job is refused: {refused.message}", advice)
    if seen.missing:
        text = f"API {kind} is older than this ddpjob ({__version__}), "
        text += f"without {', '.join(seen.missing)}"
        return Check("api", Level.WARN, text, "ask your admin: helm upgrade ddpjob …")
    return Check("api", Level.OK, f"API {kind}")


def _operator(connection: Connection, seen: Installed) -> Iterator[Check]:
    """Yield what is known of the operator that serves this namespace."""
    jobs = _jobs(connection)
    if not seen.operators_hidden:
        yield from _operators(seen.operators, connection.namespace)
    elif taken := next((job for job in jobs if job.body.get("status")), None):
        yield Check("operator", Level.OK, f"an operator has taken job {taken.name}")
    else:
        text = "operator: you may not list deployments, and no job shows its work"
        yield Check("operator", Level.SKIP, text)
    for job in jobs:
        age = seconds_since(job.body["metadata"]["creationTimestamp"], time.time())
        if age > TAKEN_SECONDS and not job.body.get("status"):
            text = f"no operator has taken job {job.name} for {duration(age)}"
            yield Check("operator", Level.FAIL, text, "ask your admin: ddpjob doctor --admin")
            return


def _operators(found: Sequence[Operator], namespace: str) -> Iterator[Check]:
    serving = [each for each in found if not each.watches or namespace in each.watches]
    if not serving:
        others = ", ".join(f"that in {o.namespace} serves {', '.join(o.watches)}" for o in found)
        text = f"no operator serves namespace {namespace}" + (f"; {others}" if others else "")
        yield Check("operator", Level.FAIL, text, "ask your admin: helm install ddpjob …")
    for each in serving:
        text = f"operator {each.version} in {each.namespace}"
        if not each.ready:
            advice = f"kubectl -n {each.namespace} describe deployment {each.name}"
            yield Check("operator", Level.FAIL, f"{text} is not ready", advice)
            continue
        text += f" ready ({each.ready} of {each.replicas})"
        if each.version == __version__:
            yield Check("operator", Level.OK, text)
        else:
            text += f"; this ddpjob is {__version__}"
            yield Check("operator", Level.WARN, text, "use the same version for both")


def _jobs(connection: Connection) -> list[Snapshot]:
    """Return the jobs that are for this operator, the newest first."""

    def keep(body: Body) -> Snapshot | None:
        is_ours = body["spec"].get("managedBy", names.MANAGER) == names.MANAGER
        return Snapshot(body) if is_ours else None

    try:
        found = connection.list(DDPJOBS, namespace=connection.namespace, keep=keep).items
    except Refused:  # the missing right is named among the rights
        return []
    return sorted(found, key=lambda job: job.body["metadata"]["creationTimestamp"], reverse=True)


def _rights(connection: Connection, *, is_accepted: bool) -> Iterator[Check]:
    """Yield the rights that this user has in one line, and each that is missing in its own.

    A user whose job is accepted may lack MAKE_PODS: this cluster does not ask for it.
    """
    had: list[str] = []
    for right in RIGHTS:
        group, resource, verbs, command = right
        missing = [verb for verb in verbs if not _may(connection, group, resource, verb)]
        if kept := [verb for verb in verbs if verb not in missing]:
            had.append(f"{', '.join(kept)} {resource}")
        if missing and not (is_accepted and right == MAKE_PODS):
            text = f"you may not {', '.join(missing)} {resource} in namespace"
            advice = f'for {command}: ask for the role "edit" there'
            yield Check("rights", Level.FAIL, f"{text} {connection.namespace}", advice)
    forward = "use pods/portforward"  # by GET or POST, as the version of Kubernetes is
    if any(_may(connection, "", "pods/portforward", verb) for verb in ("get", "create")):
        had.append(forward)
    else:
        text = f"you may not {forward} in namespace {connection.namespace}"
        advice = 'for top and stacks: ask for the role "edit" there'
        yield Check("rights", Level.WARN, text, advice)
    if had:
        yield Check("rights", Level.OK, f"you may: {'; '.join(had)}")


def _may(connection: Connection, group: str, resource: str, verb: str) -> bool:
    """Ask the API server whether this user may do something in the namespace."""
    kind, _, part = resource.partition("/")
    attributes = {"namespace": connection.namespace, "verb": verb, "group": group}
    attributes |= {"resource": kind, "subresource": part}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(connection.request("POST", path, body)["status"]["allowed"])


def _gpus(connection: Connection) -> Iterator[Check]:
    try:
        found = free_gpus(connection)
    except Forbidden as error:
        text = f"free GPUs: you may not {error.verb} {error.resource} in the whole cluster"
        yield Check("gpus", Level.SKIP, text)
        return
    for kind, (free, total) in sorted(found.items()):
        yield Check("gpus", Level.OK, f"{free} of {total} {kind} free")
    if not found:
        yield Check("gpus", Level.OK, "no node has GPUs: jobs train on CPUs")


def _installation(connection: Connection, operators: Sequence[Operator]) -> Iterator[Check]:
    """Yield the checks of definition, leaders, roles of users, and admission policy."""
    looks: dict[str, Callable[[Connection], Check]] = {"the definition of DDPJob": _definition}
    looks |= {f"lease {o.lease}": partial(_leader, place=o.lease) for o in operators if o.lease}
    looks |= {"cluster roles": _roles, "admission policies": _policy}
    for what, check in looks.items():
        try:
            yield check(connection)
        except Forbidden as error:
            text = f"{what}: you may not {error.verb} {error.resource}"
            yield Check("admin", Level.SKIP, text)
        except ClusterError as error:
            yield Check("admin", Level.WARN, f"{what}: {error.message}")


def _definition(connection: Connection) -> Check:
    from ddpjob.api.crd import openapi_schema  # the models are slow to import

    found = connection.request("GET", CRD.path(None, f"{names.PLURAL}.{names.GROUP}"))
    schemas = {
        each["name"]: each["schema"]["openAPIV3Schema"] for each in found["spec"]["versions"]
    }
    if schemas.get(names.VERSION) == openapi_schema():
        return Check("admin", Level.OK, f"the definition of DDPJob is that of {__version__}")
    text = f"the definition of DDPJob is not that of {__version__}"
    return Check("admin", Level.WARN, text, "ddpjob crd | kubectl apply --server-side -f -")


def _leader(connection: Connection, place: str) -> Check:
    namespace, _, name = place.partition("/")
    spec = connection.get(LEASES, name, namespace=namespace)["spec"]
    holder, age = spec.get("holderIdentity"), seconds_since(spec.get("renewTime"), time.time())
    if holder and age < LEASE_SECONDS:
        return Check("admin", Level.OK, f"leader: {holder}")
    words = f"{holder} was, {duration(age)} ago" if holder else "nobody has the lease"
    advice = f"kubectl -n {namespace} logs -l {NAME_LABEL} --prefix"
    return Check("admin", Level.FAIL, f"no operator leads: {words}", advice)


def _roles(connection: Connection) -> Check:
    found = connection.list(ROLES, labels=f"{NAME_LABEL},{FOR_EDITORS}=true")
    if found.items:
        return Check("admin", Level.OK, 'the roles "edit" and "view" include DDPJobs')
    text = 'the role "edit" does not include DDPJobs, so users need a role of their own'
    return Check("admin", Level.WARN, text, "helm upgrade --set userRoles.install=true")


def _policy(connection: Connection) -> Check:
    if connection.list(POLICIES, labels=NAME_LABEL).items:
        return Check("admin", Level.OK, "who may not create pods may not create DDPJobs either")
    text = "whoever may create DDPJobs has the operator create pods, with or without that right"
    return Check("admin", Level.WARN, text, "helm upgrade --set admissionPolicy.install=true")
