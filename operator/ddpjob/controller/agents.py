"""What the operator hears of the agents of running jobs, and tells them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from ddpjob.controller.groups import Answer, Groups
from ddpjob.controller.jobrecord import JobRecord
from ddpjob.controller.memory import Order
from ddpjob.controller.poller import Poller
from ddpjob.controller.silence import Silence
from ddpjob.plan.observed import GroupReport, PodRecord, Report
from ddpjob.settings import Settings

Heads = Callable[[], Iterable[tuple[JobRecord, PodRecord, Order]]]
"""The running jobs, each with rank 0's own pod of its attempt and the order for the group."""
Deliver = Callable[[JobRecord, Report | None, GroupReport | None], None]
"""Takes what rank 0's agent has said: of the progress, and of all nodes."""
Pods = Callable[[JobRecord], Iterable[PodRecord]]
"""Returns a job's pods."""
TakeSilent = Callable[[JobRecord, int, frozenset[int]], None]
"""Takes the ranks of the silent nodes of a job's attempt."""
Token = Callable[[JobRecord, PodRecord], Awaitable[str]]
"""Returns what the job's agents know the operator by. Raises ClusterError."""


class Agents:
    """Asks rank 0's agent of every running job: by a long poll where it knows of all nodes."""

    def __init__(
        self,
        settings: Settings,
        heads: Heads,
        token: Token,
        deliver: Deliver,
        pods: Pods,
        take_silent: TakeSilent,
    ) -> None:
        def polled() -> Iterable[tuple[JobRecord, PodRecord]]:
            return ((record, pod) for record, pod, _ in heads() if not _speaks_for_all(pod))

        def held() -> Iterable[tuple[JobRecord, PodRecord, Order]]:
            return (head for head in heads() if _speaks_for_all(head[1]))

        def answered(record: JobRecord, pod: PodRecord, answer: Answer | None) -> None:
            self._silence.heard(record, pod, answer)
            if answer is not None:
                deliver(record, answer.report, answer.group)

        def reported(record: JobRecord, report: Report) -> None:
            deliver(record, report, None)

        self._silence = Silence(pods, take_silent)
        self._groups = Groups(settings, held, token, answered, self._silence.forget)
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
            tasks.create_task(self._silence.run())


def _speaks_for_all(head: PodRecord) -> bool:
    """Whether rank 0's agent knows of the other nodes."""
    return head.in_place or head.node_timeout > 0
