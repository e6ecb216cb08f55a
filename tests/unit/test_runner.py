"""Pods as processes: real ones, on the embedded cluster."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS, PODS, Resource
from ddpjob.errors import Conflict, NotFound
from ddpjob.json_depth import Body
from ddpjob.local import pod as pod_module
from ddpjob.local.cluster import LocalCluster
from ddpjob.local.kubelet import Runner
from ddpjob.local.network import Loopback

SLEEPER = "sleep 1234 & echo up; wait"  # leaves a child behind when it is killed
# A worker in a session of its own, as torchrun's are, which prints its process id.
ESCAPING = f"""{sys.executable} -c '
import os, time
os.setsid()
print(os.getpid(), flush=True)
time.sleep(1234)
'"""
LABELS = {names.JOB_LABEL: "digits", names.JOB_UID_LABEL: "u", names.ATTEMPT_LABEL: "0"}


@dataclass
class Machine:
    """A cluster, the runner that plays its pods, and what these printed."""

    cluster: LocalCluster
    runner: Runner
    task: asyncio.Task[None]
    lines: list[tuple[str | None, str]]
    directory: Path

    async def run(self, script: str, *, name: str = "p", rank: str = "0", **spec: Any) -> Body:
        container = {"name": "trainer", "image": "i", "command": ["sh", "-c", script]}
        container |= spec.pop("container", {})
        meta = {"name": name, "labels": {**LABELS, names.RANK_LABEL: rank}}
        spec = {"restartPolicy": "Never", "containers": [container], **spec}
        return await self.cluster.create(PODS, "default", {"metadata": meta, "spec": spec})

    async def until(self, is_so: Callable[[Body], bool], name: str = "p") -> Body:
        """The pod as soon as `is_so`, without polling."""
        async with asyncio.timeout(200):
            async for event in self.cluster.watch(PODS, namespace=None, resource_version="0"):
                if event.object["metadata"]["name"] == name and is_so(event.object):
                    return event.object
        raise AssertionError("the watch ended")

    async def line(self, text: str) -> None:
        """Return when a pod has printed `text`."""
        async with asyncio.timeout(200):
            while all(line != text for _, line in self.lines):
                await asyncio.sleep(0.005)

    async def delete(self, pod: Body, *, grace: int | None = None) -> None:
        meta = pod["metadata"]
        delete = self.cluster.delete
        await delete(PODS, "default", meta["name"], uid=meta["uid"], grace_seconds=grace)

    async def idle(self) -> None:
        """Return when no process is left."""
        async with asyncio.timeout(200):
            while children():
                await asyncio.sleep(0.005)

    async def gone(self, name: str = "p") -> None:
        async with asyncio.timeout(200):
            with contextlib.suppress(NotFound):
                while True:
                    await self.cluster.get(PODS, "default", name)
                    await asyncio.sleep(0.005)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with playing(tmp_path) as machine:
        yield machine


@contextlib.asynccontextmanager
async def playing(directory: Path, **options: Any) -> AsyncIterator[Machine]:
    cluster, lines = options.pop("cluster", None) or LocalCluster(), []
    runner = Runner(
        cluster=cluster,
        directory=directory,
        on_line=lambda labels, line: lines.append((labels.get(names.RANK_LABEL), line)),
        **{"shutdown_seconds": 0.2, **options},
    )
    task = asyncio.create_task(runner.run())
    try:
        yield Machine(cluster, runner, task, lines, directory)
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert children() == [], "a process is left"
        if not task.cancelled():
            task.result()


STRANGERS: set[int] = set()  # pids of processes that other fixtures run: a control plane, say


@pytest.fixture(autouse=True)
def strangers() -> None:
    STRANGERS.clear()
    STRANGERS.update(process.pid for process in psutil.Process().children(recursive=True))


def children() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [p for p in found if p.is_running() and p.pid not in STRANGERS]


def is_phase(*phases: str) -> Callable[[Body], bool]:
    return lambda pod: pod["status"]["phase"] in phases


def is_ended(pod: Body) -> bool:
    return is_phase("Succeeded", "Failed")(pod)


def at_home(machine: Machine) -> Body:
    """What makes a pod's HOME the machine's folder."""
    return {"container": {"env": [{"name": "HOME", "value": str(machine.directory)}]}}


def ended(pod: Body) -> Body:
    state: Body = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


def ready(pod: Body) -> str:
    conditions = {c["type"]: c["status"] for c in pod["status"]["conditions"]}
    return str(conditions["Ready"])


