"""DDPJobs on a real API server, as the tests handle them."""

import asyncio
from collections.abc import Callable
from typing import Any

from ddpjob import names
from ddpjob.cluster import EVENTS, PODS, Resource
from ddpjob.json_depth import Body
from tests.builders import job_object
from tests.cluster.client import MERGE, Client


class Jobs:
    """The DDPJobs of one namespace, by an administrator."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"

    async def create(self, name: str = "digits", **spec: Any) -> Body:
        return await self.client.request(
            "POST", self.path, job_object(name, **{"nnodes": 2, **spec})
        )

    async def get(self, name: str = "digits") -> Body:
        return await self.client.request("GET", f"{self.path}/{name}")

    async def patch(self, name: str = "digits", **spec: Any) -> Body:
        body = {"spec": spec}
        path = f"{self.path}/{name}"
        return await self.client.request("PATCH", path, body, content_type=MERGE)

    async def delete(self, name: str = "digits") -> None:
        await self.client.request("DELETE", f"{self.path}/{name}")

    async def until(self, holds: Callable[[Body], Any], name: str = "digits") -> Body:
        """The job, once something holds of it. Raises TimeoutError, with its status and pods."""
        try:
            async with asyncio.timeout(180):
                while not holds(job := await self.get(name)):
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            states = [(pod["metadata"]["name"], pod["status"]) for pod in await self.children(PODS)]
            error.add_note(f"{name}: {job.get('status')}\npods: {states}")
            raise
        return job

    async def in_state(self, state: str, name: str = "digits") -> Body:
        return await self.until(lambda job: job.get("status", {}).get("state") == state, name)

    async def children(self, resource: Resource) -> list[Body]:
        selector = f"labelSelector={names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
        path = f"{resource.path(self.namespace)}?{selector}"
        items: list[Body] = (await self.client.request("GET", path))["items"]
        return items

    async def events(self) -> list[Body]:
        """The operator's Events in the namespace."""
        items = (await self.client.request("GET", EVENTS.path(self.namespace)))["items"]
        return [event for event in items if event["source"] == {"component": "ddpjob"}]

    async def pods_as_they_are(self) -> list[Body]:
        """Its pods, in the order of their names."""
        return sorted(await self.children(PODS), key=lambda pod: str(pod["metadata"]["name"]))

    async def pods(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in await self.children(PODS))


def rank(pod: Body) -> tuple[int, int]:
    labels = pod["metadata"]["labels"]
    return int(labels[names.ATTEMPT_LABEL]), int(labels[names.RANK_LABEL])


def conditions(job: Body) -> dict[str, tuple[str, str]]:
    found = job.get("status", {}).get("conditions", [])
    return {c["type"]: (c["status"], c["reason"]) for c in found}
