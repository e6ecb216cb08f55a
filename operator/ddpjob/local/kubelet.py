"""Follows the pods of this node and gives each a task."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ddpjob.cluster import PODS, Cluster, WatchEvent
from ddpjob.errors import Expired, Unavailable
from ddpjob.json_depth import Body
from ddpjob.local.gpus import Share
from ddpjob.local.network import Loopback
from ddpjob.local.pod import Node, OnLine, PodRun

# The pause between two watches, for a server that ends them at once.
WATCH_AGAIN_SECONDS = 0.05


class Runner:
    """The kubelet of `node_name`, on either implementation of `cluster`.

    `directory` receives a folder for each job: logs, volumes, the pods' own files. `python` stands
    in for `python3` and `python` in commands. `on_line` gets a pod's labels and each line that it
    prints. `namespace` limits the runner to one. Cancelled, it gives processes `shutdown_seconds`
    to end after SIGTERM and kills the rest; `kill` takes that time away. `shares` are the GPUs of
    the nodes of the one job that is run, by their ranks; without them no pod sees a GPU. `code` is
    the folder that jobs with `spec.code` use as it is; without it their archives are unpacked.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        directory: Path,
        node_name: str = "local",
        namespace: str | None = None,
        python: str = sys.executable,
        on_line: OnLine = lambda labels, line: None,
        environment: Mapping[str, str] = os.environ,
        cwd: Path | None = None,
        loopback: Loopback | None = None,
        shares: Sequence[Share] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        shutdown_seconds: float = 5.0,
        code: Path | None = None,
    ) -> None:
        self._namespace = namespace
        self._node = Node(
            cluster=cluster,
            name=node_name,
            directory=directory,
            python=python,
            cwd=cwd or Path.cwd(),
            inherited=environment,
            loopback=loopback or Loopback(),
            shares=shares,
            on_line=on_line,
            now=now,
            shutdown_seconds=shutdown_seconds,
            code=code.absolute() if code else None,
        )
        self._pods: dict[str, tuple[PodRun, asyncio.Task[None]]] = {}  # by uid

    async def run(self) -> None:
        """Run pods until cancelled, and return when all their processes have ended."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    await self._follow(tasks)
                except Expired:
                    continue  # history is too short: list again
                except Unavailable as error:
                    await asyncio.sleep(error.retry_after or 1.0)

    def kill(self) -> None:
        """End all processes now."""
        for run, _ in self._pods.values():
            run.kill()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        cluster = self._node.cluster
        listing = await cluster.list(PODS, namespace=self._namespace)
        listed = {pod["metadata"]["uid"] for pod in listing.items}
        for uid in self._pods.keys() - listed:
            self._forget(uid)
        for pod in listing.items:
            self._see(pod, tasks)
        version = listing.resource_version
        while True:
            async for event in cluster.watch(
                PODS, namespace=self._namespace, resource_version=version
            ):
                version = event.object["metadata"]["resourceVersion"]
                self._apply(event, tasks)
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    def _apply(self, event: WatchEvent, tasks: asyncio.TaskGroup) -> None:
        if event.type == "DELETED":
            self._forget(event.object["metadata"]["uid"])
        elif event.type != "BOOKMARK":
            self._see(event.object, tasks)

    def _see(self, pod: Body, tasks: asyncio.TaskGroup) -> None:
        if pod["spec"].get("nodeName") != self._node.name:
            return
        uid = pod["metadata"]["uid"]
        if uid in self._pods:
            self._pods[uid][0].view.see(pod)
            return
        run = PodRun(self._node, pod)
        before = {
            task for other, task in self._pods.values() if other.folders.own == run.folders.own
        }
        # Kept, done or not, until the API forgets the pod: a late event must not start it again.
        self._pods[uid] = run, tasks.create_task(run.live(before))

    def _forget(self, uid: str) -> None:
        if uid in self._pods:
            run, task = self._pods[uid]
            run.view.lose()
            task.add_done_callback(lambda _: self._pods.pop(uid, None))
