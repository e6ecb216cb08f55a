"""`ddpjob top` and `ddpjob stacks`: the agents of pods, asked through a real API server."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddpjob import Client
from ddpjob.client import agents, forward
from ddpjob.client.forward import fetch
from ddpjob.errors import Forbidden, NotFound, Unavailable
from tests.api.jobs import Jobs
from tests.api.processes import jobs as jobs  # noqa: PLC0414
from tests.api.processes import script
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client as Requests
from tests.cluster.nodes import fake_nodes
from tests.cluster.rights import account
from tests.cluster.streaming import Kubelet
from tests.terminal import Terminal, ddpjob, environment

# Rank 1 stands in a place of its own.
TRAIN = """
    import json, os, time

    def step():
        wait()

    def wait():
        time.sleep(1000)

    def load():
        time.sleep(1000)

    rank, path = int(os.environ["RANK"]), os.environ["DDPJOB_PROGRESS_FILE"]
    if rank == 0:
        with open(path + ".tmp", "w") as file:
            json.dump({"step": 7, "total_steps": 70, "loss": 0.5, "samples_per_second": 96}, file)
        os.replace(path + ".tmp", path)
    print("in place", flush=True)
    load() if rank == 1 else step()
"""


@pytest.fixture
def env(api_server: ApiServer, namespace: str, tmp_path: Path) -> Mapping[str, str]:
    path = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(path, token=api_server.token, namespace=namespace)
    return environment(path)


async def started(jobs: Jobs, tmp_path: Path) -> None:
    """A job of three nodes, all of which have come to their places."""
    await jobs.create(args=[script(tmp_path, TRAIN)], nnodes=3, warmStart={"enabled": False})
    await jobs.in_state("Running")
    logs = [tmp_path / f"{jobs.namespace}.digits" / "logs" / f"digits-0-{n}.log" for n in range(3)]
    async with asyncio.timeout(200):
        while not all(log.exists() and "in place" in log.read_text() for log in logs):
            await asyncio.sleep(0.1)


@pytest.mark.deep
async def test_the_stacks_of_a_job_by_place(
    jobs: Jobs,
    api_server: ApiServer,
    env: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await started(jobs, tmp_path)
    with Kubelet(api_server, "local"):
        ended = await asyncio.to_thread(ddpjob, "stacks", "digits", env=env)
        assert ended.code == 0, ended.err
        most, odd = ended.out.splitlines()
        assert re.fullmatch(r"2 ranks  \(r0,r2\)  wait \(.*train.py:8\)", most)
        assert re.fullmatch(r"1 rank   \(r1\)     load \(.*train.py:11\)    <- differs", odd)
        assert "ddpjob stacks digits --rank 1 has all of a rank" in ended.err
        ended = await asyncio.to_thread(ddpjob, "stacks", "digits", "--rank", "2", env=env)
        assert ended.code == 0 and ended.out.startswith("--- rank 2 (pid ")
        assert " in step\n" in ended.out and " in wait\n" in ended.out
        ended = await asyncio.to_thread(ddpjob, "stacks", "digits", "-o", "json", env=env)
        groups = json.loads(ended.out)["groups"]
        assert [(group["ranks"], group["differs"]) for group in groups] == [
            ([0, 2], False),
            ([1], True),
        ]
        assert groups[0]["frames"][0]["function"] == "wait"
        ended = await asyncio.to_thread(ddpjob, "stacks", "digits", "--rank", "3", env=env)
        assert ended.code == 3
        assert ended.err == "error: digits has no rank 3; it has ranks 0 to 2\n"
        stacks = await asyncio.to_thread(
            lambda: Client(jobs.namespace, kubeconfig=api_server.kubeconfig).job("digits").stacks()
        )
        assert sorted(stacks) == [0, 1, 2] and " in load\n" in stacks[1]
        monkeypatch.setattr(agents, "MAX_PODS", 1)
        with Client(jobs.namespace, kubeconfig=api_server.kubeconfig) as client:
            job = client.job("digits").body
            ask = partial(agents.ask, client.connection, job, "/stacks")
            first, *others = await asyncio.to_thread(ask)
            assert first.page and [each.problem for each in others] == [agents.NOT_ASKED] * 2
            (last,) = await asyncio.to_thread(ask, node_rank=2)
            assert last.page and last.pod.node_rank == 2


RATE = r"digits-0-0 +local +7 +0 "


async def test_the_progress_of_each_node(
    jobs: Jobs, api_server: ApiServer, env: Mapping[str, str], tmp_path: Path
) -> None:
    await started(jobs, tmp_path)
    with Kubelet(api_server, "local"):
        await jobs.until(lambda job: job["status"].get("progress", {}).get("step") == 7)
        ended = await asyncio.to_thread(ddpjob, "top", "digits", env=env)
        assert (ended.code, ended.err) == (0, "")
        head, loss, names, first, *others = ended.out.splitlines()
        assert head.startswith("digits  Running 3/3  [##..................] 7/70 10%")
        assert loss == "loss 0.5  96 samples/s"
        assert names.split() == ["NODE", "POD", "ON", "STEP", "STEPS/S", "IDLE", "LOSS"]
        assert re.fullmatch(r"0 +digits-0-0 +local +7 +0 +\d+m?\d*s +0\.5", first)
        assert [line.split()[:3] for line in others] == [
            ["1", "digits-0-1", "local"],
            ["2", "digits-0-2", "local"],
        ]
        record = json.loads(
            (await asyncio.to_thread(ddpjob, "top", "-o", "json", "digits", env=env)).out
        )
        assert record["nodes"][0]["step"] == 7 and record["nodes"][0]["samplesPerSecond"] == 96
        assert [node["nodeRank"] for node in record["nodes"]] == [0, 1, 2]
        assert [node["stepsPerSecond"] for node in record["nodes"]] == [0.0, None, None]

        def looked_at() -> str:
            with Terminal("top", "digits", "--interval", "0.5", env=env) as terminal:
                terminal.until("digits-0-2")
                terminal.until("0.5\n")
                deadline = time.monotonic() + 200
                while not re.search(RATE, terminal.text):
                    assert time.monotonic() < deadline, terminal.text
                    time.sleep(0.1)
                terminal.type("\x03")
                ended = terminal.end()
            assert ended.code == 130
            words = "detached: digits runs on; come back with: ddpjob top digits"
            assert ended.out.endswith(f"\n{words}\n")
            return ended.out

        shown = await asyncio.to_thread(looked_at)
        assert shown.count("digits-0-0") > 1 and re.search(RATE, shown)


STEPS = """
    import itertools, json, os, time

    path = os.environ["DDPJOB_PROGRESS_FILE"]
    for step in itertools.count():
        with open(path + ".tmp", "w") as file:
            json.dump({"step": step}, file)
        os.replace(path + ".tmp", path)
        time.sleep(0.1)
