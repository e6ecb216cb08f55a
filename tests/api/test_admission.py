"""Who may have pods created through a DDPJob: the installed policy on a real API server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ddpjob import names
from tests.builders import job_object
from tests.cluster import operator as operators
from tests.cluster.apiserver import ApiServer
from tests.waiting import wait_for

KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
JANE, POD_MAKER, CONTROLLER = "jane", "pod-maker", "queue-controller"
REFUSED = "may not create pods in namespace"


@pytest.fixture(scope="module")
def policy(api_server: ApiServer, crd: None) -> Iterator[None]:
    """The policy as installed, once it is enforced."""
    items = [found for found in operators.installed_objects() if found["kind"] in KINDS]
    assert len(items) == 2
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    api_server.kubectl("apply", "-f", "-", input=listing)
    yield
    api_server.kubectl("delete", "-f", "-", input=listing)


@pytest.fixture
def people(api_server: ApiServer, policy: None, namespace: str) -> str:
    """A namespace in which all three may do all with DDPJobs, and one of them may create pods."""
    grant(api_server, namespace, "jobs", names.GROUP, "*", (JANE, POD_MAKER, CONTROLLER))
    grant(api_server, namespace, "pods", "", "create", (POD_MAKER,))
    # The API server takes up a new policy after some seconds.
    wait_for(lambda: REFUSED in apply(api_server, namespace, JANE, "probe", dry_run=True))
    return namespace


def grant(
    server: ApiServer, namespace: str, name: str, group: str, verb: str, users: tuple[str, ...]
) -> None:
    resource = f"{names.PLURAL}.{group}" if group else "pods"
    where = ("-n", namespace)
    server.kubectl("create", "role", name, f"--verb={verb}", f"--resource={resource}", *where)
    named = [f"--user={user}" for user in users]
    server.kubectl("create", "rolebinding", name, f"--role={name}", *named, *where)


def apply(
    server: ApiServer, namespace: str, user: str, name: str, *, dry_run: bool = False, **spec: Any
) -> str:
    """What kubectl says when `user` creates or replaces the job."""
    body = json.dumps(job_object(name, **spec))
    flags = ["--dry-run=server"] if dry_run else []
    command = ["apply", "--server-side", "--force-conflicts", "-f", "-", "-n", namespace]
    return server.kubectl(*command, f"--as={user}", *flags, input=body, check=False)


def patch(server: ApiServer, namespace: str, user: str, body: dict[str, Any]) -> str:
    command = ["patch", "ddpjob", "digits", "-n", namespace, "--type=merge", "-p", json.dumps(body)]
    return server.kubectl(*command, f"--as={user}", check=False)


def test_only_who_may_create_pods_may_create_jobs(api_server: ApiServer, people: str) -> None:
    said = apply(api_server, people, JANE, "digits")
    assert f"jane {REFUSED} {people}" in said
    assert "ddpjob.ddpjob.dev/digits" in apply(api_server, people, POD_MAKER, "digits")


@pytest.mark.deep
def test_others_may_suspend_label_and_delete(api_server: ApiServer, people: str) -> None:
    apply(api_server, people, POD_MAKER, "digits", template={"spec": {"nodeSelector": {"a": "b"}}})
    for body in (
        {"spec": {"suspend": True}},
        {"spec": {"suspend": False}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"finalizers": ["example.com/hold"]}},
        {"metadata": {"finalizers": None}},
    ):
        assert "patched" in patch(api_server, people, CONTROLLER, body), body
    for change in ({"nnodes": 3}, {"suspend": True, "image": "other"}, {"template": None}):
        assert REFUSED in patch(api_server, people, CONTROLLER, {"spec": change}), change
    assert "patched" in patch(api_server, people, POD_MAKER, {"spec": {"nnodes": 3}})
    command = ("delete", "ddpjob", "digits", "-n", people, f"--as={CONTROLLER}")
    assert "deleted" in api_server.kubectl(*command, "--cascade=foreground", check=False)
    left = ("get", "ddpjobs", "-n", people, "-o", "name")
    wait_for(lambda: not api_server.kubectl(*left).strip())
