"""Finds silent nodes: those that neither rank 0's agent nor the operator hears.

Rank 0's agent names the nodes that it has not heard lately, and the operator asks their agents
itself. If rank 0's own agent does not answer, the operator asks some other nodes whether they have
lost it too. If rank 0 has ended because it heard neither the others nor an operator, which may have
been on the same lost node, the next operator asks those that have not ended. A node that hears
nobody has ended its ranks by the time it counts as silent; an operator that is cut off from all of
a job's agents finds nobody who has lost rank 0, and does nothing. Pods of somebody's write the
answers, so the answers are hostile: whoever has all of them lie makes his own job restart, no more
often than its pods take to start.
"""

import asyncio
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from ddpjob.controller.agenthttp import AgentHttp
from ddpjob.controller.memory import Desk, Head
from ddpjob.plan.model import Made, PodRecord
from ddpjob.plan.restart import heard_nobody
from ddpjob.plan.termination import ProgressPage

# So many requests in a row must have had no answer, and for this part of the time-out.
LEAST_MISSED, MISSED_PART = 3, 1 / 3
# So many other nodes, by chance, are asked whether they have lost rank 0 too. Those that do not
# answer either may have gone with it. While nobody answers, they are asked less and less: the
# operator may be cut off itself, with a thousand jobs.
WITNESSES = 16
# A node that has lost rank 0 ends its ranks first. Rank 0's own may end later, as it may have heard
# the others until a little later than they heard it.
LATER_PART = 1.1
# After this part of the time-out a node that hears nobody ends its ranks: LEASE in the agent.
LEASE_PART = 0.85
# Nodes that fail together were last heard at most two heartbeats apart, each a tenth of the
# time-out, and their answers are missed one round of requests apart. Who has all but this part of
# the time-out behind it is waited for, so that one restart leaves all of them.
TOGETHER_PART = 0.3
# After this part of the time-out without rank 0, a node says that it has lost it.
LOST_PART = 0.5
# A request has this part of the time-out for its answer, the next one comes after a pause of that
# part, and what they have brought is judged so often.
ANSWER_PART, PAUSE_PART, JUDGE_PART = 1 / 10, 1 / 15, 1 / 60
MOST_ANSWER_SECONDS, MOST_PAUSE_SECONDS = 2.0, 10.0
# New jobs, and those whose rank 0 has ended, are looked for so often.
LOOK_SECONDS = 2.0
# An agent that was there before this operator has answered by then, or has not: a connection takes
# its time.
FIRST_SECONDS = 10.0
# After so many requests in a row without an answer the pause doubles with each, so that an operator
# that a NetworkPolicy keeps from all agents has time for its other work.
PATIENCE = 5
# All requests at a time, and those of one job: fewer, the more jobs have suspects.
MOST_ASKED, MOST_OF_A_JOB, LEAST_OF_A_JOB = 512, 64, 8


class MemberPage(ProgressPage):
    """The answer at `/progress` of a node's agent."""

    unheard_seconds: Annotated[float, Field(ge=0, lt=2**31)] | None = None
    """For how long it has not heard rank 0; None if it does not listen, or never heard it."""


