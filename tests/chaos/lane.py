"""A namespace of a real cluster with its operator, behind a proxy of faults."""

import asyncio
import uuid
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ddpjob import names
from ddpjob.cluster import PODS, Listing
from ddpjob.cluster import Resource as Kind
from ddpjob.cluster.kube import KubeCluster
from ddpjob.json_depth import Body
from tests.chaos.proxy import Faults, Proxy
from tests.chaos.rounds import placed
from tests.chaos.source import KINDS, Source
from tests.chaos.workloads import Workload, runs
from tests.cluster.apiserver import ApiError, ApiServer
from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.operator import OperatorProcess
from tests.cluster.podstatus import End
from tests.localplay import Script
from tests.waiting import PATIENCE

READY_SECONDS = 300.0


@dataclass
class Site:
    """What all lanes share: the control plane, its administrator, the kubelet of all pods."""

    server: ApiServer
    client: Client
    cluster: KubeCluster
    kubelet: ScriptedKubelet
    folder: Path


class Operator:
    """The operator's process and its proxy; started again as often as it ends."""

    def __init__(self, lane: "Lane") -> None:
        self.exits: list[str] = []
        """The last words of each time that it ended and nobody had killed it."""
        self._lane, self._killed = lane, False
        self.proxy = Proxy(lane.site.server, kill=self._kill)

    async def start(self) -> None:
        """Start it, and wait until it works."""
        self._process = await asyncio.to_thread(
            OperatorProcess,
            self._lane.site.server,
            self._lane.site.folder,
            *("--namespace", self._lane.namespace),
            url=self.proxy.url,
        )
        self._process.start()
        await asyncio.to_thread(self._process.wait_until_ready, READY_SECONDS)

    @property
    def log(self) -> str:
        return self._process.log.read_text(errors="replace")

    async def keep_running(self) -> None:
        """Start it again whenever it has ended, until cancelled; then it is ended."""
        try:
            while True:
                process = self._process.process
                assert process is not None
                if process.poll() is not None:
                    if not self._killed:
                        self.exits.append(f"exit code {process.returncode}: {self.log[-1500:]}")
                    self._killed = False
                    self._process.start()
                await asyncio.sleep(0.05)
        finally:
            self._process.kill()

    def _kill(self) -> None:
        assert self._process.process is not None
        self._killed = True
        self._process.process.kill()


@dataclass
class Lane:
    """One namespace. As a `Cluster` it ignores which namespace it is asked for: it has but one.

    An asynchronous context manager.
    """

    site: Site
    patience: tuple[float, float] = (PATIENCE, 0.05)
    faults: Faults = field(default_factory=Faults)
    script: Script = runs

    async def __aenter__(self) -> Self:
        self.namespace = f"chaos-{uuid.uuid4().hex[:8]}"
        await asyncio.to_thread(self.site.server.create_namespace, self.namespace)
        self.source = Source(self.site.client, self.namespace, self._see)
        self._groups: defaultdict[str, set[str]] = defaultdict(set)
        self._stack = AsyncExitStack()
        self._failure: BaseException | None = None
        try:
            for resource in KINDS.values():
                self._spawn(self.source.follow(resource))
            self.operator = Operator(self)
            await self._stack.enter_async_context(self.operator.proxy)
            await self.operator.start()
            self._spawn(self.operator.keep_running())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        path = f"/api/v1/namespaces/{self.namespace}"
        with suppress(ApiError):
            await self.site.client.request("DELETE", path)

    def _spawn(self, story: Any) -> None:
        def note(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (failure := task.exception()):
                self._failure = self._failure or failure

        task = asyncio.create_task(story)
        task.add_done_callback(note)
        self._stack.push_async_callback(_cancel, task)

    def check(self) -> None:
        """Raise what went wrong with the harness itself, if anything did."""
        if self._failure is not None:
            raise self._failure

    def begin(self, faults: Faults, workload: Workload) -> None:
        """Another run: its faults, and how its pods end."""
        self.faults, self.script = faults, workload.script
        self.source.changes = []
        self._groups.clear()
        self.operator.proxy.faults = faults
        self.operator.exits.clear()

    def _see(self, type_: str, body: Body) -> None:
        """Let a pod end as the script says, once its group has been whole."""
        is_gone, labels = type_ == "DELETED", body["metadata"].get("labels") or {}
        phase = (body.get("status") or {}).get("phase")
        if is_gone or body["kind"] != "Pod" or names.RANK_LABEL not in labels or phase != "Running":
            return
        env = {v["name"]: v.get("value") for v in body["spec"]["containers"][0]["env"]}
        group = self._groups[env["PET_RDZV_ID"]]
        group.add(body["metadata"]["name"])
        if len(group) < int(env["PET_NNODES"]):
            return
        for pod in self.source.of(PODS):
            if pod["metadata"]["name"] in group:
                attempt, rank, _ = placed(pod, {})
                code = self.script(attempt, rank)
                if code is not None:
                    self._finish(pod["metadata"]["name"], code)

    def _finish(self, name: str, code: int) -> None:
        with suppress(LookupError):  # it was told before, or is being deleted
            self.site.kubelet.finish(self.namespace, name, End(code))

    async def create(self, resource: Kind, namespace: str, body: Any) -> Body:
        return await self.site.cluster.create(resource, self.namespace, body)

    async def get(self, resource: Kind, namespace: str, name: str) -> Body:
        self.check()
        return await self.site.cluster.get(resource, self.namespace, name)

    async def list(self, resource: Kind, *, namespace: str | None) -> Listing:
        return await self.site.cluster.list(resource, namespace=self.namespace)

    async def delete(self, resource: Kind, namespace: str, name: str, *, uid: str) -> Body | None:
        return await self.site.cluster.delete(resource, self.namespace, name, uid=uid)

    async def update(self, resource: Kind, namespace: str, body: Any) -> Body:
        return await self.site.cluster.update(resource, self.namespace, body)

    async def update_status(self, resource: Kind, namespace: str, body: Any) -> Body:
        """Of a pod that ends: it is told so, and its kubelet writes."""
        (container,) = body["status"]["containerStatuses"]
        code = container["state"]["terminated"]["exitCode"]
        self.site.kubelet.finish(self.namespace, body["metadata"]["name"], End(code))
        return dict(body)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