"""


async def test_who_looks_once_sees_how_fast_a_node_is(
    jobs: Jobs, api_server: ApiServer, env: Mapping[str, str], tmp_path: Path
) -> None:
    await jobs.create(
        args=[script(tmp_path, STEPS)], nnodes=1, launcher="python", warmStart={"enabled": False}
    )
    await jobs.in_state("Running")
    with Kubelet(api_server, "local"):
        await jobs.until(lambda job: job["status"].get("progress", {}).get("step"))
        rate = 0.0
        async with asyncio.timeout(200):
            while rate == 0.0:  # a busy machine may stand still for a second
                ended = await asyncio.to_thread(ddpjob, "top", "-o", "json", "digits", env=env)
                [node] = json.loads(ended.out)["nodes"]
                rate = node["stepsPerSecond"]
    assert rate > 0.0


@pytest.mark.deep
async def test_a_pod_that_nobody_reaches_is_said_and_the_others_are_shown(
    jobs: Jobs, api_server: ApiServer, env: Mapping[str, str], tmp_path: Path
) -> None:
    await started(jobs, tmp_path)
    pods = {
        pod["metadata"]["name"]: pod["status"]["podIP"] for pod in await jobs.pods_as_they_are()
    }

    def address(pod: str, port: int) -> tuple[str, int]:
        return pods[pod], 9 if pod == "digits-0-1" else port

    with Kubelet(api_server, "local", address=address):
        ended = await asyncio.to_thread(ddpjob, "stacks", "digits", env=env)
        assert ended.code == 0 and "2 ranks  (r0,r2)" in ended.out
        assert "digits-0-1 on local: digits-0-1: error forwarding port 29499" in ended.err
        ended = await asyncio.to_thread(ddpjob, "top", "digits", env=env)
        assert "error forwarding port 29499" in ended.out and "digits-0-2" in ended.out


@pytest.mark.deep
async def test_without_the_right_top_shows_the_status_and_stacks_names_the_right(
    jobs: Jobs, api_server: ApiServer, tmp_path: Path
) -> None:
    await started(jobs, tmp_path)
    look = ["get", "list", "watch"]
    rules = ("ddpjob.dev", "ddpjobs", look), ("", "pods", look)
    token = await asyncio.to_thread(account, api_server, jobs.namespace, "viewer", *rules)
    path = tmp_path / "viewer"
    api_server.write_kubeconfig(path, token=token, namespace=jobs.namespace)
    words = f"you may not get pods/portforward in namespace {jobs.namespace}"
    ended = await asyncio.to_thread(ddpjob, "stacks", "digits", env=environment(path))
    assert ended.code == 4 and f"error: {words}" in ended.err
    assert 'role "edit"' in ended.err
    ended = await asyncio.to_thread(ddpjob, "top", "digits", env=environment(path))
    assert ended.code == 0 and ended.out.startswith("digits  Running 3/3")
    assert f"{words}, so this is the job's status alone" in ended.err


def test_a_finished_job_has_no_stacks(
    api_server: ApiServer, crd: None, namespace: str, env: Mapping[str, str]
) -> None:
    Client(namespace, kubeconfig=api_server.kubeconfig).submit(
        {
            "apiVersion": "ddpjob.dev/v1alpha1",
            "kind": "DDPJob",
            "metadata": {"name": "digits"},
            "spec": {"image": "x", "args": ["x.py"]},
        }
    )
    ended = ddpjob("stacks", "digits", env=env)
    assert ended.code == 3
    assert "error: no rank has answered: digits is Pending, and has no pods" in ended.err
    ended = ddpjob("top", "digits", env=env)
    assert (ended.code, ended.out) == (0, "digits  Pending\n")


@pytest.fixture
async def pod(api_server: ApiServer, client: Requests, namespace: str) -> Any:
    """A pod on a node of ours, which counts as running."""
    async with fake_nodes(client, "local"):
        spec = {"nodeName": "local", "containers": [{"name": "trainer", "image": "x"}]}
        path = f"/api/v1/namespaces/{namespace}/pods"
        await client.request("POST", path, {"metadata": {"name": "one"}, "spec": spec})
        yield "one"


class Speaker:
    """Listens, takes a request, and sends what it is told; then it closes, or not."""

    def __init__(self, *parts: bytes, closes: bool = True) -> None:
        self._parts, self._closes = parts, closes
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._speak, daemon=True).start()

    def _speak(self) -> None:
        with self._socket, closing(self._socket.accept()[0]) as other:
            other.recv(65536)
            for part in self._parts:
                time.sleep(0.01)
                other.sendall(part)
            if not self._closes:
                time.sleep(60)


@pytest.fixture
def answers(
    api_server: ApiServer, pod: str, namespace: str
) -> Iterator[Callable[[Speaker], forward.Page]]:
    """Fetch a page from a pod whose place a speaker has taken."""
    connection = Client(namespace, kubeconfig=api_server.kubeconfig).connection
    speakers: list[Speaker] = []

    def address(name: str, port: int) -> tuple[str, int]:
        return "127.0.0.1", speakers[-1].port

    def ask(speaker: Speaker) -> forward.Page:
        speakers.append(speaker)
        return fetch(connection, namespace, pod, 29499, "/progress")

    with Kubelet(api_server, "local", address=address):
        yield ask


OK = b"HTTP/1.0 200 OK\r\nDate: Tue, 24 Nov 2026 20:00:00 GMT\r\n"


async def test_pages_come_whole(answers: Callable[[Speaker], forward.Page]) -> None:
    async def asked(speaker: Speaker) -> forward.Page:
        return await asyncio.to_thread(answers, speaker)

    whole = OK + b"Content-Length: 3\r\n\r\nabc"
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    page = forward.Page(200, "Tue, 24 Nov 2026 20:00:00 GMT", b"abc")
    assert await asked(Speaker(*pieces)) == page
    assert await asked(Speaker(whole, closes=False)) == page
    assert await asked(Speaker(OK + b"\r\nab", b"c")) == page
    missing = await asked(Speaker(b"HTTP/1.0 404 Not Found\r\n\r\n"))
    assert (missing.status, missing.content) == (404, b"")


async def test_what_a_pod_sends_is_bounded(
    answers: Callable[[Speaker], forward.Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    for speaker, words in (
        (Speaker(OK + b"\r\n", *[bytes(2**16)] * 17), "more than 1048576 bytes"),
        (Speaker(OK + b"Content-Length: 9\r\n\r\nabc", closes=False), "within 2 s"),
        (Speaker(OK + b"Content-Length: 9\r\n\r\nabc"), "has closed the connection"),
        (Speaker(b"hello\r\n\r\n"), "no HTTP"),
        (Speaker(OK + b"Content-Length: %d\r\n\r\nabc" % (2**20 + 1)), "wants to send more than"),
        (Speaker(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20), "chunks"),
        (Speaker(closes=False), "within 2 s"),
    ):
        is_late = words.startswith("within")
        with monkeypatch.context() as patch, pytest.raises(Unavailable, match=words):
            if is_late:
                patch.setattr(forward, "SECONDS", 2.0)
            await asyncio.to_thread(answers, speaker)


async def test_what_the_api_server_refuses_is_an_error_of_ours(
    api_server: ApiServer, pod: str, namespace: str, tmp_path: Path
) -> None:
    connection = Client(namespace, kubeconfig=api_server.kubeconfig).connection
    with pytest.raises(NotFound):
        await asyncio.to_thread(fetch, connection, namespace, "gone", 1, "/")
    with pytest.raises(Unavailable):  # its node has no kubelet
        await asyncio.to_thread(fetch, connection, namespace, pod, 1, "/")
    path = tmp_path / "config"
    token = api_server.service_account_token(namespace, "nobody")
    api_server.write_kubeconfig(path, token=token, namespace=namespace)
    with pytest.raises(Forbidden) as refused:
        await asyncio.to_thread(fetch, Client(kubeconfig=path).connection, namespace, pod, 1, "/")
    assert refused.value.resource == "pods/portforward"
