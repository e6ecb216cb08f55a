"""What the operator hears of the agents of running jobs, and tells them."""

import asyncio

from ddpjob.controller.agenthttp import AgentHttp, session
from ddpjob.controller.groups import Groups, knows_all
from ddpjob.controller.memory import Desk, Head
from ddpjob.controller.silence import Silence
from ddpjob.plan.model import PodRecord, Report
from ddpjob.plan.termination import ProgressPage
from ddpjob.settings import Settings

# Agents that are asked for progress at a time, and the seconds that each has for its answer.
IN_FLIGHT, ANSWER_SECONDS = 64, 2.0


class Agents:
    """Asks rank 0's agent of every running job: by a long poll where it knows of all nodes."""

    def __init__(self, settings: Settings, desk: Desk) -> None:
        self._settings, self._desk = settings, desk
        self._silence = Silence(desk)
        self.groups = Groups(settings, desk, self._silence)
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._running = 0

    def write_interval(self) -> float:
        """Return the seconds between two writes of one job's progress.

        The more jobs run, the longer it is: `settings.progress_writes_per_second` is for all.
        """
        settings = self._settings
        return max(settings.progress_write, self._running / settings.progress_writes_per_second)

    async def run(self, alone: float = 0.0) -> None:
        """Ask until cancelled. For so many seconds no operator had worked when this one began."""
        local = self._settings.loopback_agents
        async with session(ANSWER_SECONDS, local=local) as http, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.groups.run(http))
            tasks.create_task(self._silence.run(http, alone))
            while True:
                heads = [
                    head
                    for head in self._desk.heads()
                    if head.pod.running and not knows_all(head.pod)
                ]
                self._running = len(self.groups) + len(heads)
                await asyncio.gather(*(self._ask(http, head) for head in heads))
                await asyncio.sleep(self._settings.progress_poll)

    async def _ask(self, http: AgentHttp, head: Head) -> None:
        """Ask an agent that knows of its own node alone."""
        async with self._slots:
            report = await fetch(http, head.pod)
        if report is not None:
            self._desk.take_answer(head.job, report, None)


async def fetch(http: AgentHttp, pod: PodRecord) -> Report | None:
    """Return the progress that the pod's agent reports.

    Returns None if the agent does not answer in time, or if the answer is no report of this pod.
    """
    page = await http.read(pod, "/progress", ProgressPage)
    return page.report() if page is not None and page.is_of(pod) else None
