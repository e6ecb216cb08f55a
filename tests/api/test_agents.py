"""`ddpjob top` and `ddpjob stacks`: the agents of pods, asked through a real API server."""

import asyncio
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpjob import Client
from ddpjob.client import agents
from ddpjob.client.agents import fetch
from ddpjob.errors import Forbidden, NotFound, Unavailable
from tests.api.jobs import Jobs
from tests.api.processes import jobs as jobs  # noqa: PLC0414
from tests.api.processes import script
from tests.builders import job_object
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client as Requests
from tests.cluster.nodes import fake_nodes
from tests.cluster.rights import account
from tests.cluster.streaming import Kubelet
from tests.localplay import until
from tests.terminal import Terminal, ddpjob, environment
from tests.waiting import wait_for

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


async def started(jobs: Jobs, tmp_path: Path) -> None:
    """A job of three nodes, all of which have come to their places."""
    await jobs.create(args=[script(tmp_path, TRAIN)], nnodes=3, warmStart={"enabled": False})
    await jobs.in_state("Running")
    logs = [tmp_path / f"{jobs.namespace}.digits" / "logs" / f"digits-0-{n}.log" for n in range(3)]
    await until(lambda: all(log.exists() and "in place" in log.read_text() for log in logs))


@pytest.mark.deep
async def test_the_stacks_of_a_job_by_place(
    jobs: Jobs,
    api_server: ApiServer,
    env: Mapping[str, str],
    tmp_path: Path,
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


RATE = r"digits-0-0 +local +7 +0 "


@pytest.mark.deep
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
                wait_for(lambda: re.search(RATE, terminal.text), lambda: terminal.text)
                terminal.type("\x03")
                ended = terminal.end()
            assert ended.code == 130
            words = "detached: digits runs on; come back with: ddpjob top digits"
            assert ended.out.endswith(f"\n{words}\n")
            return ended.out

        shown = await asyncio.to_thread(looked_at)
        assert shown.count("digits-0-0") > 1 and re.search(RATE, shown)


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
    Client(namespace, kubeconfig=api_server.kubeconfig).submit(job_object("digits"))
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


async def test_what_answers_nothing_is_an_error_of_ours(
    api_server: ApiServer,
    pod: str,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Client(namespace, kubeconfig=api_server.kubeconfig).connection
    with pytest.raises(NotFound):
        await asyncio.to_thread(fetch, connection, namespace, "gone", 1, "/")
    with pytest.raises(Unavailable):  # its node has no kubelet
        await asyncio.to_thread(fetch, connection, namespace, pod, 1, "/")
    monkeypatch.setattr(agents, "SECONDS", 1.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Kubelet(api_server, "local", address=lambda pod, port: silent.getsockname()),
        pytest.raises(Unavailable, match="one: timed out"),
    ):
        await asyncio.to_thread(fetch, connection, namespace, pod, 1, "/")
    path = tmp_path / "config"
    token = api_server.service_account_token(namespace, "nobody")
    api_server.write_kubeconfig(path, token=token, namespace=namespace)
    with pytest.raises(Forbidden) as refused:
        await asyncio.to_thread(fetch, Client(kubeconfig=path).connection, namespace, pod, 1, "/")
    assert refused.value.resource == "pods/portforward"