async def test_a_pod_runs_and_succeeds(machine: Machine) -> None:
    await machine.run("echo out; echo err >&2")
    running = await machine.until(is_phase("Running"))
    started = running["status"]["containerStatuses"][0]
    assert started["ready"] and "startedAt" in started["state"]["running"]
    assert ready(running) == "True" and running["status"]["podIP"].startswith("127.")
    pod = await machine.until(is_ended)
    assert pod["status"]["phase"] == "Succeeded" and ready(pod) == "False"
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (0, "Completed")
    log = machine.directory / "digits" / "logs" / "p.log"
    assert log.read_text() == "out\nerr\n"
    assert machine.lines == [("0", "out"), ("0", "err")]


async def test_a_failure_carries_the_code_and_the_logs_end(machine: Machine) -> None:
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    await machine.run("echo one; echo two; exit 3", container=policy)
    pod = await machine.until(is_ended)
    assert pod["status"]["phase"] == "Failed"
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (3, "Error")
    assert ended(pod)["message"] == "one\ntwo"


async def test_the_termination_log_is_the_message(machine: Machine) -> None:
    log = {"env": [{"name": "DDPJOB_TERMINATION_LOG", "value": "/dev/termination-log"}]}
    script = 'printf "%5000d" 7 > $DDPJOB_TERMINATION_LOG'
    await machine.run(script, container=log)
    message = ended(await machine.until(is_ended))["message"]
    assert len(message) == 4096 and message.endswith(" 7")


async def test_a_signal_is_told_as_the_kubelet_tells_it(machine: Machine) -> None:
    await machine.run("kill -9 $$$$")  # in a pod $$ stands for one $
    pod = await machine.until(is_ended)
    assert (ended(pod)["exitCode"], ended(pod)["signal"]) == (137, 9)


async def test_a_program_that_is_not_here_fails_at_once(machine: Machine) -> None:
    await machine.run("", container={"command": ["nonesuch"]})
    pod = await machine.until(is_ended)
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (128, "LaunchFailed")
    assert "nonesuch" in ended(pod)["message"]


async def test_a_config_map_that_nobody_will_make_fails_at_once(machine: Machine) -> None:
    volumes = [{"name": "scripts", "configMap": {"name": "own"}}]
    mounts = [{"name": "scripts", "mountPath": "/scripts"}]
    await machine.run("true", volumes=volumes, container={"volumeMounts": mounts})
    message = ended(await machine.until(is_ended))["message"]
    assert message == 'configmap "own" not found: nobody makes one here'


async def test_a_pod_waits_for_its_agent_which_the_operator_makes_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_module, "AGENT_SECONDS", 0.01)
    name = names.agent_config_name("0" * 64)
    asked = asyncio.Event()
    get = machine.cluster.get

    async def watched(resource: Resource, *place: str) -> Body:
        if resource is CONFIGMAPS:
            asked.set()
        return await get(resource, *place)

    monkeypatch.setattr(machine.cluster, "get", watched)
    await machine.run("true", volumes=[{"name": "agent", "configMap": {"name": name}}])
    await asked.wait()
    await machine.cluster.create(CONFIGMAPS, "default", {"metadata": {"name": name}})
    await machine.until(is_phase("Succeeded"))


async def test_what_the_main_process_leaves_behind_dies_with_it(machine: Machine) -> None:
    await machine.run(
        f'{ESCAPING} > "$HOME/pid" & until [ -s "$HOME/pid" ]; do :; done', **at_home(machine)
    )
    await machine.until(is_phase("Succeeded"))
    assert children() == []
    assert not psutil.pid_exists(int((machine.directory / "pid").read_text()))


async def test_deletion_gives_grace_and_reports_before_the_object_goes(machine: Machine) -> None:
    pod = await machine.run("trap 'echo bye; exit 75' TERM; echo up; while :; do sleep 0.01; done")
    await machine.line("up")
    left = await machine.cluster.delete(PODS, "default", "p", uid=pod["metadata"]["uid"])
    assert left is not None
    last = await machine.until(is_ended)
    assert ended(last)["exitCode"] == 75 and ("0", "bye") in machine.lines
    await machine.gone()


async def test_only_the_main_process_is_asked_to_end(machine: Machine) -> None:
    child = "sh -c \"trap 'echo child asked' TERM; echo up; while :; do sleep 0.01; done\" &"
    pod = await machine.run(f"{child} trap 'echo asked; exit 0' TERM; while :; do sleep 0.01; done")
    await machine.line("up")
    await machine.cluster.delete(PODS, "default", "p", uid=pod["metadata"]["uid"])
    await machine.gone()
    assert machine.lines == [("0", "up"), ("0", "asked")]


