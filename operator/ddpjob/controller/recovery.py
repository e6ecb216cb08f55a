"""Takes back a job's own pods that are not seen any more and that exist.

Somebody has changed their labels or owners, so the watch says that they are gone. They run on, so
they count, and no other attempt may begin beside them.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import DDPJOBS, PODS, Cluster
from ddpjob.controller.memory import Caches, Memory
from ddpjob.errors import NotFound
from ddpjob.plan.own import absent, is_own, may_be_own, placed
from ddpjob.plan.podrecord import pod_record
from ddpjob.pods.objects import labels_of, owner_of
from ddpjob.pods.render import pod_labels

log = logging.getLogger(__name__)

# Pods that somebody takes away again and again are taken back so often.
PAUSE_SECONDS = 5.0
# So many are looked for at the same time.
AT_ONCE = 32


async def recover(cluster: Cluster, caches: Caches, job: DDPJob, memory: Memory) -> float | None:
    """Take back the pods in `memory.missed`; return the seconds to wait if it was just done.

    Raises ClusterError.
    """
    if memory.missed is None:
        memory.missed = absent(job.status, caches.pods(job))
    memory.missed = may_be_own(job, memory.missed)
    if not memory.missed or job.metadata.deletion_timestamp:
        return None
    wait = memory.recovered_at + PAUSE_SECONDS - time.monotonic()
    if wait > 0:
        return wait
    memory.recovered_at = time.monotonic()
    if not await _is_there(cluster, job):
        return None
    slots, missed = asyncio.Semaphore(AT_ONCE), memory.missed

    async def look(place: tuple[int, int, int]) -> None:
        made = memory.made[1] if memory.made[0] == (place[0], place[2]) else {}
        async with slots:
            await _take_back(cluster, caches, job, place, made)
        missed.discard(place)

    for error in await asyncio.gather(*map(look, sorted(missed)), return_exceptions=True):
        if error:
            raise error
    return None


async def _is_there(cluster: Cluster, job: DDPJob) -> bool:
    """Whether the job is not about to go: pods that are to stay without it must get no owner."""
    try:
        metadata = (await cluster.get(DDPJOBS, job.namespace, job.name))["metadata"]
    except NotFound:
        return False
    return metadata["uid"] == job.uid and "deletionTimestamp" not in metadata


async def _take_back(
    cluster: Cluster,
    caches: Caches,
    job: DDPJob,
    place: tuple[int, int, int],
    made: Mapping[int, str],
) -> None:
    """Give a pod its labels and its owner back, if it exists and is the job's own.

    `place` is its attempt, its rank, and its first round; `made` has `uid_print` of the attempt's
    pods that the status does not have yet.
    """
    name = names.pod_name(job.name, *place)
    try:
        body = await cluster.get(PODS, job.namespace, name)
    except NotFound:
        return
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or []
    others = [o for o in owners if not o.get("controller") and o.get("uid") != job.uid]
    labels = labels_of(job) | pod_labels(place[0], names.rank_text(place[1]))
    ours = {"labels": labels, "ownerReferences": [owner_of(job), *others]}
    pod = pod_record({**body, "metadata": {**metadata, **ours}})
    if pod is None or not is_own(job.status, next(placed(job.status, [pod])), made):
        return
    log.info("job=%s/%s pod=%s taken back", job.namespace, job.name, name)
    patch = {"metadata": {"uid": metadata["uid"], **ours}}
    stored = await cluster.patch(PODS, job.namespace, name, patch)
    if (record := pod_record(stored)) is not None:
        caches.put_pod(record)
