"""What the operator hears of the agents of running jobs, and tells them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ddpjob.controller.groups import Answer, Groups
from ddpjob.controller.jobrecord import JobRecord
from ddpjob.controller.memory import Order
from ddpjob.controller.poller import Poller
from ddpjob.controller.shares import Shares
from ddpjob.controller.silence import Silence
from ddpjob.plan.observed import GroupReport, PodRecord, Report
from ddpjob.settings import Settings


@dataclass(frozen=True)
class Desk:
    """What agents are asked on behalf of, and who takes their answers."""

    heads: Callable[[], Iterable[tuple[JobRecord, PodRecord, Order]]]
    """The jobs, each with rank 0's own pod of its attempt, which runs or has failed, and the order
    for the group."""
    pods: Callable[[JobRecord], Iterable[PodRecord]]
    """Returns a job's pods."""
    token: Callable[[JobRecord, PodRecord], Awaitable[str]]
    """Returns what the agents of an earlier version know the operator by. Raises ClusterError."""
    deliver: Callable[[JobRecord, Report | None, GroupReport | None], None]
    """Takes what rank 0's agent has said: of the progress, and of all nodes."""
    take_silent: Callable[[JobRecord, int, frozenset[int]], None]
    """Takes the ranks of the silent nodes of a job's attempt."""


class Agents:
    """Asks rank 0's agent of every running job: by a long poll where it knows of all nodes."""

    def __init__(self, settings: Settings, desk: Desk) -> None:
        def polled() -> Iterable[tuple[JobRecord, PodRecord]]:
            return ((job, pod) for job, pod, _ in desk.heads() if _answers(pod, for_all=False))

        def held() -> Iterable[tuple[JobRecord, PodRecord, Order]]:
            return (head for head in desk.heads() if _answers(head[1], for_all=True))

        def ended() -> Iterable[tuple[JobRecord, PodRecord]]:
            return ((job, pod) for job, pod, _ in desk.heads() if not pod.running)

        def answered(record: JobRecord, pod: PodRecord, answer: Answer | None) -> None:
            self._silence.heard(record, pod, answer)
            if answer is not None:
                desk.deliver(record, answer.report, answer.group)

        def reported(record: JobRecord, report: Report) -> None:
            desk.deliver(record, report, None)

        shares = Shares()
        local = settings.loopback_agents
        self._silence = Silence(desk.pods, desk.take_silent, ended, shares, local=local)
        self._groups = Groups(
            settings,
            held,
            desk.token,
            answered,
            forget=self._silence.forget,
            shares=shares,
        )
        self._poller = Poller(settings, polled, reported, lambda: len(self._groups), shares)

    def write_interval(self) -> float:
        """Return the seconds between two writes of one job's progress."""
        return self._poller.write_interval()

    def tell(self, pod_uid: str, order: Order) -> None:
        """Have rank 0's agent, which runs in this pod, given an order if it is another one."""
        self._groups.tell(pod_uid, order)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poller.run())
            tasks.create_task(self._groups.run())
            tasks.create_task(self._silence.run())


def _answers(head: PodRecord, *, for_all: bool) -> bool:
    """Whether rank 0's agent runs, and knows of the other nodes or, without `for_all`, does not."""
    return head.running and (head.in_place or head.node_timeout > 0) == for_all
