"""Asks rank 0's agent of every running job for progress.

A pod of somebody's writes the answer, so the answer is hostile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import aiohttp
from pydantic import ValidationError

from ddpjob.controller.jobrecord import JobRecord
from ddpjob.plan.observed import PodRecord, Report
from ddpjob.plan.termination import AgentReport, loads
from ddpjob.settings import Settings

log = logging.getLogger(__name__)

IN_FLIGHT = 64
ANSWER_SECONDS = 2.0
MAX_BYTES = 64 * 1024


class Poller:
    """Asks the agents in turn, and hands over each report."""

    def __init__(
        self,
        settings: Settings,
        targets: Callable[[], Iterable[tuple[JobRecord, PodRecord]]],
        deliver: Callable[[JobRecord, Report], None],
    ) -> None:
        """`targets` returns each running job with rank 0's pod; `deliver` takes a job's report."""
        self._settings = settings
        self._targets = targets
        self._deliver = deliver
        self._running = 0

    def write_interval(self) -> float:
        """Return the seconds between two writes of one job's progress.

        The more jobs run, the longer it is: `settings.progress_writes_per_second` is for all.
        """
        settings = self._settings
        return max(settings.progress_write, self._running / settings.progress_writes_per_second)

    async def run(self) -> None:
        """Ask every running job once per interval, until cancelled."""
        async with _session() as session:
            slots = asyncio.Semaphore(IN_FLIGHT)
            while True:
                targets = list(self._targets())
                self._running = len(targets)
                await asyncio.gather(*(self._ask(session, slots, *target) for target in targets))
                await asyncio.sleep(self._settings.progress_poll)

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        slots: asyncio.Semaphore,
        record: JobRecord,
        pod: PodRecord,
    ) -> None:
        async with slots:
            report = await fetch(session, pod)
        if report is not None:
            self._deliver(record, report)


async def fetch(session: aiohttp.ClientSession, pod: PodRecord) -> Report | None:
    """Return the progress that the pod's agent reports.

    Returns None if the agent does not answer in time, or if the answer is no report of this pod.
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
