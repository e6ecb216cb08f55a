"""Long polls of rank 0's agents: how a job's nodes are, and which round they are to be in.

A request is held by the agent until there is news, so a failure is known within milliseconds. Each
one carries the round that status has, so an order that was lost is given again with the next. A pod
of somebody's writes the answer, so the answer is hostile.
"""

import asyncio
import math
import resource
import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field

from ddpjob.controller.agenthttp import AgentHttp
from ddpjob.controller.memory import Desk, Head
from ddpjob.controller.silence import LOOK_SECONDS, Silence, pause_after
from ddpjob.plan.model import NodeExit, Order, PodRecord, RoundStatus
from ddpjob.plan.termination import ProgressPage, TerminationMessage
from ddpjob.settings import Settings

# So many requests are held at a time, if there are descriptors for them beside those of all other
# connections. The agents of further jobs answer at once, to so many requests at a time.
MOST_HELD, OTHER_DESCRIPTORS, AT_ONCE = 2000, 800, 64
# A request is held for `progress_poll`, and by a busy agent somewhat longer.
REQUEST_SECONDS = 30.0
# The same for some MiB of code, of which so many are in memory at once, of a namespace one.
BRING_SECONDS, BRINGING = 10.0, 8
# The same where it matters whether a node is heard.
LATE_SECONDS = 3.0
# An agent that always has news gets so many requests at once, and then so many a second.
BURST, RATE = 20, 2.0
# Another pod that has become rank 0's is asked as soon.
NEWS_SECONDS = 0.05
# The pause after a request without an answer, at first and at most.
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 8.0

Number = Annotated[int, Field(ge=0, lt=2**31)]
Print = Annotated[str, Field(max_length=6)]


