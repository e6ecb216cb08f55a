"""Removes an operator's objects for `ddpjob uninstall`, and prints what it deletes."""

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from shlex import join
from typing import Any

from ddpjob import names
from ddpjob.cli.options import Place
from ddpjob.cli.say import say
from ddpjob.client import why
from ddpjob.cluster import CONFIGMAPS, DDPJOBS, LEASES, PODS, SERVICES, Keep, Resource
from ddpjob.errors import Conflict, DDPJobError, JobTimeout, NotFound
from ddpjob.json_depth import Body

CRD_NAME = f"{names.PLURAL}.{names.GROUP}"
LABEL = "app.kubernetes.io/name=ddpjob"
RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
SECRETS = Resource("", "v1", "secrets", "Secret")
ROLES = Resource(RBAC, "v1", "roles", "Role")
BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)

# Every kind that the chart creates, dependants first. A test compares it with
# charts/ddpjob/templates.
NAMESPACED = (
    DEPLOYMENTS,
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    LEASES,
    SERVICES,
    BINDINGS,
    ROLES,
    CONFIGMAPS,
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
)
CLUSTER_WIDE = (
    Resource(
        ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"
    ),
    Resource(ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding"),
    Resource(RBAC, "v1", "clusterroles", "ClusterRole"),
    NAMESPACES,
)
# Objects of which so many are named.
SHOWN = 5


@dataclass(frozen=True)
class _Operator:
    """An operator's Deployment."""

    release: str
    namespace: str
    watches: tuple[str, ...]
    """Namespaces that it watches. Without any it watches all namespaces."""


@dataclass(frozen=True)
class _Object:
    """An object, as far as it is told from others."""

    resource: Resource
    name: str
    namespace: str | None

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"


class Release:
    """One release of the chart, whether Helm or kubectl has installed it."""

    def __init__(self, place: Place, release: str, namespace: str) -> None:
        self._place, self._release, self._namespace = place, release, namespace
        self._connection = place.client().connection
        self._deleted = 0

    def remove(self, *, delete_jobs: bool, delete_crd: bool, timeout: float) -> None:
        """Delete the release. Raises DDPJobError if something else has to be done first."""
        here, others = self._operators()
        is_helms = self._is_helms()
        if others and not is_helms and not self._ours(shared=False):
            raise self._not_found(others)
        if delete_crd and others:
            raise _crd_is_needed(others)
        jobs = self._jobs(here.watches if here else ())
        unfinished = [state for _, state in jobs or () if state not in why.FINISHED]
        if delete_jobs and not here and jobs:
            # Without its Deployment nobody knows which jobs are this release's.
            what = f"release {self._release} has no operator in namespace {self._namespace}"
            say(f"{what}, so no DDPJob is deleted: ddpjob delete takes their names")
        elif jobs and delete_jobs:
            self._delete_jobs([job for job, _ in jobs], timeout)
        elif unfinished and here:
            say(f"{len(unfinished)} DDPJobs stay; their pods run on without an operator")
        if is_helms:
            self._helm_uninstall()
        for each in self._ours(shared=not others):
            self._delete(each)
        if not (here or is_helms or self._deleted):
            say(f"nothing is left of release {self._release} in namespace {self._namespace}")
        if delete_crd and jobs is not None:
            self._delete(_Object(CRDS, CRD_NAME, None))
        elif jobs is not None:
            say(f"the CRD {CRD_NAME} stays (--delete-crd deletes it and every DDPJob)")

    def _operators(self) -> tuple[_Operator | None, list[_Operator]]:
        """Return the operator to remove, if it is there, and all other operators."""
        found = [_operator(body) for body in self._list(DEPLOYMENTS, LABEL)]
        ours = (self._release, self._namespace)
        here = [each for each in found if (each.release, each.namespace) == ours]
        return (here[0] if here else None), [each for each in found if each not in here]

    def _is_helms(self) -> bool:
        """Return whether Helm manages this release: it keeps a Secret for each revision."""
        labels = f"owner=helm,name={self._release}"
        return bool(self._list(SECRETS, labels, namespace=self._namespace))

    def _ours(self, *, shared: bool) -> list[_Object]:
        """Return the release's objects, dependants first.

        With `shared` these include the cluster-wide objects of a release of that name.
        """
        labels = f"{LABEL},app.kubernetes.io/instance={self._release}"
        # In every namespace that it watches.
        bound = {
            (why.text(binding, "roleRef", "name"), why.text(binding, "metadata", "namespace"))
            for binding in self._list(BINDINGS, labels)
            if any(
                why.part(subject, "namespace") == self._namespace
                for subject in why.part(binding, "subjects") or ()
            )
        }
        return [
            _object(resource, body)
            for resource in (*NAMESPACED, *(CLUSTER_WIDE if shared else ()))
            for body in self._list(resource, labels)
            if self._is_ours(resource, body, bound)
        ]

    def _is_ours(self, resource: Resource, body: Body, bound: set[tuple[str, str]]) -> bool:
        name, where = body["metadata"]["name"], body["metadata"].get("namespace")
        if resource == NAMESPACES:
            return bool(name == self._namespace)
        if resource in (ROLES, BINDINGS):
            role = name if resource == ROLES else why.text(body, "roleRef", "name")
            return where == self._namespace or (role, where) in bound
        return where in (None, self._namespace)

    def _jobs(self, namespaces: Sequence[str]) -> list[tuple[_Object, str]] | None:
        """Return the DDPJobs of these namespaces, or of all, with their states.

        None if the cluster has no DDPJob API.
        """

        def keep(body: Body) -> tuple[_Object, str]:
            return _object(DDPJOBS, body), why.state(body.get("status"))

        try:
            found: list[tuple[_Object, str]] = self._connection.list(DDPJOBS, keep=keep).items
        except NotFound:
            return None
        return [each for each in found if not namespaces or each[0].namespace in namespaces]

    def _list(
        self,
        resource: Resource,
        labels: str,
        *,
        namespace: str | None = None,
        keep: Keep | None = None,
    ) -> list[Any]:
        """Return the objects of this kind in all namespaces, or in one; none of an unknown kind."""
        try:
            return self._connection.list(
                resource, labels=labels, namespace=namespace, keep=keep
            ).items
        except NotFound:
            return []

    def _delete(self, found: _Object) -> None:
        path = found.resource.path(found.namespace, found.name)
        try:
            self._connection.request("DELETE", path, {"propagationPolicy": "Background"})
        except NotFound:
            return
        self._deleted += 1
        where = f" in {found.namespace}" if found.namespace else ""
        say(f"deleted {found.resource.kind} {found.name}{where}")

    def _delete_jobs(self, jobs: list[_Object], timeout: float) -> None:
        """Delete the jobs, and wait until their objects are gone. Raises JobTimeout."""
        for job in jobs:
            self._delete(job)
        places, deadline = {job.namespace for job in jobs}, time.monotonic() + timeout
        while left := self._left(places):
            if time.monotonic() > deadline:
                listed = ", ".join(map(str, left[:SHOWN]))
                text = f"not deleted within --timeout, {timeout:.0f} s: {listed}"
                raise JobTimeout(None, f"{text}; nothing else was removed")
            time.sleep(1.0)

    def _left(self, places: set[str | None]) -> list[_Object]:
        labels = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
        return [
            each
            for resource in (PODS, SERVICES, CONFIGMAPS)
            for each in self._list(resource, labels, keep=partial(_object, resource))
            if each.namespace in places
        ]

    def _helm_uninstall(self) -> None:
        """Have Helm remove the release. Raises DDPJobError."""
        command = ["helm", "uninstall", self._release, "--namespace", self._namespace, "--wait"]
        if self._place.context:
            command += ["--kube-context", self._place.context]
        if self._place.kubeconfig:
            command += ["--kubeconfig", str(self._place.kubeconfig)]
        if not shutil.which("helm"):
            error = DDPJobError("Helm manages this release, but helm is not on PATH")
            error.advice = join(command)
            raise error
        if code := subprocess.run(command, check=False).returncode:
            raise DDPJobError(f"helm uninstall ended with {code}; its own words stand above")

    def _not_found(self, others: Sequence[_Operator]) -> NotFound:
        there = ", ".join(f"{other.release} in {other.namespace}" for other in others)
        text = f"no release {self._release} in namespace {self._namespace}"
        error = NotFound(404, "NotFound", f"{text}; releases in this cluster: {there}")
        error.advice = "name one of them: --release NAME -n NAMESPACE"
        return error


def _crd_is_needed(others: Sequence[_Operator]) -> Conflict:
    where = ", ".join(sorted({other.namespace for other in others}))
    error = Conflict(409, "Conflict", f"--delete-crd: the operator in {where} still needs the CRD")
    error.advice = "uninstall that one first, or leave --delete-crd out"
    return error


def _operator(body: Body) -> _Operator:
    containers = why.part(body, "spec", "template", "spec", "containers") or [{}]
    options = [str(text).partition("=") for text in why.part(containers[0], "args") or ()]
    watches = tuple(value for name, _, value in options if name == "--namespace")
    release = why.text(body, "metadata", "labels", "app.kubernetes.io/instance")
    return _Operator(release, why.text(body, "metadata", "namespace"), watches)


def _object(resource: Resource, body: Body) -> _Object:
    metadata = body["metadata"]
    return _Object(resource, str(metadata["name"]), metadata.get("namespace"))
