"""The control plane that the api tests rely on is a real one, and leaves nothing behind."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpjob.cluster import SERVICES
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import KubeCluster
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.nodes import fake_nodes, set_node_ready
from tests.cluster.podstatus import End, Life
from tests.cluster.tiers import ROOT

Pod = dict[str, Any]
Giving = AsyncIterator[Any]


def make_pod(name: str, **spec: Any) -> Pod:
    container = {"name": "main", "image": "nothing"}
    return {
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def once_allowed(request: Callable[[], Any]) -> Any:
    """The answer, once the authorizer has heard of a right that was just given."""
    deadline = time.monotonic() + 200
    while True:
        try:
            return request()
        except ApiError as error:
            if error.code != 403 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


async def wait_for_pod(client: Client, path: str, is_so: Callable[[Pod], bool]) -> Pod:
    async with asyncio.timeout(200):
        while not is_so(pod := await client.request("GET", path)):
            await asyncio.sleep(0.02)
    return pod


async def wait_for_phase(client: Client, path: str, phase: str) -> Pod:
    return await wait_for_pod(client, path, lambda pod: bool(pod["status"]["phase"] == phase))


@pytest.fixture
async def nodes(client: Client) -> AsyncIterator[list[str]]:
    async with fake_nodes(client, "alpha", "beta") as names:
        yield list(names)


def test_a_service_account_may_do_what_its_role_says_and_no_more(
    api_server: ApiServer, namespace: str
) -> None:
    token = api_server.service_account_token(namespace, "reader")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(ApiError, match="403"):
        api_server.request("GET", pods, token=token)
    api_server.kubectl("create", "role", "read", "--verb=list", "--resource=pods", "-n", namespace)
    account = f"--serviceaccount={namespace}:reader"
    api_server.kubectl("create", "rolebinding", "read", "--role=read", account, "-n", namespace)
    assert once_allowed(lambda: api_server.request("GET", pods, token=token))["items"] == []
    with pytest.raises(ApiError, match="403"):
        api_server.request("POST", pods, make_pod("a"), token=token)


def test_an_owner_reference_that_blocks_deletion_needs_the_right_to_finalizers(
    api_server: ApiServer, namespace: str
) -> None:
    token = api_server.service_account_token(namespace, "maker")
    may = ("--verb=create", "--resource=pods")
    api_server.kubectl("create", "role", "make", *may, "-n", namespace)
    account = f"--serviceaccount={namespace}:maker"
    api_server.kubectl("create", "rolebinding", "make", "--role=make", account, "-n", namespace)
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = api_server.request("POST", maps, {"metadata": {"name": "owner"}})
    pod = make_pod("owned")
    pod["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
    ]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    once_allowed(lambda: api_server.request("POST", pods, make_pod("free"), token=token))
    with pytest.raises(ApiError, match="cannot set blockOwnerDeletion"):
        api_server.request("POST", pods, pod, token=token)


def test_a_restricted_namespace_refuses_a_pod_that_could_run_as_root(api_server: ApiServer) -> None:
    name = f"restricted-{os.getpid()}"
    api_server.create_namespace(name, labels={"pod-security.kubernetes.io/enforce": "restricted"})
    with pytest.raises(ApiError, match="violates PodSecurity"):
        api_server.request("POST", f"/api/v1/namespaces/{name}/pods", make_pod("root"))
    api_server.request("DELETE", f"/api/v1/namespaces/{name}")


def test_the_garbage_collector_deletes_what_a_deleted_object_owned(
    api_server: ApiServer, namespace: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = api_server.request("POST", maps, {"metadata": {"name": "owner"}})
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    owned = {"metadata": {"name": "owned", "ownerReferences": [reference]}}
    api_server.request("POST", maps, owned)
    api_server.request("DELETE", f"{maps}/owner")
    deadline = time.monotonic() + 200
    while api_server.exists(f"{maps}/owned"):
        assert time.monotonic() < deadline, "the owned object is still there"
        time.sleep(0.05)


def test_the_audit_log_tells_who_wrote_what_in_which_order(
    api_server: ApiServer, namespace: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    api_server.request("POST", maps, {"metadata": {"name": "before"}})
    mark = api_server.audit.mark()
    api_server.request("POST", maps, {"metadata": {"name": "a"}, "data": {"key": "value"}})
    api_server.request("GET", f"{maps}/a")
    with pytest.raises(ApiError, match="409"):
        api_server.request("POST", maps, {"metadata": {"name": "a"}})
    api_server.request("DELETE", f"{maps}/a")
    seen = api_server.audit.writes(mark, user="admin", namespace=namespace)
    assert [(entry.verb, entry.resource, entry.name, entry.code) for entry in seen] == [
        ("create", "configmaps", "a", 201),
        ("create", "configmaps", "a", 409),
        ("delete", "configmaps", "a", 200),
    ]
    assert seen[0].request["data"] == {"key": "value"}
    assert seen[0].response["metadata"]["uid"]


def test_a_kind_can_be_used_as_soon_as_its_definition_is_installed(
    api_server: ApiServer, tmp_path: Path
) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.harness.test"},
        "spec": {
            "group": "harness.test",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }
    path = tmp_path / "crd.json"
    path.write_text(json.dumps(definition))
    api_server.install_crd(path)
    gadget = {"apiVersion": "harness.test/v1", "kind": "Gadget", "metadata": {"name": "one"}}
    api_server.kubectl("create", "-f", "-", input=json.dumps(gadget))
    assert "gadget" in api_server.kubectl("explain", "gadgets").lower()


async def test_the_scheduler_binds_pods_and_the_kubelet_plays_them_to_their_end(
    client: Client, namespace: str, nodes: list[str]
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    ends = {"good": End(message="fine"), "bad": End(exit_code=7, message="broke")}

    def script(pod: Pod) -> Life:
        return Life(run_seconds=0.1, end=ends[pod["metadata"]["name"]])

    async with ScriptedKubelet(client, nodes, script):
        for name in ends:
            await client.request("POST", pods, make_pod(name))
        for name, phase in (("good", "Succeeded"), ("bad", "Failed")):
            pod = await wait_for_phase(client, f"{pods}/{name}", phase)
            ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
            assert pod["spec"]["nodeName"] in nodes
            assert (ended["exitCode"], ended["message"]) == (
                ends[name].exit_code,
                ends[name].message,
            )


async def test_a_deleted_pod_stays_for_as_long_as_it_takes_to_stop(
    client: Client, api_server: ApiServer, namespace: str, nodes: list[str]
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/slow"
    async with ScriptedKubelet(client, nodes, lambda pod: Life(stop_seconds=1)):
        await client.request("POST", path.removesuffix("/slow"), make_pod("slow"))
        await wait_for_phase(client, path, "Running")
        mark = api_server.audit.mark()
        await client.request("DELETE", path)
        assert "deletionTimestamp" in (await client.request("GET", path))["metadata"]
        async with asyncio.timeout(200):
            while api_server.exists(path):
                await asyncio.sleep(0.02)
    writes = api_server.audit.writes(mark, namespace=namespace)
    assert [(entry.verb, entry.resource) for entry in writes] == [
        ("delete", "pods"),
        ("patch", "pods/status"),
        ("delete", "pods"),
    ]
    ended = writes[1].response["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 143


async def test_a_deadline_ends_a_pod_with_its_grace_and_its_own_exit_code(
    client: Client, namespace: str, nodes: list[str]
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/late"
    async with ScriptedKubelet(client, nodes, lambda pod: Life(stop_end=End(exit_code=75))):
        await client.request("POST", path.removesuffix("/late"), make_pod("late"))
        await wait_for_phase(client, path, "Running")
        patch = {"spec": {"activeDeadlineSeconds": 1}}
        kind = "application/merge-patch+json"
        await client.request("PATCH", path, patch, content_type=kind)
        pod = await wait_for_phase(client, path, "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 75


async def test_the_pods_of_a_lost_node_are_condemned_but_stay(
    client: Client, namespace: str, nodes: list[str]
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/lost"
    soon = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 1}
    here = {"kubernetes.io/hostname": nodes[0]}
    async with ScriptedKubelet(client, nodes) as kubelet:
        pod = make_pod("lost", tolerations=[{**soon, "operator": "Exists"}], nodeSelector=here)
        await client.request("POST", path.removesuffix("/lost"), pod)
        await wait_for_phase(client, path, "Running")
        kubelet.mute(nodes[0])
        await set_node_ready(client, nodes[0], ready=False)
        lost = await wait_for_pod(client, path, lambda pod: "deletionTimestamp" in pod["metadata"])
        conditions = {found["type"]: found for found in lost["status"]["conditions"]}
        assert lost["status"]["phase"] == "Running"
        assert conditions["Ready"]["status"] == "False"
        assert conditions["DisruptionTarget"]["reason"] == "DeletionByTaintManager"
        kubelet.unmute(nodes[0])
        with pytest.raises(ApiError, match="404"):
            await wait_for_pod(client, path, lambda pod: False)


@pytest.mark.deep
async def test_data_and_the_kubelet_survive_a_restart_of_the_api_server(
    client: Client, api_server: ApiServer, namespace: str, nodes: list[str]
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/stayer"
    async with ScriptedKubelet(client, nodes) as kubelet:
        await client.request("POST", path.removesuffix("/stayer"), make_pod("stayer"))
        await wait_for_phase(client, path, "Running")
        await asyncio.to_thread(api_server.restart_apiserver)
        kubelet.finish(namespace, "stayer")
        await wait_for_phase(client, path, "Succeeded")


@asynccontextmanager
async def watch_of_the_tests(server: ApiServer) -> AsyncIterator[Giving]:
    async with Client(server) as client:
        yield client.watch("/api/v1/services", "0")


@asynccontextmanager
async def watch_of_the_operator(server: ApiServer) -> AsyncIterator[Giving]:
    kube = KubeCluster(Credentials(server.url, ca_file=str(server.ca_file), token=server.token))
    yield kube.watch(SERVICES, namespace=None, resource_version="0")
    await kube.close()


@asynccontextmanager
async def requests_of_the_tests(server: ApiServer) -> AsyncIterator[Giving]:
    async def answers() -> Giving:
        while True:
            yield await client.request("GET", "/api/v1/services")

    async with Client(server) as client:
        yield answers()


@pytest.mark.parametrize(
    "giving", [watch_of_the_tests, watch_of_the_operator, requests_of_the_tests]
)
def test_what_is_given_up_leaves_no_connection_open(
    api_server: ApiServer, giving: Callable[[ApiServer], AbstractAsyncContextManager[Giving]]
) -> None:
    server = psutil.Process(api_server.components["kube-apiserver"].pid)

    async def look() -> None:
        async with giving(api_server) as given:
            following = asyncio.create_task(follow(given))
            await asyncio.sleep(0.2)
            server.suspend()  # so that it answers no goodbye in time
            await asyncio.sleep(0.2)
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def follow(given: Giving) -> None:
        async for _ in given:
            pass

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            asyncio.run(look())
        finally:
            server.resume()
        gc.collect()
    assert [str(warning.message) for warning in told] == []


@pytest.mark.usefixtures("api_server")  # skips where there is none
def test_nothing_is_left_when_the_tests_are_killed(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.cluster.apiserver import ApiServer
from tests.cluster.operator import OperatorProcess
from benchmarks.player import playing
import time
with (
    ApiServer() as server,
    OperatorProcess(server, Path({str(tmp_path)!r})) as operator,
    playing(server) as played,
):
    started = *server.components.values(), operator.process, played.process
    print(server.folder, *(one.pid for one in started), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        folder, *pids = tests.stdout.readline().split()
        assert len(pids) == 6 and all(psutil.pid_exists(int(pid)) for pid in pids)
        tests.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 200
    while Path(folder).exists() or any(psutil.pid_exists(int(pid)) for pid in pids):
        assert time.monotonic() < deadline, f"left: {folder} or one of {pids}"
        time.sleep(0.05)


@pytest.mark.parametrize(("require", "outcome"), [("", "1 skipped"), ("api", "1 error")])
def test_a_machine_without_the_programs_skips_with_a_remedy_or_fails_if_required(
    tmp_path: Path, require: str, outcome: str
) -> None:
    test = "tests/api/test_harness.py::test_the_audit_log_tells_who_wrote_what_in_which_order"
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        cwd=ROOT,
        env={**os.environ, "KUBEBUILDER_ASSETS": str(tmp_path), "DDPJOB_REQUIRE": require},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert outcome in ended.stdout.splitlines()[-1], ended.stdout
    assert f"KUBEBUILDER_ASSETS={tmp_path} has no etcd" in ended.stdout
    assert "or unset it and have Go" in ended.stdout
    assert ended.returncode == (1 if require else 0)