async def test_who_ignores_the_request_is_killed_after_the_grace(machine: Machine) -> None:
    pod = await machine.run(f"trap '' TERM; {SLEEPER}")
    await machine.line("up")
    uid = pod["metadata"]["uid"]
    await machine.cluster.delete(PODS, "default", "p", uid=uid)
    await machine.cluster.delete(PODS, "default", "p", uid=uid, grace_seconds=1)
    last = await machine.until(is_ended)
    assert ended(last)["signal"] == signal.SIGKILL and children() == []


async def test_a_pod_of_the_same_name_waits_for_the_end_of_the_other(machine: Machine) -> None:
    first = await machine.run("echo first; exec sleep 1234")
    await machine.line("first")
    shim = children()[0]
    shim.suspend()
    try:
        await machine.delete(first, grace=0)
        second = await machine.run("echo second")
        await asyncio.sleep(0.3)
        assert ("0", "second") not in machine.lines
    finally:
        shim.resume()
    ended = await machine.until(is_ended)
    assert ended["metadata"]["uid"] == second["metadata"]["uid"]


async def test_a_write_that_meets_another_is_done_again(tmp_path: Path) -> None:
    class Busy(LocalCluster):
        """Somebody else writes just before each first write of a status."""

        met = 0

        async def update_status(
            self, resource: Resource, namespace: str, body: Mapping[str, Any]
        ) -> Body:
            if body["metadata"].get("labels", {}).get("seen") != body["status"]["phase"]:
                pod = await self.get(PODS, namespace, body["metadata"]["name"])
                pod["metadata"]["labels"]["seen"] = body["status"]["phase"]
                await self.update(PODS, namespace, pod)
                self.met += 1
            return await super().update_status(resource, namespace, body)

    cluster = Busy()
    async with playing(tmp_path, cluster=cluster) as machine:
        await machine.run("true")
        await machine.until(is_phase("Succeeded"))
    assert cluster.met == 2


LEAVES = 'mkdir "$TMPDIR/torchelastic_x"; echo left > "$TMPDIR/torchelastic_x/log"; '


@pytest.fixture
def system_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands in for the system's temporary folder."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


async def test_each_pod_has_a_temporary_folder_that_goes_with_it(
    machine: Machine, system_folder: Path
) -> None:
    for name in ("a", "b"):
        await machine.run(f"{LEAVES}stat -c %a $TMPDIR; echo $TMPDIR; exit 9", name=name)
        await machine.until(is_ended, name)
    (mode, one), (_, two) = ([line for _, line in machine.lines][i : i + 2] for i in (0, 2))
    assert mode == "700" and {Path(one).parent, Path(two).parent} == {system_folder}
    assert one != two and list(system_folder.iterdir()) == []


async def test_a_pod_that_vanishes_is_killed_at_once_and_leaves_no_temporary_folder_either(
    machine: Machine, system_folder: Path
) -> None:
    pod = await machine.run(f"{LEAVES}trap '' TERM; {SLEEPER}", terminationGracePeriodSeconds=600)
    await machine.line("up")
    assert len(list(system_folder.iterdir())) == 1
    await machine.delete(pod)
    await machine.until(lambda pod: "deletionTimestamp" in pod["metadata"])
    await machine.delete(pod, grace=0)
    await machine.idle()
    assert list(system_folder.iterdir()) == []


async def test_a_job_may_name_its_temporary_folder(machine: Machine, system_folder: Path) -> None:
    env = [{"name": "TMPDIR", "value": "/scratch"}]
    await machine.run("echo $TMPDIR", container={"env": env})
    await machine.until(is_ended)
    assert machine.lines == [("0", "/scratch")] and list(system_folder.iterdir()) == []


async def test_the_deadline_ends_a_pod_and_keeps_it(machine: Machine) -> None:
    pod = await machine.run("trap 'exit 75' TERM; echo up; while :; do sleep 0.01; done")
    await machine.line("up")
    async with asyncio.timeout(200):
        while True:
            pod = await machine.cluster.get(PODS, "default", "p")
            pod["spec"]["activeDeadlineSeconds"] = 0
            with contextlib.suppress(Conflict):
                await machine.cluster.update(PODS, "default", pod)
                break
    last = await machine.until(is_ended)
    assert last["status"]["reason"] == "DeadlineExceeded" and ended(last)["exitCode"] == 75


