"""Follows the pods of this node and gives each a task."""

import asyncio
from dataclasses import dataclass, field

from ddpjob.cluster import PODS
from ddpjob.errors import Expired, Unavailable
from ddpjob.json_depth import Body
from ddpjob.local.pod import Node, PodRun

# The pause between two watches, for a server that ends them at once.
WATCH_AGAIN_SECONDS = 0.05


@dataclass(eq=False, kw_only=True)
class Runner(Node):
    """The kubelet of a node, on either implementation of `cluster`."""

    namespace: str | None = None
    """The only one whose pods are run."""
    _pods: dict[str, tuple[PodRun, asyncio.Task[None]]] = field(default_factory=dict, init=False)
    """By uid."""

    async def run(self) -> None:
        """Run pods until cancelled, and return when all their processes have ended."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    await self._follow(tasks)
                except (Expired, Unavailable):  # what has been missed is in a list
                    await asyncio.sleep(WATCH_AGAIN_SECONDS)

    def kill(self) -> None:
        """End all processes now."""
        for run, _ in self._pods.values():
            run.kill()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        cluster = self.cluster
        listing = await cluster.list(PODS, namespace=self.namespace)
        listed = {pod["metadata"]["uid"] for pod in listing.items}
        for uid in self._pods.keys() - listed:
            self._forget(uid)
        for pod in listing.items:
            self._see(pod, tasks)
        version = listing.resource_version
        while True:
            async for event in cluster.watch(
                PODS, namespace=self.namespace, resource_version=version
            ):
                version = event.object["metadata"]["resourceVersion"]
                if event.type == "DELETED":
                    self._forget(event.object["metadata"]["uid"])
                elif event.type != "BOOKMARK":
                    self._see(event.object, tasks)
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    def _see(self, pod: Body, tasks: asyncio.TaskGroup) -> None:
        if pod["spec"].get("nodeName") != self.node_name:
            return
        uid = pod["metadata"]["uid"]
        if uid in self._pods:
            self._pods[uid][0].view.see(pod)
            return
        run = PodRun(self, pod)
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
