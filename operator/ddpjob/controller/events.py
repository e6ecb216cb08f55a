"""Which change of a status is written at once, and Kubernetes Events about it."""

import logging
import time
from hashlib import sha256

from ddpjob import names, why
from ddpjob.api import DDPJob, Status
from ddpjob.cluster import EVENTS, Cluster
from ddpjob.controller.memory import JobRecord
from ddpjob.errors import AlreadyExists, ClusterError
from ddpjob.json_depth import Body
from ddpjob.plan.model import Event
from ddpjob.plan.reasons import CREATE_REFUSED
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


# Parts of the status that may wait for the next write.
_MINOR = ("summary", "nodes", "progress", "curve", "observed_generation", "pods")


def is_transition(old: Status, new: Status) -> bool:
    """Whether more has changed than counts and progress.

    Such a change is written at once, before anything else is done.
    """
    blank = dict.fromkeys(_MINOR)
    if old.state is None and new.state == "Pending":
        # Pending alone is not written: the next status has it, or what comes after it.
        new = new.model_copy(update={"state": None, "goodput": old.goodput})
    new = _without_words(old, new)
    # What proves our pods must be known before there is one; their uids come with the counts.
    roots = [{root for table in status.pods for root in table.roots} for status in (old, new)]
    return not roots[1] <= roots[0] or old.model_copy(update=blank) != new.model_copy(update=blank)


def _without_words(old: Status, new: Status) -> Status:
    """Return `new` with the message of `old` about why a pod waits, if the reason is the same.

    Pods start one by one, and the message is about one that has not. So of thousands of messages
    only some are written. Why the API server refuses pods is written at once, since nothing else
    may be written before they are created.
    """
    was, now = old.condition("Running"), new.condition("Running")
    if was is None or now is None or now.status == "True" or now.reason == CREATE_REFUSED.name:
        return new
    if was == now or (was.status, was.reason) != (now.status, now.reason):
        return new
    conditions = [was if condition is now else condition for condition in new.conditions]
    return new.model_copy(update={"conditions": conditions})


def is_pruned(written: Body, stored: Body) -> bool:
    """Whether the API server has dropped fields that its definition of DDPJob does not know."""
    return any(
        is_pruned(value, stored.get(name) or {}) if isinstance(value, dict) else name not in stored
        for name, value in written.items()
        if value not in (None, [], {})
    )


def log_state(job: DDPJob, new: Status) -> None:
    """Log the state, attempt or round that has just been stored."""
    decisive = new.condition(why.DECISIVE.get(new.state or "", "Running"))
    fields = {
        "namespace": job.namespace,
        "job": job.name,
        "state": new.state,
        "attempt": new.attempt,
        "round": new.round,
        "restarts": new.restarts,
        "reason": decisive.reason if decisive else "",
    }
    line = (
        "job=%(namespace)s/%(job)s state=%(state)s attempt=%(attempt)d round=%(round)d"
        " restarts=%(restarts)d reason=%(reason)s"
    )
    log.info(line, fields, extra=fields)
