"""What the operator hears of the agents of running jobs, and tells them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from ddpjob.controller.groups import Answer, Groups
from ddpjob.controller.jobrecord import JobRecord
from ddpjob.controller.memory import Order
from ddpjob.controller.poller import Poller
from ddpjob.plan.observed import GroupReport, PodRecord, Report
from ddpjob.settings import Settings

Heads = Callable[[], Iterable[tuple[JobRecord, PodRecord, Order]]]
"""The running jobs, each with rank 0's own pod of its attempt and the order for the group."""
Deliver = Callable[[JobRecord, Report | None, GroupReport | None], None]
"""Takes what rank 0's agent has said: of the progress, and of all nodes."""
Token = Callable[[JobRecord, PodRecord], Awaitable[str]]
"""Returns what the job's agents know the operator by. Raises ClusterError."""
Known = Callable[[JobRecord, PodRecord], str]
"""Returns the same if this process has created the pod, and so knows it; else ""."""


class Agents:
    """Asks rank 0's agent of every running job: by a long poll where rounds may follow."""

    def __init__(
        self, settings: Settings, heads: Heads, token: Token, known: Known, deliver: Deliver
    ) -> None:
        def polled() -> Iterable[tuple[JobRecord, PodRecord]]:
            return ((record, pod) for record, pod, _ in heads() if not pod.in_place)

        def held() -> Iterable[tuple[JobRecord, PodRecord, Order]]:
            return ((record, pod, order) for record, pod, order in heads() if pod.in_place)

        def answered(record: JobRecord, answer: Answer) -> None:
            deliver(record, answer.report, answer.group)

        def reported(record: JobRecord, report: Report) -> None:
            deliver(record, report, None)

        self._groups = Groups(settings, held, token, answered, known)
        self._poller = Poller(settings, polled, reported, lambda: len(self._groups))

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