async def test_config_maps_claims_and_addresses_reach_the_process(machine: Machine) -> None:
    config = {"metadata": {"name": "c"}, "data": {"greeting": "hello"}}
    await machine.cluster.create(CONFIGMAPS, "default", config)
    container = {
        "env": [
            {"name": "MASTER_ADDR", "value": "digits-0-0.digits"},
            {"name": "MASTER_PORT", "value": "29500"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "volumeMounts": [
            {"name": "config", "mountPath": "/config"},
            {"name": "claim", "mountPath": "/checkpoints"},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    volumes = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "ckpt"}},
    ]
    script = "cat /config/greeting >> /checkpoints/all; echo $MASTER_ADDR:$MASTER_PORT $IP"
    for rank in "01":
        await machine.run(
            script, name=f"digits-0-{rank}", rank=rank, container=container, volumes=volumes
        )
    zero, one = [await machine.until(is_ended, name=f"digits-0-{rank}") for rank in "01"]
    assert (machine.directory / "digits/volumes/ckpt/all").read_text() == "hellohello"
    told = dict(line.split(" ") for _, line in machine.lines)
    address, port = next(iter(told)).split(":")
    assert len(told) == 1 and address == zero["status"]["podIP"] and port != "29500"
    assert one["status"]["podIP"] != address
    assert {line.split(" ")[1] for _, line in machine.lines} == {address, one["status"]["podIP"]}


async def test_what_is_not_run_here_is_said_in_the_log(machine: Machine) -> None:
    await machine.run("echo main", initContainers=[{"name": "fetch"}])
    await machine.until(is_ended)
    first, second = machine.lines
    assert "init containers" in first[1] and "fetch" in first[1] and second[1] == "main"


async def test_a_pod_of_another_node_is_left_alone(machine: Machine) -> None:
    await machine.run("echo no", name="other", nodeName="elsewhere")
    await machine.run("echo yes")
    await machine.until(is_ended)
    assert machine.lines == [("0", "yes")]


async def test_nothing_is_lost_when_history_or_streams_end(tmp_path: Path) -> None:
    async with playing(tmp_path, cluster=LocalCluster(history=1)) as machine:
        for number in range(5):
            await machine.run(f"echo {number}", name=f"p{number}")
            machine.cluster.end_watches()
        await machine.line("4")
        async with asyncio.timeout(200):
            while True:
                pods = (await machine.cluster.list(PODS, namespace=None)).items
                if all(map(is_phase("Succeeded"), pods)):
                    break
                await asyncio.sleep(0.005)
    assert sorted(line for _, line in machine.lines) == list("01234")


async def test_cancelled_it_leaves_no_process(tmp_path: Path) -> None:
    async with playing(tmp_path) as machine:
        await machine.run(f"trap '' TERM; {SLEEPER}", name="stubborn")
        await machine.line("up")


async def test_on_one_address_the_agents_port_is_told(tmp_path: Path) -> None:
    async with playing(tmp_path, loopback=Loopback(many=False)) as machine:
        variables = [{"name": "DDPJOB_AGENT_PORT", "value": str(names.AGENT_PORT)}]
        await machine.run("echo $DDPJOB_AGENT_PORT", container={"env": variables})
        pod = await machine.until(is_ended)
    told = pod["metadata"]["annotations"][names.AGENT_PORT_ANNOTATION]
    assert machine.lines == [("0", told)] and told != str(names.AGENT_PORT)
    assert pod["status"]["podIP"] == "127.0.0.1"


RUNNER = f"""
import asyncio, sys
from pathlib import Path
from ddpjob.cluster import PODS
from ddpjob.local.cluster import LocalCluster
from ddpjob.local.kubelet import Runner

async def main():
    cluster = LocalCluster()
    meta = {{"name": "p", "labels": {LABELS | {names.RANK_LABEL: "0"}}}}
    spec = {{"containers": [{{"name": "trainer", "command": ["sh", "-c", sys.argv[2]]}}]}}
    await cluster.create(PODS, "default", {{"metadata": meta, "spec": spec}})
    tell = lambda labels, line: print(line, flush=True)
    await Runner(cluster=cluster, directory=Path(sys.argv[1]), on_line=tell).run()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
@pytest.mark.parametrize("victim", ["runner", "main process"])
async def test_no_process_outlives_a_kill_of_what_started_it(tmp_path: Path, victim: str) -> None:
    arguments = ["-c", RUNNER, str(tmp_path), f"{ESCAPING} & wait"]
    runner = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert runner.stdout
    async with asyncio.timeout(200):
        worker = psutil.Process(int(await runner.stdout.readline()))
        main = worker.parent()
        assert main
        os.kill(runner.pid if victim == "runner" else main.pid, signal.SIGKILL)
        while worker.is_running() or main.is_running():
            await asyncio.sleep(0.005)
        if victim != "runner":
            runner.terminate()
        await runner.communicate()
