"""Asks rank 0's agent of every running job how far it is.

What comes back was written by somebody's pod.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp
from pydantic import ValidationError

from ddpjob.controller.jobrecord import JobRecord
from ddpjob.controller.reconcile import Memory, Reconciler
from ddpjob.plan.observed import PodRecord, Report
from ddpjob.plan.termination import AgentReport, loads
from ddpjob.settings import Settings

log = logging.getLogger(__name__)

IN_FLIGHT = 64
ANSWER_SECONDS = 2.0
MAX_BYTES = 64 * 1024


class Jobs(Protocol):
    """What the poller needs of the controller."""

    settings: Settings
    jobs: dict[tuple[str, str], JobRecord]
    reconciler: Reconciler

    def pods_of(self, namespace: str, uid: str) -> Iterable[PodRecord]:
        """Pods of this namespace that name the job with this uid as their controller."""
        ...

    def trigger(self, namespace: str, name: str) -> None:
        """Look at this job soon."""
        ...


class Poller:
    """Polls, and remembers the answers where the next plan sees them."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._running = 0

    def write_interval(self) -> float:
        """Seconds between two writes of one job's progress.

        As the number of running jobs has it now.
        """
        settings = self._jobs.settings
        return max(settings.progress_write, self._running / settings.progress_writes_per_second)

    async def run(self) -> None:
        """Ask every running job once per interval, until cancelled."""
        async with _session() as session:
            slots = asyncio.Semaphore(IN_FLIGHT)
            while True:
                targets = list(self._targets())
                self._running = len(targets)
                await asyncio.gather(*(self._ask(session, slots, *target) for target in targets))
                await asyncio.sleep(self._jobs.settings.progress_poll)

    def _targets(self) -> Iterator[tuple[JobRecord, PodRecord]]:
        for record in list(self._jobs.jobs.values()):
            memory = self._jobs.reconciler.memories.get(record.uid)
            if memory is None or not memory.head:
                continue
            pods = self._jobs.pods_of(record.namespace, record.uid)
            head = next((pod for pod in pods if pod.uid == memory.head), None)
            if head is not None and head.running and head.ip:
                yield record, head

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        slots: asyncio.Semaphore,
        record: JobRecord,
        pod: PodRecord,
    ) -> None:
        async with slots:
            report = await fetch(session, pod)
        memory: Memory | None = self._jobs.reconciler.memories.get(record.uid)
        if report is None or memory is None:
            return
        if report != memory.report:
            memory.report = report
            self._jobs.trigger(record.namespace, record.name)


async def fetch(session: aiohttp.ClientSession, pod: PodRecord) -> Report | None:
    """What the pod's agent reports.

    None if it does not answer in time, or not what it should.
    """
    host, port = pod.ip, pod.agent_port
    address = f"[{host}]" if ":" in host else host
    try:
        async with session.get(
            f"http://{address}:{port}/progress", allow_redirects=False
        ) as answer:
            if answer.status != 200:
                return None
            text = await answer.content.read(MAX_BYTES + 1)
            while len(text) <= MAX_BYTES and (more := await answer.content.read(MAX_BYTES)):
                text += more
        if len(text) > MAX_BYTES:
            return None
        page = AgentReport.model_validate(loads(text))
        return page.report() if page.is_of(pod) else None
    except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError) as error:
        # Its text would quote the answer, of which nobody knows what is in it.
        log.debug("no progress host=%s error=%s", host, type(error).__name__)
        return None


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    # No cookies: what one pod sets, another must not get.
    jar = aiohttp.DummyCookieJar()
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(
        timeout=timeout, cookie_jar=jar, connector=connector
    ) as session:
        yield session
