"""Asks rank 0's agent of running jobs for progress.

A pod of somebody's writes the answer, so the answer is hostile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
from aiohttp.client_proto import ResponseHandler
from pydantic import BaseModel, ValidationError

from ddpjob.controller.jobrecord import JobRecord
from ddpjob.plan.observed import PodRecord, Report
from ddpjob.plan.termination import AgentReport, loads
from ddpjob.settings import Settings

log = logging.getLogger(__name__)

Page = TypeVar("Page", bound=BaseModel)

IN_FLIGHT = 64
ANSWER_SECONDS = 2.0
# A pod's network is near.
CONNECT_SECONDS = 5.0
MAX_BYTES = 64 * 1024
# Of a whole connection, which has one answer: the largest page, and what stands before it.
MAX_CONNECTION_BYTES = 320 * 1024
# Bytes of a line of an answer's head. aiohttp would keep a hundred of 8 KiB.
MAX_LINE = 1024


class Poller:
    """Asks the agents in turn, and hands over each report."""

    def __init__(
        self,
        settings: Settings,
        targets: Callable[[], Iterable[tuple[JobRecord, PodRecord]]],
        deliver: Callable[[JobRecord, Report], None],
        others: Callable[[], int] = lambda: 0,
    ) -> None:
        """`targets` returns each running job with rank 0's pod; `deliver` takes a job's report.

        `others` is the number of jobs whose progress comes in another way.
        """
        self._settings = settings
        self._targets = targets
        self._deliver = deliver
        self._others = others
        self._running = 0

    def write_interval(self) -> float:
        """Return the seconds between two writes of one job's progress.

        The more jobs run, the longer it is: `settings.progress_writes_per_second` is for all.
        """
        settings = self._settings
        return max(settings.progress_write, self._running / settings.progress_writes_per_second)

    async def run(self) -> None:
        """Ask every running job once per interval, until cancelled."""
        async with session(ANSWER_SECONDS, IN_FLIGHT) as http:
            slots = asyncio.Semaphore(IN_FLIGHT)
            while True:
                targets = list(self._targets())
                self._running = self._others() + len(targets)
                await asyncio.gather(*(self._ask(http, slots, *target) for target in targets))
                await asyncio.sleep(self._settings.progress_poll)

    async def _ask(
        self,
        http: aiohttp.ClientSession,
        slots: asyncio.Semaphore,
        record: JobRecord,
        pod: PodRecord,
    ) -> None:
        async with slots:
            report = await fetch(http, pod)
        if report is not None:
            self._deliver(record, report)


async def fetch(http: aiohttp.ClientSession, pod: PodRecord) -> Report | None:
    """Return the progress that the pod's agent reports.

    Returns None if the agent does not answer in time, or if the answer is no report of this pod.
    """
    page = await read_page(http, pod, "/progress", AgentReport)
    return page.report() if page is not None and page.is_of(pod) else None


async def read_page(
    http: aiohttp.ClientSession,
    pod: PodRecord,
    path: str,
    kind: type[Page],
    headers: Mapping[str, str] = MappingProxyType({}),
    limit: int = MAX_BYTES,
    seconds: float | None = None,
) -> Page | None:
    """Return a page of the pod's agent, of at most `limit` bytes; None if it does not give one.

    It has so many seconds for it, or else those of the session.
    """
    within = http.timeout if seconds is None else _within(seconds)
    host, port = pod.ip, pod.agent_port
    address = f"[{host}]" if ":" in host else host
    try:
        async with http.get(
            f"http://{address}:{port}{path}",
            headers=headers,
            allow_redirects=False,
            timeout=within,
        ) as answer:
            if answer.status != 200:
                return None
            text = await answer.content.read(limit + 1)
            while len(text) <= limit and (more := await answer.content.read(limit)):
                text += more
        return kind.model_validate(loads(text)) if len(text) <= limit else None
    except (aiohttp.ClientError, TimeoutError, ValueError, ValidationError) as error:
        # Its text would quote the answer, of which nobody knows what is in it.
        log.debug("no answer host=%s error=%s", host, type(error).__name__)
        return None


@asynccontextmanager
async def session(seconds: float, limit: int) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for requests to agents: of so many seconds each, so many at a time, 0 for any."""
    # No cookies: what one pod sets, another must not get.
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        timeout=_within(seconds),
        cookie_jar=jar,
        connector=_Connector(limit=limit, force_close=True),
        auto_decompress=False,  # no agent compresses
        max_line_size=MAX_LINE,
        max_field_size=MAX_LINE,
    ) as http:
        yield http


class _Bounded(ResponseHandler):
    """A connection that ends where more comes than an agent has to say.

    A body alone can be bounded by its reader. Heads cannot: aiohttp skips interim answers (1xx) for
    as long as they come, and does nothing else meanwhile.
    """

    _taken = 0

    def data_received(self, data: bytes) -> None:
        self._taken += len(data)
        if self._taken <= MAX_CONNECTION_BYTES:
            super().data_received(data)
        elif self.transport is not None:
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(_Bounded, loop=self._loop)


def _within(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_SECONDS))
