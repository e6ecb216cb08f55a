"""`ddpjob uninstall` takes one operator away, and asks before it takes the wrong one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddpjob import names
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.tiers import ROOT

RELEASE = "leaving"
LABELS = {"app.kubernetes.io/name": "ddpjob", "app.kubernetes.io/instance": RELEASE}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {  # path, and whether the operator's namespace or one that it watches has it
    "Deployment": ("/apis/apps/v1/namespaces/{}/deployments", "home"),
    "ServiceAccount": ("/api/v1/namespaces/{}/serviceaccounts", "home"),
    "Role": (RBAC + "/namespaces/{}/roles", "watched"),
    "RoleBinding": (RBAC + "/namespaces/{}/rolebindings", "watched"),
}
ROLES = RBAC + "/clusterroles"


def objects(home: str) -> dict[str, dict[str, Any]]:
    """What an operator of this namespace consists of, in short."""
    options = ["--listen=:8080", f"--namespace={home}-jobs"]
    container = {"name": "operator", "image": "i", "args": options}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": home}
    group = "rbac.authorization.k8s.io"
    return {
        "Deployment": {
            "spec": {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": template}
        },
        "ServiceAccount": {},
        "Role": {"rules": []},
        "RoleBinding": {
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "operator"},
            "subjects": [subject],
        },
    }


def jobs_of(home: str) -> str:
    """Path of the jobs that the operator of this namespace watches."""
    return f"/apis/{names.API_VERSION}/namespaces/{home}-jobs/{names.PLURAL}"


@pytest.fixture
def installed(api_server: ApiServer, crd: None, namespace: str) -> Iterator[tuple[str, str]]:
    """Namespaces of two operators of one release's name, each of which watches another one."""
    homes = f"{namespace}-a", f"{namespace}-b"
    for home in homes:
        for name in (home, f"{home}-jobs"):
            api_server.create_namespace(name)
        for kind, body in objects(home).items():
            path, where = KINDS[kind]
            metadata = {"name": "operator", "labels": LABELS}
            place = path.format(home if where == "home" else f"{home}-jobs")
            api_server.request("POST", place, {"metadata": metadata, **body})
        api_server.request("POST", jobs_of(home), job_object(managedBy="example.com/nobody"))
    shared = {"metadata": {"name": f"{namespace}-edit", "labels": LABELS}, "rules": []}
    api_server.request("POST", ROLES, shared)
    yield homes
    for home in homes:
        for name in (home, f"{home}-jobs"):
            api_server.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def uninstall(api_server: ApiServer) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ddpjob", "uninstall", "--release", RELEASE, *options],
            env={
                **os.environ,
                "KUBECONFIG": str(api_server.kubeconfig),
                "PYTHONPATH": str(ROOT / "operator"),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def left(api_server: ApiServer, home: str) -> set[str]:
    """Kinds of which the operator of this namespace still has its object, and its jobs."""
    found = set()
    for kind, (path, where) in KINDS.items():
        place = path.format(home if where == "home" else f"{home}-jobs")
        items = api_server.request("GET", place)["items"]
        if any(item["metadata"]["name"] == "operator" for item in items):
            found.add(kind)
    return found | ({"DDPJob"} if api_server.request("GET", jobs_of(home))["items"] else set())


ALL = {*KINDS, "DDPJob"}


def test_it_takes_one_operator_and_no_other(
    api_server: ApiServer,
    installed: tuple[str, str],
    uninstall: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    first, second = installed
    wrong = uninstall("--namespace", "nope", "--delete-jobs")
    assert wrong.returncode == 1 and "no release leaving in namespace nope" in wrong.stderr
    assert f"leaving in {first}" in wrong.stderr and f"leaving in {second}" in wrong.stderr
    needed = uninstall("--namespace", first, "--delete-crd")
    assert needed.returncode == 1 and second in needed.stderr and "needs the CRD" in needed.stderr
    assert left(api_server, first) == left(api_server, second) == ALL

    gone = uninstall("--namespace", first, "--delete-jobs")
    assert gone.returncode == 0, gone.stderr
    assert left(api_server, first) == set() and left(api_server, second) == ALL
    assert has_shared_role(api_server), "the other one needs it"

    last = uninstall("--namespace", second)
    assert last.returncode == 0 and "1 DDPJobs stay" in last.stdout, last.stderr
    assert left(api_server, second) == {"DDPJob"} and not has_shared_role(api_server)
    again = uninstall("--namespace", second)
    assert again.returncode == 0 and "nothing is left" in again.stdout, again.stderr
    assert "stay;" not in again.stdout


def has_shared_role(api_server: ApiServer) -> bool:
    roles = api_server.request("GET", ROLES + "?labelSelector=app.kubernetes.io/instance=leaving")
    return bool(roles["items"])