@dataclass
class Evidence:
    """What is known of the nodes of one attempt. Times are the operator's own, monotonic."""

    timeout: float
    """`nodeTimeoutSeconds` of its pods."""
    heard_at: float
    """The last answer of rank 0's agent."""
    made: Made = (0, 0)
    """The kind of the latest pods."""
    unheard: dict[int, float] = field(default_factory=dict)
    """When rank 0's agent last heard each node that it has not heard lately."""
    missed: dict[int, list[float]] = field(default_factory=dict)
    """When the operator noticed each request without an answer, since the last answer."""
    lost: dict[int, float] = field(default_factory=dict)
    """When nodes last heard rank 0, by their own word."""
    hearing: set[int] = field(default_factory=set)
    """Nodes that hear rank 0, by their own word."""
    ended: dict[int, float] = field(default_factory=dict)
    """When nodes were first seen to have ended because they heard nobody."""
    is_over: bool = False
    """Rank 0 is one of them, so what is left are nodes that it has lost."""
    is_met: bool = False
    """Rank 0's agent has answered before."""
    unanswered: int = 0
    """Rounds of requests in a row in which rank 0 was asked, and nobody at all has answered."""

    def answer(self, now: float, unheard: Mapping[int, float]) -> None:
        """Take in an answer of rank 0's agent."""
        self.heard_at, self.is_met = now, True
        self.unheard = {rank: now - seconds for rank, seconds in unheard.items() if rank != 0}
        self.found(0, now)
        self.lost.clear()
        self.hearing.clear()

    def found(self, rank: int, now: float) -> None:
        """Take in that a node has answered."""
        self.missed.pop(rank, None)
        if self.unanswered:  # it was the operator that was cut off, so all begins anew
            self.missed = {0: [now]} if 0 in self.missed else {}
            self.unanswered = 0

    def miss(self, rank: int, now: float) -> None:
        """Take in that a node has not answered."""
        times = self.missed.setdefault(rank, [])
        # The first one, and as many of the latest as decide.
        times[1:] = [*times[1:], now][-LEAST_MISSED:]

    def witness(self, rank: int, now: float, unheard_seconds: float | None) -> None:
        """Take in what another node says of rank 0."""
        if unheard_seconds is None:
            return
        if unheard_seconds < LOST_PART * self.timeout:
            self.hearing.add(rank)
            self.lost.pop(rank, None)
        else:
            self.hearing.discard(rank)
            self.lost[rank] = now - unheard_seconds

    def is_due(self, now: float) -> bool:
        """Whether to ask the suspects. An agent that never answered may still be starting."""
        since = self.missed.get(0, [now])[0]
        return bool(self.suspects()) and (self.is_met or now - since >= MISSED_PART * self.timeout)

    def suspects(self) -> list[int]:
        """Return the nodes that are to be asked."""
        return [*([0] if self.missed.get(0) else []), *self.unheard]

    def silent(self, now: float) -> frozenset[int]:
        """Return the nodes that are silent."""
        if self.is_over:
            gone = frozenset(rank for rank in self.missed if self._is_missing(rank, now))
            return gone if self._has_ended(0, now) else frozenset()
        if 0 not in self.missed:
            found = frozenset(
                rank
                for rank, at in self.unheard.items()
                if now - at >= self.timeout and self._is_missing(rank, now)
            )
            return found if found == self._leaving(now) else frozenset()
        if not (self._is_missing(0, now) and self._has_lost_0(now)):
            return frozenset()
        # Whoever has lost rank 0 ends its ranks: nobody else hears it.
        return frozenset(rank for rank in self.missed if self._is_missing(rank, now))

    def _leaving(self, now: float) -> frozenset[int]:
        """Return the nodes that are silent, or will be soon if nobody hears them."""
        soon = (1 - TOGETHER_PART) * self.timeout
        late = MISSED_PART * self.timeout
        return frozenset(
            rank
            for rank, at in self.unheard.items()
            if now - at >= soon
            and rank in self.missed
            and (self._is_missing(rank, now) or now - at < self.timeout + late)
        )

    def _is_missing(self, rank: int, now: float) -> bool:
        """Whether the operator itself does not hear a node."""
        times = self.missed.get(rank, [])
        enough = len(times) >= LEAST_MISSED and now - times[0] >= MISSED_PART * self.timeout
        return enough and (rank != 0 or now - self.heard_at >= self.timeout)

    def _has_lost_0(self, now: float) -> bool:
        """Whether other nodes have lost rank 0 too, and for so long that it has ended its ranks."""
        said = any(now - at >= LATER_PART * self.timeout for at in self.lost.values())
        ended = any(self._has_ended(rank, now) for rank in self.ended)
        return (said or ended) and not self.hearing

    def _has_ended(self, rank: int, now: float) -> bool:
        """Whether a node has ended for want of others for so long that those have ended too."""
        over = (LATER_PART - LEASE_PART) * self.timeout  # what a node's own end leaves of the time
        return now - self.ended.get(rank, now) >= over


