"""What the tests against the real control plane share."""

import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.api.jobs import Jobs
from tests.api.reading import Cluster
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import Played, ScriptedKubelet
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import OperatorProcess
from tests.logproxy import Proxy
from tests.terminal import environment
from tests.warm import forking


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """The commands and operators of a file are forked from one process."""
    with forking():
        yield


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """A namespace of the test's own, with a service account, deleted afterwards without waiting."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    api_server.create_namespace(name)
    yield name
    api_server.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def later() -> Iterator[Callable[..., None]]:
    """Do something in a moment, beside the test.

    The last of a test's fixtures: it ends before they do, once all has been done.
    """
    timers: list[threading.Timer] = []

    def start(act: Callable[[], object], seconds: float = 0.5) -> None:
        timers.append(threading.Timer(seconds, act))
        timers[-1].start()

    yield start
    for timer in timers:
        timer.join()


@pytest.fixture
def cluster(api_server: ApiServer, crd: None, namespace: str) -> Iterator[Cluster]:
    """The test's namespace, in which the test writes jobs and pods itself, as an operator would."""
    made = Cluster(api_server, namespace)
    yield made
    made.close()


@pytest.fixture
def env(api_server: ApiServer, namespace: str, tmp_path: Path) -> Mapping[str, str]:
    """The environment of an administrator whose context has the test's namespace."""
    path = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(path, token=api_server.token, namespace=namespace)
    return environment(path)


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[Proxy]:
    """A server before the API server that answers for the kubelets: their logs."""
    with Proxy(api_server) as proxy:
        yield proxy


@pytest.fixture
def proxied(api_server: ApiServer, proxy: Proxy, namespace: str, tmp_path: Path) -> Path:
    """A kubeconfig of the administrator in the test's namespace, through the proxy."""
    token, path = api_server.token, tmp_path / "proxied"
    return api_server.write_kubeconfig(path, token=token, namespace=namespace, url=proxy.url)


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[Client]:
    """An asynchronous client of the administrator."""
    async with Client(api_server) as client:
        yield client


@pytest.fixture
def jobs(client: Client, namespace: str) -> Jobs:
    """The DDPJobs of the test's namespace."""
    return Jobs(client, namespace)


@pytest.fixture
async def nodes(client: Client) -> AsyncIterator[list[str]]:
    """Names of two nodes without kubelets."""
    async with fake_nodes(client, "node-a", "node-b") as names:
        yield list(names)


@pytest.fixture
def played(client: Client, nodes: list[str]) -> Played:
    """Begins to play the pods of both nodes; its arguments are the kubelet's."""
    return partial(ScriptedKubelet, client, nodes)


@pytest.fixture
def mark(api_server: ApiServer) -> int:
    """The place in the audit log before the test; before its operators too, if asked for first."""
    return api_server.audit.mark()


@pytest.fixture
def operator(api_server: ApiServer, crd: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator as a process, for all namespaces; a module may have one of its own."""
    with OperatorProcess(api_server, tmp_path) as operator:
        operator.wait_until_ready()
        yield operator
    print(operator.log.read_text()[-5000:])  # shown where the test fails
