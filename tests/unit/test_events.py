"""Kubernetes Events about a job."""

from ddpjob.api import DDPJob
from ddpjob.cluster import (
    EVENTS,
)
from ddpjob.controller.events import record_event
from ddpjob.plan.decision import Event
from tests.localplay import NAMESPACE, Watched, submit


async def test_an_event_that_exists_is_not_created_again() -> None:
    cluster = Watched()
    job = DDPJob.parse(await submit(cluster))
    for message in ("rank 1 failed", "rank 1 failed", "rank 2 failed"):
        await record_event(cluster, job, Event("Restarting", message))
    events = (await cluster.list(EVENTS, namespace=NAMESPACE)).items
    assert sorted(e["message"] for e in events) == ["rank 1 failed", "rank 2 failed"]
