"""`ddpjob uninstall` takes one operator away, and asks before it takes the wrong one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.tiers import ROOT
from tests.terminal import Terminal, environment

RELEASE = "leaving"
LABELS = {
    "app.kubernetes.io/name": "ddpjob",
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/component": "operator",
}
RULES = yaml.safe_load((ROOT / "charts" / "ddpjob" / "files" / "rules.yaml").read_text())
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {  # path, and whether the operator's namespace or one that it watches has it
    "Deployment": ("/apis/apps/v1/namespaces/{}/deployments", "home"),
    "ServiceAccount": ("/api/v1/namespaces/{}/serviceaccounts", "home"),
    "Role": (RBAC + "/namespaces/{}/roles", "watched"),
    "RoleBinding": (RBAC + "/namespaces/{}/rolebindings", "watched"),
}
ROLES = RBAC + "/clusterroles"


def deployment(*watches: str, account: str = "operator") -> dict[str, Any]:
    """A Deployment like the chart's, which watches these namespaces."""
    options = ["--listen=:8080", *(f"--namespace={name}" for name in watches)]
    container = {"name": "operator", "image": "i", "args": options}
    spec = {"containers": [container], "serviceAccountName": account}
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    selector = {"matchLabels": LABELS}
    return {"spec": {"replicas": 0, "selector": selector, "template": template}}


