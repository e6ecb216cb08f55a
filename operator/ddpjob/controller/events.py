"""Kubernetes Events about a job, for `kubectl describe`."""

import logging
import time
from hashlib import sha256

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import EVENTS, Cluster
from ddpjob.controller.jobrecord import JobRecord
from ddpjob.errors import AlreadyExists, ClusterError
from ddpjob.json_depth import Body
from ddpjob.plan.model import Event
from ddpjob.times import timestamp

log = logging.getLogger(__name__)


async def record_event(cluster: Cluster, job: DDPJob | JobRecord, event: Event) -> None:
    """Create the Event once. A failure is logged and not retried, because nothing rests on it.

    The name follows from the job, the attempt, the reason and the message, unless one message is
    enough. So a repeated one exists already and counts as created.
    """
    try:
        await cluster.create(EVENTS, job.namespace, _body(job, event, time.time() + cluster.ahead))
    except AlreadyExists:
        return
    except ClusterError as error:
        log.warning("event lost job=%s/%s error=%s", job.namespace, job.name, error)


def _body(job: DDPJob | JobRecord, event: Event, now: float) -> Body:
    attempt = job.status.attempt if isinstance(job, DDPJob) else 0
    content = f"{job.uid} {attempt} {event.reason} {'' if event.once else event.message}"
    name = f"{job.name}.{sha256(content.encode()).hexdigest()[:16]}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message,
        "source": {"component": "ddpjob"},
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }
