"""The checks of an installation, for its administrator."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ddpjob import __version__, names
from ddpjob.client import why
from ddpjob.client.check import Check, Level, Part
from ddpjob.client.connection import Connection
from ddpjob.client.installed import Operator
from ddpjob.cluster import LEASES, Resource
from ddpjob.errors import ClusterError, Forbidden, NotFound
from ddpjob.times import duration, seconds_since

CRD = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "")
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "")
# A leader renews its Lease every 2 s, and loses it after 15 s.
LEASE_SECONDS = 15.0
NAME_LABEL = "app.kubernetes.io/name=ddpjob"
FOR_EDITORS = "rbac.authorization.k8s.io/aggregate-to-edit"


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
