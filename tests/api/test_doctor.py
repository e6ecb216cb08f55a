"""`ddpjob doctor` against real API servers: one with all that is needed, and one without."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ddpjob import __version__
from ddpjob.client import doctor
from ddpjob.client.doctor import Level
from ddpjob.cluster.connection import Connection
from tests.api.reading import Cluster
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import Client
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import installed_objects
from tests.cluster.rights import account
from tests.terminal import Terminal, ddpjob, environment
from tests.waiting import wait_for


def kubeconfig(cluster: Cluster, folder: Path, token: str = "") -> Path:
    token = token or cluster.server.token
    path = folder / "kubeconfig"
    return cluster.server.write_kubeconfig(path, token=token, namespace=cluster.namespace)


NAMESPACE = "ddpjob-system"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/ddpjob-operator"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/ddpjob-operator"


class Installed:
    """The operator's objects, whose pods run nowhere: a test says that they are ready.

    No scheduler binds them either: a node that goes would take the ready ones with it.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server, found = server, installed_objects()
        for deployment in (each for each in found if each["kind"] == "Deployment"):
            deployment["spec"]["template"]["spec"]["nodeSelector"] = {"runs": "nowhere"}
        server.kubectl("apply", "-f", "-", input=listing(found))

    def change(self, **changes: Any) -> None:
        """Change the Deployment."""
        kind = "strategic-merge-patch+json"
        self._server.request("PATCH", DEPLOYMENT, changes, kind=kind)

    def lead(self) -> None:
        """Say that one of them holds the Lease."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": "ddpjob-operator-x_1", "renewTime": now}
        self._server.request("PATCH", LEASE, {"spec": spec}, kind="merge-patch+json")

    def ready(self) -> None:
        """Say of its pods that they are ready, until the Deployment has the newest alone."""
        wait_for(self._is_ready)

    def _is_ready(self) -> bool:
        selector = "labelSelector=app.kubernetes.io/component=operator"
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        for pod in self._server.request("GET", f"{pods}?{selector}")["items"]:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            path = f"{pods}/{pod['metadata']['name']}/status"
            with suppress(ApiError):  # it is being replaced
                self._server.request("PATCH", path, {"status": status}, kind="merge-patch+json")
        found = self._server.request("GET", DEPLOYMENT)
        status, generation = found.get("status", {}), found["metadata"]["generation"]
        counts = (status.get("observedGeneration"), status.get("updatedReplicas"))
        all_new = counts == (generation, 2) and status.get("replicas") == 2
        return all_new and status.get("readyReplicas") == 2


@pytest.fixture
def installed(api_server: ApiServer) -> Iterator[Installed]:
    yield Installed(api_server)
    api_server.request("DELETE", DEPLOYMENT, {"propagationPolicy": "Background"})
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for pod in api_server.request("GET", pods)["items"]:  # no kubelet ends those on a node
        path = f"{pods}/{pod['metadata']['name']}"
        with suppress(ApiError):  # one on no node is gone by now
            api_server.request("DELETE", path, {"gracePeriodSeconds": 0})


async def test_all_is_in_order(
    cluster: Cluster, env: Mapping[str, str], installed: Installed, client: Client
) -> None:
    installed.ready()
    async with fake_nodes(client, "gpu-1", "gpu-2", capacity={"nvidia.com/gpu": "8"}):
        container = {"name": "x", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 3}}}
        spec = {"nodeName": "gpu-1", "containers": [container]}
        pod = {"metadata": {"name": "other"}, "spec": spec}
        await client.request("POST", f"/api/v1/namespaces/{cluster.namespace}/pods", pod)
        ended = ddpjob("doctor", env=env)
        assert (ended.code, ended.err) == (0, ""), ended.out
        server, api, operator, rights, gpus = ended.out.splitlines()
        assert server.startswith("ok    API server 1.34.")
        assert server.endswith(f'context "tests", namespace {cluster.namespace}, you: admin')
        assert api == "ok    API ddpjobs.ddpjob.dev v1alpha1"
        assert operator == f"ok    operator {__version__} in ddpjob-system ready (2 of 2)"
        assert rights.startswith("ok    you may: create, get, list, watch, patch, delete ddpjobs; ")
        assert "use pods/portforward" in rights
        assert gpus == "ok    13 of 16 nvidia.com/gpu free"
        ended = ddpjob("doctor", "--admin", env=env)
        assert ended.code == 5 and "FAIL  no operator leads: nobody has the lease" in ended.out
        installed.lead()
        with Terminal("doctor", "--admin", env=env, columns=120) as terminal:
            shown = terminal.end()
        assert shown.code == 0, shown.out
        assert "ok    leader: ddpjob-operator-x_1" in shown.out
        assert f"ok    the definition of DDPJob is that of {__version__}" in shown.out
        assert 'ok    the roles "edit" and "view" include DDPJobs' in shown.out
        assert "ok    who may not create pods may not create DDPJobs either" in shown.out
    assert not cluster.server.request("GET", cluster.jobs)["items"]
    record = json.loads(ddpjob("doctor", "-o", "json", env=env).out)
    assert record["ok"] is True
    assert [each["level"] for each in record["checks"]] == ["ok"] * 5
    assert set(record["checks"][0]) == {"part", "level", "text", "next"}


def test_an_operator_that_is_not_ready_or_elsewhere_fails(
    cluster: Cluster, env: Mapping[str, str], installed: Installed
) -> None:
    ended = ddpjob("doctor", env=env)
    words = f"FAIL  operator {__version__} in ddpjob-system is not ready\n      next: kubectl -n"
    assert ended.code == 3 and words in ended.out
    installed.change(metadata={"labels": {"app.kubernetes.io/version": "0.0.9"}})
    installed.ready()
    ended = ddpjob("doctor", env=env)
    assert ended.code == 0
    assert (
        f"warn  operator 0.0.9 in ddpjob-system ready (2 of 2); this ddpjob is {__version__}"
        in ended.out
    )
    container = {"name": "operator", "args": ["--namespace=other"]}
    installed.change(spec={"template": {"spec": {"containers": [container]}}})
    ended = ddpjob("doctor", env=env)
    words = f"no operator serves namespace {cluster.namespace}; that in ddpjob-system serves other"
    assert ended.code == 3 and f"FAIL  {words}" in ended.out


def test_a_user_without_rights_learns_each_one(cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.server.service_account_token(cluster.namespace, "nobody")
    path = kubeconfig(cluster, tmp_path, token)
    ended = ddpjob("doctor", env=environment(path))
    assert ended.code == 4
    lines = ended.out.splitlines()
    for right in ("create, get, list, watch, patch, delete ddpjobs", "get pods/log", "list events"):
        at = lines.index(f"FAIL  you may not {right} in namespace {cluster.namespace}")
        assert lines[at + 1].startswith("      next: for ") and 'role "edit"' in lines[at + 1]
    assert f"warn  you may not use pods/portforward in namespace {cluster.namespace}" in lines
    assert "?     free GPUs: you may not list nodes in the whole cluster" in lines
    assert "?     operator: you may not list deployments, and no job shows its work" in lines


def test_a_job_shows_whether_an_operator_works(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, at = ("ddpjob.dev", "ddpjobs", ["*"]), (cluster.server, cluster.namespace)
    token = account(*at, "user", rule, cluster_roles=["edit"])
    path = kubeconfig(cluster, tmp_path, token)
    cluster.job("waits")
    ended = ddpjob("doctor", env=environment(path))
    assert ended.code == 0, ended.out  # one namespace's edit is enough for all commands
    assert "?     operator: you may not list deployments" in ended.out
    monkeypatch.setattr(doctor, "TAKEN_SECONDS", 0.0)
    connection = Connection(kubeconfig=path)
    found = [check for check in doctor.checks(connection) if check.level is Level.FAIL]
    assert [check.part for check in found] == ["operator"]
    assert found[0].text.startswith("no operator has taken job waits for ")
    cluster.running("runs")
    ended = ddpjob("doctor", env=environment(path))
    assert ended.code == 0 and "ok    an operator has taken job runs" in ended.out


def test_the_charts_edit_role_alone_lacks_rights_and_nothing_else(
    cluster: Cluster, tmp_path: Path
) -> None:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    found = installed_objects()
    roles = [o for o in found if o["metadata"]["name"] in ("ddpjob-edit", "ddpjob-view")]
    policy = [o for o in found if o["kind"] in kinds]
    assert len(roles) == len(policy) == 2
    server = cluster.server
    server.kubectl("apply", "-f", "-", input=listing(roles))
    token = account(server, cluster.namespace, "user", cluster_roles=["ddpjob-edit"])
    path = kubeconfig(cluster, tmp_path, token)
    server.kubectl("delete", "--ignore-not-found", "-f", "-", input=listing(policy))
    until(path, is_accepted=True)
    ended = ddpjob("doctor", env=environment(path))
    assert ended.code == 4 and "you may not create, get, patch configmaps" in ended.out
    assert "you may not create pods" not in ended.out, "without the policy no job needs it"
    server.kubectl("apply", "-f", "-", input=listing(policy))
    until(path, is_accepted=False)
    ended = ddpjob("doctor", "--admin", env=environment(path))
    server.kubectl("delete", "-f", "-", input=listing(policy))
    lines = ended.out.splitlines()
    assert ended.code == 4 and lines[1] == "ok    API ddpjobs.ddpjob.dev v1alpha1"
    at = lines.index(f"FAIL  you may not create pods in namespace {cluster.namespace}")
    words = "for submit (the chart's admission policy asks for it)"
    assert lines[at + 1] == f'      next: {words}: ask for the role "edit" there'
    assert "ok    you may: create, get, list, watch, patch, delete ddpjobs" in lines
    failing = [line for line in lines if line.startswith("FAIL")]
    assert all(line.startswith("FAIL  you may not ") for line in failing)
    hidden = [line for line in lines if line.startswith("?")]
    assert len(hidden) == 5 and all("you may not " in line for line in hidden)


def listing(items: Sequence[Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def until(path: Path, *, is_accepted: bool) -> None:
    """Return once the API server accepts a job, or no longer: it takes up a policy later."""
    connection = Connection(kubeconfig=path)
    wait_for(lambda: (doctor._refusal(connection) is None) == is_accepted)


def test_without_a_login_nothing_else_is_asked(tmp_path: Path) -> None:
    ended = ddpjob("doctor", env=environment(tmp_path / "gone"))
    assert ended.code == 4 and ended.out.startswith("FAIL  no kubeconfig: ")
    assert len(ended.out.splitlines()) == 2 and "      next: " in ended.out