def objects(home: str) -> dict[str, dict[str, Any]]:
    """What an operator of this namespace consists of, in short."""
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": home}
    group = "rbac.authorization.k8s.io"
    return {
        "Deployment": deployment(f"{home}-jobs"),
        "ServiceAccount": {},
        "Role": {"rules": RULES},
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
    for home in (*homes, f"{homes[0]}-jobs", namespace):
        api_server.request("DELETE", KINDS["Deployment"][0].format(home))
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
            timeout=200,
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

    asked = uninstall("--namespace", first, "--delete-jobs")
    assert asked.returncode == 2 and "--yes: needed, as there is no terminal" in asked.stderr
    assert left(api_server, first) == left(api_server, second) == ALL

    gone = uninstall("--namespace", first, "--delete-jobs", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert left(api_server, first) == set() and left(api_server, second) == ALL
    assert has_shared_role(api_server), "the other one needs it"

    last = uninstall("--namespace", second)
    assert last.returncode == 0 and "1 unfinished DDPJob stays; its pods run on" in last.stdout, (
        last.stderr
    )
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
    (job,) = api_server.request("GET", jobs_of(first))["items"]
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "controller": True}
    owner |= {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    path = CONFIGMAPS.path(f"{first}-jobs")
    api_server.request("POST", path, {"metadata": {**metadata, "ownerReferences": [owner]}})
    strangers = {"name": "stranger", "labels": labels}
    api_server.request("POST", path, {"metadata": strangers})
    ended = uninstall("-n", first, "--delete-jobs", "--timeout", "1", "-y")
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
    words = "Helm manages this release, but helm is not on PATH; nothing was deleted"
    assert ended.stderr.startswith(f"error: {words}\n")
    assert ended.stderr.endswith(f"where it is: {command}{api_server.kubeconfig}\n")
    ended = uninstall("-n", first, "--delete-jobs", "--yes")
    assert ended.returncode == 5 and left(api_server, first) == ALL and words in ended.stderr
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


def put(api_server: ApiServer, namespace: str, name: str, body: dict[str, Any]) -> None:
    """Create a Deployment."""
    metadata = {"name": name, "labels": LABELS}
    path = KINDS["Deployment"][0].format(namespace)
    api_server.request("POST", path, {"metadata": metadata, **body})


def test_without_its_deployment_no_job_is_deleted(
    api_server: ApiServer,
    installed: tuple[str, str],
    uninstall: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    first, second = installed
    api_server.request("DELETE", KINDS["Deployment"][0].format(first) + "/operator")
    ended = uninstall("-n", first, "--delete-jobs", "--yes")
    words = f"error: no operator of release {RELEASE} runs in namespace {first}, so nobody knows"
    assert ended.returncode == 3 and ended.stderr.startswith(words)
    assert "next: leave --delete-jobs out" in ended.stderr and ended.stdout == ""
    assert left(api_server, first) == ALL - {"Deployment"} and left(api_server, second) == ALL
    assert uninstall("-n", first).returncode == 0
    assert left(api_server, first) == {"DDPJob"} and left(api_server, second) == ALL


def test_jobs_that_another_operator_watches_too_stay(
    api_server: ApiServer,
    installed: tuple[str, str],
    uninstall: Callable[..., subprocess.CompletedProcess[str]],
    namespace: str,
) -> None:
    """The first operator watches all namespaces, and the second one that of its own jobs."""
    first, second = installed
    path = KINDS["Deployment"][0].format(first) + "/operator"
    api_server.request("DELETE", path)
    put(api_server, first, "operator", deployment())
    api_server.request("POST", ROLES, {"metadata": {"name": f"{namespace}-all"}, "rules": RULES})
    group = "rbac.authorization.k8s.io"
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": f"{namespace}-all"}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": first}
    binding = {"metadata": {"name": f"{namespace}-all"}, "roleRef": reference}
    bindings = RBAC + "/clusterrolebindings"
    api_server.request("POST", bindings, {**binding, "subjects": [subject]})
    try:
        ended = uninstall("-n", first, "--delete-jobs", "--yes")
    finally:
        for place in (ROLES, bindings):
            api_server.request("DELETE", f"{place}/{namespace}-all")
    assert ended.returncode == 0, ended.stderr
    spared = f"1 DDPJob in namespace {second}-jobs: not deleted, because the operator {RELEASE}"
    assert f"{spared} in {second} watches it too" in ended.stderr
    assert left(api_server, second) == ALL and "DDPJob" not in left(api_server, first)


def test_a_deployment_that_only_looks_like_an_operators_changes_nothing(
    api_server: ApiServer,
    installed: tuple[str, str],
    uninstall: Callable[..., subprocess.CompletedProcess[str]],
    namespace: str,
) -> None:
    """Whoever may create Deployments in one namespace can make these."""
    first, second = installed
    put(api_server, namespace, "all", deployment(account="all"))
    put(api_server, namespace, "operator", deployment(f"{first}-jobs"))
    put(api_server, f"{first}-jobs", "other", deployment(f"{second}-jobs", account="operator"))
    bare = deployment(f"{second}-jobs")
    labels = {"app.kubernetes.io/name": "ddpjob"}
    bare["spec"]["selector"] = {"matchLabels": labels}
    bare["spec"]["template"]["metadata"] = {"labels": labels}
    path = KINDS["Deployment"][0].format(namespace)
    api_server.request("POST", path, {"metadata": {"name": "bare", "labels": labels}, **bare})
    # In the operator's own namespace: with its ServiceAccount, or with its labels alone.
    put(api_server, first, "another", deployment(f"{first}-jobs"))
    put(api_server, first, "mine", deployment(account="mine"))
    ended = uninstall("-n", first, "--delete-jobs", "--yes")
    assert ended.returncode == 0 and "not deleted" not in ended.stderr, ended.stderr
    assert "DDPJob" not in left(api_server, first) and left(api_server, second) == ALL
    last = uninstall("-n", second, "--delete-jobs", "--yes")
    assert last.returncode == 0 and left(api_server, second) == set(), last.stderr
    assert not has_shared_role(api_server), "nobody else needs it"


def test_on_a_terminal_the_jobs_are_listed_and_it_asks(
    api_server: ApiServer, installed: tuple[str, str], tmp_path: Path
) -> None:
    first, _ = installed
    command = ("uninstall", "--release", RELEASE, "-n", first, "--delete-jobs")
    env = environment(api_server.kubeconfig)
    with Terminal(*command, env=env) as terminal:
        terminal.until("delete this job, its pods and their logs? [y/N]:")
        terminal.type("n\n")
        ended = terminal.end()
    assert ended.code == 130 and "nothing was deleted" in ended.out
    assert f", {api_server.url}\n" in ended.out and "\ncontext " in f"\n{ended.out}"
    (job,) = api_server.request("GET", jobs_of(first))["items"]
    assert f"{job['metadata']['name']}  Pending  in namespace {first}-jobs" in ended.out
    assert left(api_server, first) == ALL
    with Terminal(*command, env=env) as terminal:
        terminal.until("[y/N]:")
        # Meanwhile another job takes the name.
        path = f"{jobs_of(first)}/{job['metadata']['name']}"
        api_server.request("DELETE", path)
        api_server.request("POST", jobs_of(first), job_object(job["metadata"]["name"]))
        terminal.type("y\n")
        ended = terminal.end()
    assert ended.code == 0, ended.out
    name = job["metadata"]["name"]
    assert f"DDPJob {first}-jobs/{name} is another one by now, and stays" in ended.out
    assert left(api_server, first) == {"DDPJob"}
