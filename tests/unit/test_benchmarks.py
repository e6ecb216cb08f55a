"""The bare client, beside which the operator is measured, sends the same."""

import asyncio
import re
from typing import Any

import orjson

from benchmarks import bare
from ddpjob.api import DDPJob
from ddpjob.cluster import CONFIGMAPS, DDPJOBS, Resource
from ddpjob.controller.controller import Controller, load_agent
from ddpjob.json_depth import Body
from ddpjob.local.cluster import LocalCluster
from tests.builders import NOW, job_object
from tests.localplay import FAST, NAMESPACE, admit, until


class Recorded(LocalCluster):
    """Keeps the bytes of every write, times and durations blotted out."""

    def __init__(self) -> None:
        super().__init__(admit=admit)
        self.sent: list[tuple[str, bytes]] = []

    async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
        if resource != CONFIGMAPS:  # which is for all jobs of the namespace
            self.sent.append(("POST", blot(body)))
        return await super().create(resource, namespace, body)

    async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
        self.sent.append(("PUT", blot(body)))
        return await super().update_status(resource, namespace, body)


def blot(body: Any) -> bytes:
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    text = re.sub(rb'"queuedSeconds":\d+', b'"queuedSeconds":N', text)
    text = re.sub(rb'(/token":"|TOKEN","value":")[^"]+', rb"\1T", text)
    return re.sub(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", b"TIME", text)


async def test_the_bare_client_sends_what_the_operator_sends() -> None:
    cluster = Recorded()
    job = DDPJob.parse(await cluster.create(DDPJOBS, NAMESPACE, job_object(nnodes=4)))
    cluster.sent.clear()
    controller = Controller(cluster, settings=FAST)
    controller.reconciler.children.key = b""  # as the bare client's
    run = asyncio.create_task(controller.run())
    wanted = [(method, blot(body)) for method, _, body in bare.requests(job, load_agent(), NOW)]
    await until(lambda: len(cluster.sent) >= len(wanted))
    run.cancel()
    await asyncio.wait([run])
    assert cluster.sent[: len(wanted)] == wanted
