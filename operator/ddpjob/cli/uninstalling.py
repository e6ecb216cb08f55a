"""Removes an operator's objects for `ddpjob uninstall`, and prints what it deletes."""

import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from shlex import join
from typing import Any

from ddpjob import names
from ddpjob.cli.losing import (
    Job,
    Object,
    ask,
    doomed,
    nobody_knows,
    read_job,
    read_left,
    read_object,
)
from ddpjob.cli.options import Place
from ddpjob.cli.say import say
from ddpjob.client import why
from ddpjob.client.operators import NAMESPACES, Acting, acting
from ddpjob.cluster import (
    CONFIGMAPS,
    DDPJOBS,
    LEASES,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Keep,
    Resource,
)
from ddpjob.errors import Conflict, DDPJobError, JobTimeout, NotFound
from ddpjob.json_depth import Body

CRD_NAME = f"{names.PLURAL}.{names.GROUP}"
LABEL = "app.kubernetes.io/name=ddpjob"
RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
SECRETS = Resource("", "v1", "secrets", "Secret")
ROLES = Resource(RBAC, "v1", "roles", "Role")
BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
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
    NETWORK_POLICIES,
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


class Release:
    """One release of the chart, whether Helm or kubectl has installed it."""

    def __init__(self, place: Place, release: str, namespace: str) -> None:
        self._place, self._release, self._namespace = place, release, namespace
        self._connection = place.client().connection
        self._deleted = 0

    def remove(self, *, delete_jobs: bool, delete_crd: bool, timeout: float, yes: bool) -> None:
        """Delete the release. Raises DDPJobError if something else has to be done first."""
        here, others = self._operators()
        is_helms = self._is_helms()
        if others and not is_helms and not self._ours(shared=False):
            raise self._not_found(others)
        if delete_crd and others:
            raise _crd_is_needed(others)
        if is_helms:  # before anything is lost
            self._check_helm()
        jobs = self._jobs()
        if delete_jobs and jobs and here is None:
            raise nobody_knows(self._release, self._namespace)
        own = doomed(jobs or (), here, others) if delete_jobs and here else []
        if (lost := (jobs or ()) if delete_crd else own) and not yes:
            ask(lost, self._connection.login)
        if own:
            self._delete_jobs([job.found for job in own], timeout)
        elif here and not delete_jobs:
            self._tell_of_jobs(jobs or [], here)
        if is_helms:
            self._helm_uninstall()
        for each in self._ours(shared=not others):
            self._delete(each)
        if not (here or is_helms or self._deleted):
            say(f"nothing is left of release {self._release} in namespace {self._namespace}")
        if delete_crd:
            self._delete_definition()
        elif jobs is not None:
            say(f"the CRD {CRD_NAME} stays (--delete-crd deletes it and every DDPJob)")

    def _operators(self) -> tuple[Acting | None, list[Acting]]:
        """Return the operator to remove, if it is there, and all other operators.

        A Deployment of a tenant that looks like one is none of them, or it would keep what is
        shared, and its arguments would say which jobs are lost.
        """
        found = acting(self._connection)
        here = [each for each in found if each.place == (self._release, self._namespace)]
        return (here[0] if here else None), [each for each in found if each not in here[:1]]

    def _is_helms(self) -> bool:
        """Return whether Helm manages this release: it keeps a Secret for each revision."""
        labels = f"owner=helm,name={self._release}"
        return bool(self._list(SECRETS, labels, namespace=self._namespace, keep=lambda _: True))

    def _ours(self, *, shared: bool) -> list[Object]:
        """Return the release's objects, dependants first.

        With `shared` these include the cluster-wide objects of a release of that name.
        """
        labels = f"{LABEL},app.kubernetes.io/instance={self._release}"
        bound = set(self._list(BINDINGS, labels, keep=self._bound))
        return [
            each
            for resource in (*NAMESPACED, *(CLUSTER_WIDE if shared else ()))
            for each in self._list(resource, labels, keep=partial(self._own, resource, bound))
        ]

    def _bound(self, binding: Body) -> tuple[str, str] | None:
        """Return the role of a binding for this release's operator, and the namespace."""
        for subject in why.part(binding, "subjects") or ():
            if why.part(subject, "namespace") == self._namespace:
                return why.text(binding, "roleRef", "name"), str(binding["metadata"]["namespace"])
        return None

    def _own(self, resource: Resource, bound: set[tuple[str, str]], body: Body) -> Object | None:
        """Return an object if it is the release's: its roles are in all namespaces it watches."""
        name, where = body["metadata"]["name"], body["metadata"].get("namespace")
        if resource == NAMESPACES:
            is_own = name == self._namespace
        elif resource in (ROLES, BINDINGS):
            role = name if resource == ROLES else why.text(body, "roleRef", "name")
            is_own = where == self._namespace or (role, where) in bound
        else:
            is_own = where in (None, self._namespace)
        return read_object(resource, body) if is_own else None

    def _jobs(self) -> list[Job] | None:
        """Return all DDPJobs of the cluster; None if it has no DDPJob API."""
        try:
            found: list[Job] = self._connection.list(DDPJOBS, keep=read_job).items
        except NotFound:
            return None
        return found

    def _tell_of_jobs(self, jobs: Sequence[Job], here: Acting) -> None:
        unfinished = [job for job in jobs if here.watches(job.namespace) and not job.is_finished]
        if unfinished:
            one = len(unfinished) == 1
            stay = "DDPJob stays; its pods run" if one else "DDPJobs stay; their pods run"
            say(f"{len(unfinished)} unfinished {stay} on without an operator")

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

    def _delete(self, found: Object) -> None:
        """Delete this object, and no other one that has got its name meanwhile."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": found.uid}}
        try:
            self._connection.request("DELETE", found.path, body)
        except NotFound:
            return
        except Conflict:
            say(f"{found} is another one by now, and stays", err=True)
            return
        self._deleted += 1
        where = f" in {found.namespace}" if found.namespace else ""
        say(f"deleted {found.resource.kind} {found.name}{where}")

    def _delete_definition(self) -> None:
        with suppress(NotFound):
            found = self._connection.request("GET", CRDS.path(None, CRD_NAME))
            self._delete(read_object(CRDS, found))

    def _delete_jobs(self, jobs: list[Object], timeout: float) -> None:
        """Delete the jobs, and wait until their objects are gone. Raises JobTimeout."""
        for job in jobs:
            self._delete(job)
        labels = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
        keep, deadline = partial(read_left, {job.uid for job in jobs}), time.monotonic() + timeout
        kinds = (PODS, SERVICES, CONFIGMAPS)
        while left := [
            x for kind in kinds for x in self._list(kind, labels, keep=partial(keep, kind))
        ]:
            if time.monotonic() > deadline:
                listed = ", ".join(map(str, left[:SHOWN]))
                text = f"not deleted within --timeout, {timeout:.0f} s: {listed}"
                raise JobTimeout(None, f"{text}; nothing else was removed")
            time.sleep(1.0)

    def _helm(self) -> list[str]:
        """Return the command by which Helm removes the release."""
        command = ["helm", "uninstall", self._release, "--namespace", self._namespace, "--wait"]
        if self._place.context:
            command += ["--kube-context", self._place.context]
        if self._place.kubeconfig:
            command += ["--kubeconfig", str(self._place.kubeconfig)]
        return command

    def _check_helm(self) -> None:
        """Raise DDPJobError if Helm is not there."""
        if not shutil.which("helm"):
            text = "Helm manages this release, but helm is not on PATH; nothing was deleted"
            error = DDPJobError(text)
            error.advice = f"install helm, or where it is: {join(self._helm())}"
            raise error

    def _helm_uninstall(self) -> None:
        """Have Helm remove the release. Raises DDPJobError."""
        if code := subprocess.run(self._helm(), check=False).returncode:
            raise DDPJobError(f"helm uninstall ended with {code}; its own words stand above")

    def _not_found(self, others: Sequence[Acting]) -> NotFound:
        there = ", ".join(map(str, others))
        text = f"no release {self._release} in namespace {self._namespace}"
        error = NotFound(404, "NotFound", f"{text}; releases in this cluster: {there}")
        error.advice = "name one of them: --release NAME -n NAMESPACE"
        return error


def _crd_is_needed(others: Sequence[Acting]) -> Conflict:
    where = ", ".join(sorted({other.deployed.namespace for other in others}))
    error = Conflict(409, "Conflict", f"--delete-crd: the operator in {where} still needs the CRD")
    error.advice = "uninstall that one first, or leave --delete-crd out"
    return error