class _Hostile(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Failure(_Hostile):
    node_rank: Number
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    message: Annotated[TerminationMessage | _Hostile, Field(union_mode="left_to_right")]
    """One that is no agent's is empty."""


class _Unheard(_Hostile):
    node_rank: Number
    seconds: Annotated[float, Field(ge=0, lt=2**31)]


class GroupPage(ProgressPage):
    """The answer at `/group`."""

    serial: Number
    running: bool = False
    over: bool = False
    lacks_program: bool = False
    failures: Annotated[list[_Failure], Field(max_length=64), FailFast()] = []
    progress: ProgressPage | None = None
    stamp: Annotated[float, Field(ge=0, lt=2**53)] | None = None
    """The agent's own time, which tells it that it is heard once it comes back."""
    unheard: Annotated[list[_Unheard], Field(max_length=64), FailFast()] = []
    """The nodes that it has not heard lately."""
    dead: Annotated[list[Print], Field(max_length=64), FailFast()] = []
    """Prints of pods that have said that none of their processes lives."""
    saves: Number = 0
    """How often the script has saved."""
    saved: Annotated[float, Field(ge=0, lt=2**31)] = math.inf
    """The seconds since it has done so last."""

    def round_status(self) -> RoundStatus:
        """Return what the page says of the nodes' ranks."""
        return RoundStatus(
            attempt=self.attempt,
            round=self.round,
            running=self.running,
            over=self.over,
            exits=tuple(
                NodeExit(
                    each.node_rank,
                    each.exit_code,
                    each.message.model_dump_json(exclude_unset=True),
                )
                for each in self.failures
            ),
            dead=frozenset(self.dead),
            saves=self.saves,
            saved_at=time.monotonic() - self.saved,
        )


class _Talk:
    """The request to one agent, and the order that it carries."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.serial = 0
        self.stamp: float | None = None
        self.request: asyncio.Task[GroupPage | None] | None = None
        self.missed = 0  # requests without an answer, in a row
        self.told = frozenset[str]()  # uids of pods that know where this one is
        self.program, self.unbrought = "", 0  # what its agent has got for ranks to run; tries
        self._spent, self._at = 0.0, time.monotonic()

    def give(self, order: Order) -> None:
        """Take the request back if it carries another order."""
        if order != self.order:
            self.order = order
            if self.request is not None:
                self.request.cancel()

    def pause(self) -> float:
        """Return the seconds to wait before the next request."""
        now = time.monotonic()
        self._spent = max(0.0, self._spent - (now - self._at) * RATE) + 1
        self._at = now
        return max(0.0, self._spent - BURST) / RATE


class Groups:
    """Keeps a request at rank 0's agent of every running job that may be restarted in place."""

    def __init__(self, settings: Settings, desk: Desk, silence: Silence) -> None:
        self._settings, self._desk, self._silence = settings, desk, silence
        self._news = asyncio.Event()
        self._talks: dict[str, tuple[_Talk, asyncio.Task[None]]] = {}  # by uid of the pod
        self._held = 0
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._most_held = most_held()
        self._bringing = asyncio.Semaphore(BRINGING)
        self._of_namespace = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(1))

    def __len__(self) -> int:
        """Return the number of jobs that are asked."""
        return len(self._talks)

    def tell(self, pod_uid: str, order: Order) -> None:
        """Have the order given at once, if it is another one."""
        if pod_uid in self._talks:
            self._talks[pod_uid][0].give(order)
        elif order.members:  # another pod has become rank 0's, and may run
            self._news.set()

    async def run(self, http: AgentHttp) -> None:
        """Ask until cancelled."""
        try:
            while True:
                heads = {
                    head.pod.uid: head
                    for head in self._desk.heads()
                    if head.pod.running and knows_all(head.pod)
                }
                for uid in self._talks.keys() - heads.keys():
                    self._talks.pop(uid)[1].cancel()
                    self._silence.forget(uid)
                for uid, head in heads.items():
                    if uid not in self._talks:
                        talk = _Talk(head.order)
                        task = asyncio.create_task(self._follow(http, head, talk))
                        self._talks[uid] = talk, task
                    self.tell(uid, head.order)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._news.wait()
                        await asyncio.sleep(NEWS_SECONDS)  # of many jobs, perhaps
                self._news.clear()
        finally:
            for _, task in self._talks.values():
                task.cancel()
            self._talks.clear()

    async def _follow(self, http: AgentHttp, head: Head, talk: _Talk) -> None:
        """Ask one agent until cancelled."""
        while True:
            await asyncio.sleep(talk.pause())
            if not head.pod.token:
                token = await self._desk.old_token(head.job, head.pod)
                head = head._replace(pod=replace(head.pod, token=token))
            await self._lead(http, head, talk)
            page = await self._ask(http, head, talk)
            if page is not None:
                talk.serial, talk.stamp, talk.missed = page.serial, page.stamp, 0
                unheard = {each.node_rank: each.seconds for each in page.unheard}
                if page.round == talk.order.round:  # else they may be replaced by now
                    self._silence.heard(head._replace(order=talk.order), unheard)
                report = page.progress.report() if page.progress else None
                self._desk.take_answer(head.job, report, page.round_status())
                if page.lacks_program:
                    await self._bring(http, head, talk)

    async def _lead(self, http: AgentHttp, head: Head, talk: _Talk) -> None:
        """Tell the other pods where rank 0's pod is, if that has replaced another one."""
        missing = talk.order.members - talk.told

        async def tell(pod: PodRecord) -> None:
            headers = {"Authorization": f"Bearer {head.pod.token}"}
            async with self._at_once:
                found = await http.read(pod, f"/head?{head.pod.ip}", _Hostile, headers)
            if found is not None:
                talk.told |= {pod.uid}

        pods = self._desk.pods(head.job) if missing else ()
        await asyncio.gather(*(tell(pod) for pod in pods if pod.uid in missing and pod.running))
        talk.told &= talk.order.members

    async def _bring(self, http: AgentHttp, head: Head, talk: _Talk) -> None:
        """Have the agent get what ranks are ordered to run, which it lacks. It gets it once."""
        wanted = talk.order.program
        if wanted in ("", talk.program):
            return
        headers = {"Authorization": f"Bearer {head.pod.token}"}
        async with self._of_namespace[head.job.namespace], self._bringing:
            content = await self._desk.program(head.job, wanted)
            post = partial(http.read, head.pod, "/program", _Hostile, headers, BRING_SECONDS)
            is_there = content and await post(content=content) is not None
        if is_there:
            talk.program, talk.unbrought = wanted, 0
        else:
            talk.unbrought += 1
            await asyncio.sleep(pause_after(talk.unbrought, PAUSE_SECONDS, MOST_PAUSE_SECONDS))

    async def _ask(self, http: AgentHttp, head: Head, talk: _Talk) -> GroupPage | None:
        """Return the answer; None if there is none, or the order has changed meanwhile."""
        is_held, pod = self._held < self._most_held, head.pod
        seconds = self._settings.progress_poll
        if pod.node_timeout:  # an agent that hears nobody for somewhat less ends its ranks
            seconds = min(seconds, pod.node_timeout / 3)
        if talk.order.members != talk.told:  # some have to be told yet
            seconds = min(seconds, PAUSE_SECONDS)
        if not is_held:
            await asyncio.sleep(seconds)
            seconds = 0
        self._held += is_held
        async with nullcontext() if is_held else self._at_once:
            talk.request = asyncio.create_task(
                fetch_group(http, pod, talk.order, seconds, after=talk.serial, heard=talk.stamp)
            )
            try:
                answer = await talk.request
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    talk.request.cancel()
                    raise
                return None
            finally:
                self._held -= is_held
        if answer is None:
            self._silence.heard(head._replace(order=talk.order), None)
            talk.missed += 1
            await asyncio.sleep(pause_after(talk.missed, PAUSE_SECONDS, MOST_PAUSE_SECONDS))
        return answer


def most_held() -> int:
    """Return how many requests may be held: 0 to MOST_HELD."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_HELD if soft == resource.RLIM_INFINITY else min(MOST_HELD, soft - OTHER_DESCRIPTORS)


def knows_all(pod: PodRecord) -> bool:
    """Whether rank 0's agent in this pod knows of the other nodes."""
    return pod.in_place or pod.node_timeout > 0


async def fetch_group(
    http: AgentHttp,
    pod: PodRecord,
    order: Order,
    seconds: float,
    *,
    after: int = 0,
    heard: float | None = None,
) -> GroupPage | None:
    """Give an agent an order, and return its answer once there is more than the one `after`.

    It is to wait for news for so many seconds; `heard` is the stamp of that answer. Returns None if
    it does not answer, or not as the agent of this pod.
    """
    hold = math.ceil(seconds)
    query = f"round={order.round}&after={after}&hold={hold}&ends={int(order.ends)}"
    if heard is not None:
        query += f"&heard={heard!r}"
    if order.pods:
        query += f"&pods={order.pods}&since={order.made[1]}"
    if order.size:
        query += f"&size={order.size}"
    if order.held:
        query += "&held=1"
    if order.program:
        query += f"&program={order.program}"
    headers = {"Authorization": f"Bearer {pod.token}"}
    within = hold + LATE_SECONDS if pod.node_timeout or not hold else REQUEST_SECONDS
    page = await http.read(pod, f"/group?{query}", GroupPage, headers, within)
    return page if page is not None and page.is_of(pod) else None
