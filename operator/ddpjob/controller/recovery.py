"""Takes back a job's own pods that are not seen any more and that exist.

Somebody has changed their labels or owners, so the watch says that they are gone. They run on, so
they count, and no other attempt may begin beside them.
"""

import logging
import time
from collections.abc import Mapping

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import PODS, Cluster
from ddpjob.controller.memory import Caches, Memory
from ddpjob.errors import NotFound
from ddpjob.plan.own import absent, is_own
from ddpjob.plan.podrecord import pod_record
from ddpjob.pods.render import labels_of, owner_of, pod_labels

log = logging.getLogger(__name__)

# Pods that somebody takes away again and again are taken back so often.
PAUSE_SECONDS = 5.0


async def recover(cluster: Cluster, caches: Caches, job: DDPJob, memory: Memory) -> float | None:
    """Take back the pods in `memory.missed`; return the seconds to wait if it was just done.

    Raises ClusterError.
    """
    if memory.missed is None:
        memory.missed = absent(job.status, caches.pods(job.namespace, job.uid))
    if not memory.missed or job.metadata.deletion_timestamp:
        return None
    wait = memory.recovered_at + PAUSE_SECONDS - time.monotonic()
    if wait > 0:
        return wait
    memory.recovered_at = time.monotonic()
    for attempt, rank in sorted(memory.missed):
        made = memory.made[1] if memory.made[0] == attempt else {}
        await _take_back(cluster, caches, job, (attempt, rank), made)
        memory.missed.discard((attempt, rank))
    return None


async def _take_back(
    cluster: Cluster,
    caches: Caches,
    job: DDPJob,
    place: tuple[int, int],
    made: Mapping[int, str],
) -> None:
    """Give a pod its labels and its owner back, if it exists and is the job's own.

    `place` is its attempt and its rank; `made` has `uid_print` of the attempt's pods that the
    status does not have yet.
    """
    name = names.pod_name(job.name, *place)
    try:
        body = await cluster.get(PODS, job.namespace, name)
    except NotFound:
        return
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or []
    others = [o for o in owners if not o.get("controller") and o.get("uid") != job.uid]
    labels = labels_of(job) | pod_labels(place[0], str(place[1]))
    ours = {"labels": labels, "ownerReferences": [owner_of(job), *others]}
    pod = pod_record({**body, "metadata": {**metadata, **ours}})
    if pod is None or not is_own(job.status, pod, made):
        return
    log.info("job=%s/%s pod=%s taken back", job.namespace, job.name, name)
    seen = {key: metadata[key] for key in ("uid", "resourceVersion")}
    stored = await cluster.patch(PODS, job.namespace, name, {"metadata": {**seen, **ours}})
    if (record := pod_record(stored)) is not None:
        caches.put_pod(record)
