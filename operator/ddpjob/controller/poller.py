"""Asks rank 0's agent of running jobs for progress."""

import asyncio
from collections.abc import Callable, Iterable

from ddpjob.controller.agenthttp import AgentHttp, session
from ddpjob.controller.jobrecord import JobRecord
from ddpjob.controller.shares import Shares
from ddpjob.plan.observed import PodRecord, Report
from ddpjob.plan.termination import AgentReport
from ddpjob.settings import Settings

IN_FLIGHT = 64
ANSWER_SECONDS = 2.0


class Poller:
    """Asks the agents in turn, and hands over each report."""

    def __init__(
        self,
        settings: Settings,
        targets: Callable[[], Iterable[tuple[JobRecord, PodRecord]]],
        deliver: Callable[[JobRecord, Report], None],
        others: Callable[[], int] = lambda: 0,
        shares: Shares | None = None,
    ) -> None:
        """`targets` returns each running job with rank 0's pod; `deliver` takes a job's report.

        `others` is the number of jobs whose progress comes in another way.
        """
        self._settings = settings
        self._targets = targets
        self._deliver = deliver
        self._others = others
        self._shares = shares
        self._running = 0

    def write_interval(self) -> float:
        """Return the seconds between two writes of one job's progress.

        The more jobs run, the longer it is: `settings.progress_writes_per_second` is for all.
        """
        settings = self._settings
        return max(settings.progress_write, self._running / settings.progress_writes_per_second)

    async def run(self) -> None:
        """Ask every running job once per interval, until cancelled."""
        local = self._settings.loopback_agents
        async with session(ANSWER_SECONDS, IN_FLIGHT, self._shares, local=local) as http:
            slots = asyncio.Semaphore(IN_FLIGHT)
            while True:
                targets = list(self._targets())
                self._running = self._others() + len(targets)
                await asyncio.gather(*(self._ask(http, slots, *target) for target in targets))
                await asyncio.sleep(self._settings.progress_poll)

    async def _ask(
        self,
        http: AgentHttp,
        slots: asyncio.Semaphore,
        record: JobRecord,
        pod: PodRecord,
    ) -> None:
        async with slots:
            report = await fetch(http, pod)
        if report is not None:
            self._deliver(record, report)


async def fetch(http: AgentHttp, pod: PodRecord) -> Report | None:
    """Return the progress that the pod's agent reports.

    Returns None if the agent does not answer in time, or if the answer is no report of this pod.
    """
    page = await http.read(pod, "/progress", AgentReport)
    return page.report() if page is not None and page.is_of(pod) else None