class Silence:
    """Follows up what rank 0's agents, and their silence, say of nodes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._evidence: dict[str, Evidence] = {}  # by uid of rank 0's pod
        self._inquiries: dict[str, asyncio.Task[None]] = {}
        self._asked = asyncio.Semaphore(MOST_ASKED)
        self._http: AgentHttp | None = None
        self._begun_at, self._alone = -math.inf, 0.0

    async def run(self, http: AgentHttp, alone: float = 0.0) -> None:
        """Ask until cancelled.

        For so many seconds no operator had worked when this one began, so no rank 0 had heard any:
        also one that the last operator reached, and this one does not.
        """
        self._http, self._begun_at, self._alone = http, time.monotonic(), alone
        over = dict[str, Head]()
        try:
            while True:
                known = over.keys()
                over = {head.pod.uid: head for head in self._desk.heads() if self._is_over(head)}
                for uid in known - over.keys():
                    self.forget(uid)
                for head in over.values():
                    evidence = self._evidence_of(head)
                    evidence.is_over = True
                    self._look_into(head, evidence)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._inquiries.values():
                task.cancel()
            self._http = None

    def heard(self, head: Head, unheard: Mapping[int, float] | None) -> None:
        """Take in which nodes rank 0's agent has not heard; None if it has not answered itself."""
        if not head.pod.node_timeout:
            return
        now, evidence = time.monotonic(), self._evidence_of(head)
        if unheard is None:
            evidence.miss(0, now)
        else:
            evidence.answer(now, unheard)
        if evidence.is_due(now):
            self._look_into(head, evidence)

    def _is_over(self, head: Head) -> bool:
        """Whether rank 0 has ended because it heard nobody, and others have not ended."""
        if head.pod.running or not head.pod.node_timeout or not heard_nobody(head.pod):
            return False
        return any(pod.running for pod in self._own(head))

    def _evidence_of(self, head: Head) -> Evidence:
        uid, made = head.pod.uid, head.order.made
        if uid in self._evidence and self._evidence[uid].made != made:
            self.forget(uid)  # it may be about pods that have been replaced
        if uid not in self._evidence:
            now = time.monotonic()
            is_first = now - self._begun_at < FIRST_SECONDS
            heard_at = self._begun_at - self._alone if is_first else now
            # Another operator has met it.
            is_met = is_first and self._alone > 0
            self._evidence[uid] = Evidence(head.pod.node_timeout, heard_at, made, is_met=is_met)
        return self._evidence[uid]

    def _look_into(self, head: Head, evidence: Evidence) -> None:
        """Inquire, if nobody does yet."""
        uid = head.pod.uid
        if uid not in self._inquiries and self._http is not None:
            task = asyncio.create_task(self._inquire(self._http, head, evidence))
            self._inquiries[uid] = task
            task.add_done_callback(lambda _: self._inquiries.pop(uid, None))

    def forget(self, uid: str) -> None:
        """Forget an attempt, by the uid of rank 0's pod."""
        self._evidence.pop(uid, None)
        if task := self._inquiries.get(uid):
            task.cancel()

    async def _inquire(self, http: AgentHttp, head: Head, evidence: Evidence) -> None:
        """Ask suspects, and judge them, until there are none."""
        told = frozenset[int]()
        asking = asyncio.create_task(self._keep_asking(http, head, evidence))
        try:
            while evidence.is_over or evidence.suspects():
                silent = evidence.silent(time.monotonic())
                running = {pod.rank for pod in self._own(head) if pod.running}
                if (silent & running) != told:
                    told = silent & running
                    self._desk.take_silent(head.job, evidence.made, told)
                await asyncio.sleep(evidence.timeout * JUDGE_PART)
        finally:
            asking.cancel()
        if told:
            self._desk.take_silent(head.job, evidence.made, frozenset())

    async def _keep_asking(self, http: AgentHttp, head: Head, evidence: Evidence) -> None:
        """Ask suspects, and others about rank 0, until cancelled."""
        while True:
            own = self._own(head)
            for pod in filter(heard_nobody, own):  # they have ended for it
                evidence.ended.setdefault(pod.rank, time.monotonic())
            running = {pod.rank: pod for pod in own if pod.running and pod.ip}
            evidence.hearing.intersection_update(running)  # others say nothing any more
            suspects = evidence.suspects()
            others = sorted(running.keys() - {0, *evidence.unheard}) if 0 in suspects else []
            if evidence.is_over:
                suspects, others = sorted(running), []
            most = MOST_ASKED // max(1, len(self._inquiries))
            room = asyncio.Semaphore(max(LEAST_OF_A_JOB, min(MOST_OF_A_JOB, most)))
            witnesses = random.sample(others, min(WITNESSES, len(others)))
            targets = (running[r] for r in (*suspects, *witnesses) if r in running)
            asked = (self._ask(http, room, pod, evidence) for pod in targets)
            is_cut_off = not any(await asyncio.gather(*asked)) and 0 in evidence.suspects()
            evidence.unanswered = evidence.unanswered + 1 if is_cut_off else 0
            pause = min(evidence.timeout * PAUSE_PART, MOST_PAUSE_SECONDS)
            await asyncio.sleep(pause_after(evidence.unanswered, pause, evidence.timeout))

    def _own(self, head: Head) -> list[PodRecord]:
        """The pods of the attempt that have ranks, those last that have replaced others."""
        pods = (pod for pod in self._desk.pods(head.job) if pod.attempt == head.pod.attempt)
        placed = (pod for pod in map(head.order.placed, pods) if pod.rank >= 0)
        return sorted(placed, key=lambda pod: pod.since)

    async def _ask(
        self,
        http: AgentHttp,
        room: asyncio.Semaphore,
        pod: PodRecord,
        evidence: Evidence,
    ) -> bool:
        """Ask one node; whether it has answered."""
        seconds = min(evidence.timeout * ANSWER_PART, MOST_ANSWER_SECONDS)
        async with room, self._asked:
            page = await http.read(pod, "/progress", MemberPage, seconds=seconds)
        now = time.monotonic()
        if page is None or not page.is_of(pod):
            evidence.miss(pod.rank, now)
            return False
        evidence.found(pod.rank, now)
        if pod.rank == 0:
            evidence.heard_at = now
        else:
            evidence.witness(pod.rank, now, page.unheard_seconds)
        return True


def pause_after(missed: int, first: float, most: float) -> float:
    """Return the seconds to wait after so many requests in a row without an answer."""
    return min(most, first * 2.0 ** min(32, max(0, missed - PATIENCE)))
