"""Kubernetes Events about a job."""

from ddpjob.api import DDPJob
from ddpjob.cluster import EVENTS
from ddpjob.controller.events import record_event
from ddpjob.plan.model import Event
from tests.builders import with_status
from tests.localplay import NAMESPACE, Watched, submit


async def test_an_event_that_exists_is_not_created_again() -> None:
    cluster = Watched()
    job = DDPJob.parse(await submit(cluster))
    for message in ("rank 1 failed", "rank 1 failed", "rank 2 failed"):
        await record_event(cluster, job, Event("Restarting", message))
    events = (await cluster.list(EVENTS, namespace=NAMESPACE)).items
    assert sorted(e["message"] for e in events) == ["rank 1 failed", "rank 2 failed"]


async def test_an_event_that_is_told_once_is_not_created_with_another_message() -> None:
    cluster = Watched()
    job = DDPJob.parse(await submit(cluster))
    for count in (3, 4):
        words = f"0/{count} nodes are available"
        await record_event(cluster, job, Event("Unschedulable", words, warning=True, once=True))
    later = with_status(job, job.status.model_copy(update={"attempt": 1}))
    await record_event(cluster, later, Event("Unschedulable", "0/5 nodes", once=True))
    events = (await cluster.list(EVENTS, namespace=NAMESPACE)).items
    assert sorted(e["message"] for e in events) == ["0/3 nodes are available", "0/5 nodes"]
