"""Where a story is told: one job in a cluster, embedded or real, with an operator at work."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ddpjob.cluster import DDPJOBS, EVENTS, PODS, Resource
from ddpjob.errors import Conflict
from ddpjob.json_depth import Body
from tests import localplay
from tests.api.jobs import Jobs
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.podstatus import End
from tests.localplay import NAMESPACE, Watched


class Stage(Protocol):
    """What a user and a kubelet do to the job. Its pods run until they are ended or deleted."""

    async def create(self, **spec: Any) -> Body: ...
    async def patch(self, **spec: Any) -> Body: ...
    async def delete(self) -> None: ...
    async def until(self, holds: Callable[[Body], Any]) -> Body:
        """The job once this holds of it. Raises TimeoutError."""

    async def children(self, resource: Resource) -> list[Body]:
        """The objects of a kind that the operator has created."""

    async def events(self) -> list[Body]:
        """The operator's Events."""

    async def end_pod(self, name: str, code: int = 0, message: str = "") -> None:
        """The pod's trainer exits with this code and termination message."""


class Embedded:
    """The cluster of local mode, in memory."""

    def __init__(self, cluster: Watched) -> None:
        self.cluster = cluster

    async def create(self, **spec: Any) -> Body:
        return await localplay.submit(self.cluster, **spec)

    async def patch(self, **spec: Any) -> Body:
        return await self.cluster.patch(DDPJOBS, NAMESPACE, "digits", {"spec": spec})

    async def delete(self) -> None:
        uid = (await localplay.stored(self.cluster))["metadata"]["uid"]
        await self.cluster.delete(DDPJOBS, NAMESPACE, "digits", uid=uid)

    async def until(self, holds: Callable[[Body], Any]) -> Body:
        async def look() -> Body | None:
            job = await localplay.stored(self.cluster)
            return job if holds(job) else None

        found: Body = await localplay.until(look)
        return found

    async def children(self, resource: Resource) -> list[Body]:
        return (await self.cluster.list(resource, namespace=NAMESPACE)).items

    async def events(self) -> list[Body]:
        return await self.children(EVENTS)

    async def end_pod(self, name: str, code: int = 0, message: str = "") -> None:
        while True:
            pod = await self.cluster.get(PODS, NAMESPACE, name)
            try:
                return await localplay.end_pod(self.cluster, pod, code, message)
            except Conflict:
                await asyncio.sleep(0)


class Real(Jobs):
    """A namespace of a real API server, whose nodes have a scripted kubelet."""

    def __init__(self, jobs: Jobs, kubelet: ScriptedKubelet) -> None:
        super().__init__(jobs.client, jobs.namespace)
        self.kubelet = kubelet

    async def end_pod(self, name: str, code: int = 0, message: str = "") -> None:
        self.kubelet.finish(self.namespace, name, End(exit_code=code, message=message))
