"""Follows the pods of this node and gives each a task."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ddpjob.cluster import PODS
from ddpjob.cluster.informer import Cache, Informer
from ddpjob.json_depth import Body
from ddpjob.local.pod import Node, PodRun


class _Pod(NamedTuple):
    """A pod of this node, as the cache keeps it."""

    uid: str
    namespace: str
    resource_version: int
    body: Body


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
            store = Cache[_Pod](partial(self._changed, tasks))
            await Informer(self.cluster, PODS, store, self._read, namespace=self.namespace).run()

    def kill(self) -> None:
        """End all processes now."""
        for run, _ in self._pods.values():
            run.kill()

    def _read(self, body: Body) -> _Pod | None:
        if body["spec"].get("nodeName") != self.node_name:
            return None
        meta = body["metadata"]
        return _Pod(meta["uid"], meta["namespace"], int(meta["resourceVersion"]), body)

    def _changed(self, tasks: asyncio.TaskGroup, old: _Pod | None, new: _Pod | None) -> None:
        if new is None:
            assert old is not None
            run, task = self._pods[old.uid]
            run.view.lose()
            task.add_done_callback(lambda _: self._pods.pop(old.uid, None))
        elif new.uid in self._pods:
            self._pods[new.uid][0].view.see(new.body)
        else:
            run = PodRun(self, new.body)
            before = {
                task for other, task in self._pods.values() if other.folders.own == run.folders.own
            }
            # Kept, done or not, until the API forgets the pod: a late event must not start it anew.
            self._pods[new.uid] = run, tasks.create_task(run.live(before))
