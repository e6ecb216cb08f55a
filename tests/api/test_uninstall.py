"""`ddpjob uninstall` takes one operator away, and asks before it takes the wrong one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS
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
    assert wrong.returncode == 3
    assert wrong.stderr.startswith("error: no release leaving in namespace nope; ")
    assert "\n  next: name one of them: --release NAME -n NAMESPACE\n" in wrong.stderr
    assert f"leaving in {first}" in wrong.stderr and f"leaving in {second}" in wrong.stderr
    needed = uninstall("--namespace", first, "--delete-crd")
    assert needed.returncode == 5 and second in needed.stderr
    assert needed.stderr.startswith("error: --delete-crd: ") and "needs the CRD" in needed.stderr
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


def test_what_a_deleted_job_leaves_ends_the_wait_and_nothing_else_is_removed(
    api_server: ApiServer,
    installed: tuple[str, str],
    uninstall: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    first, _ = installed
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    metadata = {"name": "stuck", "labels": labels, "finalizers": ["tests.ddpjob.dev/hold"]}
    path = CONFIGMAPS.path(f"{first}-jobs")
    api_server.request("POST", path, {"metadata": metadata})
    ended = uninstall("-n", first, "--delete-jobs", "--timeout", "1")
    assert ended.returncode == 124
    listed = f"ConfigMap {first}-jobs/stuck; nothing else was removed"
    assert ended.stderr == f"error: not deleted within --timeout, 1 s: {listed}\n"
    assert left(api_server, first) == set(KINDS)
    change = {"metadata": {"finalizers": None}}
    api_server.request("PATCH", f"{path}/stuck", change, kind="merge-patch+json")


def test_a_release_of_helm_needs_helm(
    api_server: ApiServer,
    installed: tuple[str, str],
    uninstall: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    first, _ = installed
    labels = {"owner": "helm", "name": RELEASE}
    secret = {"metadata": {"name": "sh.helm.release.v1.leaving.v1", "labels": labels}}
    api_server.request("POST", f"/api/v1/namespaces/{first}/secrets", secret)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = uninstall("-n", first, "--kubeconfig", str(api_server.kubeconfig))
    assert ended.returncode == 5 and left(api_server, first) == ALL
    command = f"helm uninstall {RELEASE} --namespace {first} --wait --kubeconfig "
    assert ended.stderr.startswith("error: Helm manages this release, but helm is not on PATH\n")
    assert ended.stderr.endswith(f"  next: {command}{api_server.kubeconfig}\n")
    script = tmp_path / "helm"
    script.write_text('#!/bin/sh\necho "called: $*" >&2\nexit 7\n')
    script.chmod(0o755)
    ended = uninstall("-n", first)
    assert ended.returncode == 5 and left(api_server, first) == ALL
    assert ended.stderr.startswith(f"called: uninstall {RELEASE} --namespace {first} --wait\n")
    assert ended.stderr.endswith("error: helm uninstall ended with 7; its own words stand above\n")


def test_no_way_into_the_cluster_and_a_missing_right_are_no_failed_job(
    api_server: ApiServer,
    namespace: str,
    uninstall: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    ended = uninstall("--kubeconfig", str(tmp_path / "gone"))
    assert ended.returncode == 4 and ended.stderr.startswith("error: no kubeconfig: ")
    ended = uninstall("--context", "gone")
    assert ended.returncode == 4 and "has no context gone" in ended.stderr
    token = api_server.service_account_token(namespace, "nobody")
    path = api_server.write_kubeconfig(tmp_path / "config", token=token)
    ended = uninstall("--kubeconfig", str(path))
    assert ended.returncode == 4 and "you may not list deployments in the whole" in ended.stderr
