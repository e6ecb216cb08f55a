"""Connects events to the reconciler: two caches, one queue of jobs, some workers."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from secrets import token_bytes

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.cluster import DDPJOBS, PODS, Cluster
from ddpjob.cluster.informer import STALE_SECONDS, Cache, Informer
from ddpjob.controller.agents import Agents
from ddpjob.controller.children import Children
from ddpjob.controller.lease import Elector
from ddpjob.controller.memory import Caches, Head, JobRecord, job_record
from ddpjob.controller.observer import Observer
from ddpjob.controller.queue import KeyedQueue
from ddpjob.controller.reconcile import Reconciler
from ddpjob.controller.workloads import WORKLOADS, Workloads
from ddpjob.errors import ClusterError, Refused
from ddpjob.plan.model import Made, PodRecord, Report, RoundStatus, Workload
from ddpjob.plan.podrecord import pod_record
from ddpjob.plan.workload import workload_record
from ddpjob.pods import agent_zip
from ddpjob.pods.render import Agent
from ddpjob.ranks import format_ranks
from ddpjob.settings import Settings

log = logging.getLogger(__name__)

REFUSED_SECONDS = 2.0

Key = tuple[str, str]
"""(namespace, name) of a job."""


@cache
def load_agent() -> Agent:
    """The agent, as this version of ddpjob ships it."""
    package = Path(str(resources.files(agent_zip.PACKAGE)))
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    return Agent(agent_zip.pack({name: path.read_text("utf-8") for name, path in files.items()}))


class Controller:
    """Runs every DDPJob of a cluster, or of some namespaces."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespaces: Sequence[str] | None = None,
        settings: Settings | None = None,
        elector: Elector | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`namespaces` of None means all of them; without an elector it works at once."""
        self._observer = observer or Observer()
        self.settings = settings or Settings()
        self.cluster = cluster
        self.leading = False
        """Whether it works, or else stands by with its caches kept up to date."""
        self._elector = elector
        self.jobs: dict[Key, JobRecord] = {}
        self._pods: dict[tuple[str, str], dict[str, PodRecord]] = defaultdict(dict)
        """By the namespace that they are in and the uid of the job that they name."""
        self._job_cache: Cache[JobRecord] = Cache(self._job_changed, self._job_news)
        self._pod_cache: Cache[PodRecord] = Cache(
            self._pod_changed, self._pod_news, self._pod_missed
        )
        self.queue: KeyedQueue[Key] = KeyedQueue(
            first=self.settings.backoff_first, cap=self.settings.backoff_cap
        )
        caches = Caches(
            job=lambda namespace, name: self.jobs.get((namespace, name)),
            pods=self.pods,
            # The reconciler goes on from its own writes. As events they would cut the back-off.
            put_job=partial(self._job_cache.put, own=True),
            put_pod=partial(self._pod_cache.put, own=True),
            remove_pod=self._pod_cache.remove,
            remove_job=self._job_cache.remove,
        )
        self._workloads: dict[tuple[str, str], Workload] = {}
        """By namespace and uid of the job."""
        self._workload_cache: Cache[Workload] = Cache(
            self._workload_changed, lambda found: self.trigger(found.namespace, found.job)
        )
        children = Children(cluster, caches, load_agent(), self.settings, token_bytes(32))
        workloads = Workloads(
            cluster,
            self.settings,
            lambda job: self._workloads.get((job.namespace, job.uid)),
            partial(self._workload_cache.put, own=True),
            self._workload_cache.remove,
            self._queue_trouble,
            children.render,
        )
        self.agents = Agents(self.settings, self)
        self.reconciler = Reconciler(
            cluster, caches, children, self.settings, self.agents, workloads, self._observer
        )
        labels = f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
        self.informers: list[Informer[JobRecord] | Informer[PodRecord]] = []
        scopes: Sequence[str | None] = namespaces or [None]
        for namespace in scopes:
            self.informers += [
                Informer(cluster, DDPJOBS, self._job_cache, job_record, namespace=namespace),
                Informer(
                    cluster, PODS, self._pod_cache, pod_record, namespace=namespace, labels=labels
                ),
            ]

        self._queues = [
            Informer(
                cluster,
                WORKLOADS,
                self._workload_cache,
                workload_record,
                namespace=namespace,
                labels=labels,
            )
            for namespace in scopes
            if self.settings.kueue
        ]
        """Only jobs with a queue wait until these are full: Kueue may not be there."""

    async def run(self) -> None:
        """Work until cancelled. Nothing is decided before both caches are full.

        Nor does it stand for election before: a winner that sees nothing would keep others away.
        """
        async with asyncio.TaskGroup() as tasks:
            for informer in (*self.informers, *self._queues):
                tasks.create_task(informer.run())
            for informer in self.informers:
                await informer.synced.wait()
            for queue in self._queues:
                await queue.looked.wait()
            log.info("caches synced jobs=%d pods=%d", len(self._job_cache), len(self._pod_cache))
            alone = 0.0
            if self._elector is not None:
                tasks.create_task(self._elector.run())
                await self._elector.leading.wait()
                alone = self._elector.seconds_alone
            self.leading = True
            for key in self.jobs:
                self.trigger(*key)
            tasks.create_task(self.agents.run(alone))
            for _ in range(self.settings.workers):
                tasks.create_task(self._work())

    def trigger(self, namespace: str, name: str) -> None:
        """Have this job reconciled soon. An operator that stands by does nothing yet."""
        if self.leading:
            self.queue.add((namespace, name))

    def seen(self, namespace: str, name: str, version: str) -> None:
        """Have a job reconciled that is at this resourceVersion, unless we have written it so.

        That would cut every back-off short whose reason is written into the status.
        """
        record = self.jobs.get((namespace, name))
        memory = self.reconciler.memories.get(record.uid) if record else None
        if memory is None or memory.version != version:
            self.trigger(namespace, name)

    def pods(self, job: DDPJob | JobRecord) -> Iterable[PodRecord]:
        """The pods of the job's namespace that name the job as their controller."""
        return self._pods.get((job.namespace, job.uid), {}).values()

    @property
    def ready(self) -> bool:
        """Whether the caches have been filled."""
        return all(informer.synced.is_set() for informer in self.informers)

    @property
    def fresh(self) -> bool:
        """Whether every watch has brought something lately, if only a bookmark.

        A process whose watches bring nothing should be restarted.
        """
        now = asyncio.get_running_loop().time()
        return all(
            not informer.synced.is_set() or now - informer.last_event_at < 2 * STALE_SECONDS
            for informer in self.informers
        )

    def _job_changed(self, old: JobRecord | None, new: JobRecord | None) -> None:
        record = new or old
        assert record is not None
        key = (record.namespace, record.name)
        if new is not None:
            known = self.jobs.get(key, new)
            # News of a job that was deleted may come after another one of its name was read.
            if known.uid == new.uid or known.resource_version < new.resource_version:
                self.jobs[key] = new
        else:
            self.reconciler.memories.pop(record.uid, None)
            self._observer.forget(record.uid)
            if self.jobs.get(key) is old:
                del self.jobs[key]
                self.queue.succeeded(key)  # the next job of the name has failed nothing yet

    def _job_news(self, record: JobRecord) -> None:
        self.trigger(record.namespace, record.name)

    def _workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        if new is not None:
            self._workloads[new.namespace, new.owner_uid] = new
        elif old is not None:
            self._workloads.pop((old.namespace, old.owner_uid), None)

    def _queue_trouble(self) -> str:
        """Return why it is not known what Kueue says; "" if it is."""
        late = next((each for each in self._queues if not each.synced.is_set()), None)
        return f"Kueue cannot be asked: {late.error}" if late else ""

    def _pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        if old is not None and new is not None and new.owner_uid != old.owner_uid:
            self._pod_missed(old)
            self._pod_news(old)
        if old is not None and (new is None or new.owner_uid != old.owner_uid):
            key = (old.namespace, old.owner_uid)
            pods = self._pods[key]
            pods.pop(old.uid, None)
            if not pods:
                del self._pods[key]
            if memory := self.reconciler.memories.get(old.owner_uid):
                memory.part(old)
        if new is not None:
            self._pods[new.namespace, new.owner_uid][new.uid] = new

    def _pod_news(self, record: PodRecord) -> None:
        self.trigger(record.namespace, record.job)

    def _pod_missed(self, record: PodRecord) -> None:
        job = self.jobs.get((record.namespace, record.job))
        memory = self.reconciler.memories.get(record.owner_uid)
        is_of_job = job is not None and job.uid == record.owner_uid
        if is_of_job and memory is not None and memory.missed is not None:
            memory.missed.add((record.attempt, record.rank, record.since))

    def heads(self) -> Iterator[Head]:
        """The jobs, each with rank 0's own pod of its attempt, and the group's order.

        The pod runs, or has failed.
        """
        for job in list(self.jobs.values()):
            memory = self.reconciler.memories.get(job.uid)
            if memory is None or not memory.head:
                continue
            head = next((pod for pod in self.pods(job) if pod.uid == memory.head), None)
            if head is not None and (head.running and head.ip or head.result == "failed"):
                yield Head(job, memory.order.placed(head), memory.order)

    async def program(self, job: JobRecord, wanted: str) -> bytes:
        """Return what has this hash and the job's ranks are to run; nothing if it is not there."""
        now = self.jobs.get((job.namespace, job.name))  # it has been edited since
        if now is None or now.uid != job.uid:
            return b""
        return await self.reconciler.programs.content(now, wanted)

    async def old_token(self, job: JobRecord, pod: PodRecord) -> str:
        """Return the token of a pod that an earlier version has made; "" if it cannot be read."""
        return await self.reconciler.children.old_token(job, pod)

    def take_answer(self, job: JobRecord, report: Report | None, seen: RoundStatus | None) -> None:
        """Keep what an agent says for the next decision, and have that made if it is news."""
        memory = self.reconciler.memories.get(job.uid)
        if memory is None:
            return
        news = (report or memory.report, seen or memory.round_status)
        if news != (memory.report, memory.round_status):
            memory.report, memory.round_status = news
            self.trigger(job.namespace, job.name)

    def take_silent(self, job: JobRecord, made: Made, silent: frozenset[int]) -> None:
        """Keep which nodes are silent for the next decision, and have that made."""
        memory = self.reconciler.memories.get(job.uid)
        if memory is not None and memory.silent.get(made, frozenset()) != silent:
            words = format_ranks(silent)
            log.info("job=%s/%s attempt=%d silent=%s", job.namespace, job.name, made[0], words)
            memory.silent[made] = silent
            self.trigger(job.namespace, job.name)

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            begin, result = time.monotonic(), "done"
            try:
                again = await self.reconciler.reconcile(*key)
                self.queue.succeeded(key)
                if again is not None:
                    self.queue.add_after(key, again)
            except ClusterError as error:
                # What was refused will be again until somebody changes something: no hurry.
                least = REFUSED_SECONDS if isinstance(error, Refused) else 0.0
                pause = self.queue.retry(
                    key,
                    at_least=error.retry_after or least,
                    at_most=self.reconciler.seconds_to_requeue(*key),
                )
                log.info("job=%s/%s retry_in=%.1fs error=%s", *key, pause, error)
                result = "refused"
            except Exception:
                # One job must not stop the others, whatever is wrong with it or with us.
                pause = self.queue.retry(key, at_least=1.0)
                log.exception("job=%s/%s retry_in=%.1fs", *key, pause)
                result = "error"
            finally:
                self.queue.done(key)
                self._observer.reconciled(result, time.monotonic() - begin)
