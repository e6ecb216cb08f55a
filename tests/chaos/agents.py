"""Played agents of pods that may restart in place, as the operator meets them.

What rank 0's agent knows and says is the real one's (`ddpjob_agent.nodes.group`). The nodes' lives
follow `ddpjob_agent.rounds`, but nothing in them takes any time.
"""

import asyncio
import json
import math
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from ddpjob import names
from ddpjob.json_depth import Body
from ddpjob.local.network import Loopback
from ddpjob.pods.program import print_of as print_of_program
from ddpjob_agent.config import NO_RENDEZVOUS, SILENT
from ddpjob_agent.nodes.group import CLEAN, FAILED, RUNNING, Group, Node, failure_of, print_of
from ddpjob_agent.nodes.lease import Beat, Head, Lease, Member
from ddpjob_agent.nodes.reading import read_pods
from ddpjob_agent.rounds import HEAD_SECONDS, REPLACED_SECONDS, WAIT_SECONDS
from ddpjob_agent.server import seconds, whole
from tests.chaos.network import Network, Trouble, node_of
from tests.chaos.rounds import Deed, What, placed

Answers = Callable[[str, Mapping[str, str], str], Awaitable[Body | None]]
"""(path, query, token) → a page, or None to hang up."""
Fate = Callable[[int, int, int], int | None]
"""(attempt, round, node rank) → exit code of its ranks, None to run on."""
SECONDARY = 86  # the exit code of ranks that have failed because of others
REASONS = {0: "Completed", NO_RENDEZVOUS: "Rendezvous", SILENT: "NodeSilent"}
NO_ANSWER_PART = 0.1  # of the node timeout: so long the operator waits for an answer
# Nobody counts as silent before so much of the times that docs/operations.md promises; the rest is
# for what is rounded.
NEARLY = 0.95


@dataclass(frozen=True)
class Play:
    """What becomes of a job's nodes."""

    fate: Fate
    stuck: tuple[int, ...] = ()
    """Nodes of the first attempt whose ranks nothing ends in round 0 but another order."""
    unheard: bool = False
    """In the first attempt no order of another round arrives; the failed do not wait for it."""
    troubles: tuple[Trouble, ...] = ()
    """What befalls the first attempt's nodes. If it ends before the attempt, its ranks end well."""


@dataclass
class _Pod:
    """A node as it is."""

    body: Body
    rank: int
    since: int
    """The first round of a pod that is there in the place of another one."""
    lease: Lease | None = None
    follows: str = ""
    """The name of the pod of rank 0 with which it is in touch."""
    round: int = 0
    state: str = ""  # none of the group's yet, one of those, or `over`
    code: int = 0
    reads: bool = True  # its ranks' fate in this round is open
    timer: asyncio.TimerHandle | None = None
    is_stopped: bool = False
    is_unheard: bool = False
    program: str = ""
    """The print of what its ranks run; "" of what the attempt's first pods were made with."""
    args: tuple[str, ...] = ()
    """What that is: the arguments."""
    reached_at: float = -math.inf
    """When the operator could reach its agent."""
    answered_at: float = math.inf
    """When its agent answered the operator, from the first answer on."""

    @property
    def print(self) -> str:
        """That of its uid."""
        return print_of(self.body["metadata"]["uid"])

    @property
    def node(self) -> str:
        """The node's name."""
        return node_of(self.body)

    @property
    def message(self) -> str:
        """The termination message."""
        said = {
            "version": 1,
            "reason": REASONS.get(self.code, "ExitCode"),
            "round": self.round,
            "exit_code": self.code,
            "message": f"exit code {self.code}" if self.code else "",
            "peer": self.code in (SECONDARY, SILENT),
            "time": time.time(),
        }
        return json.dumps(said)


class PlayedGroup:
    """All nodes of an attempt."""

    def __init__(
        self,
        play: Play,
        pod: Body,
        note: Callable[[Deed], None],
        end: Callable[[Body, int, str], None],
        network: Network | None = None,
    ) -> None:
        """`pod` is any of them; `end` is told when a pod ends: its exit code and last message."""
        env = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
        self.attempt, self.uid = int(_labels(pod)[names.ATTEMPT_LABEL]), _labels(pod)[_UID]
        self._play, self._note, self._end, self._network = play, note, end, network
        self.pods: dict[int, _Pod] = {}
        self.former: list[_Pod] = []
        """Those that have been replaced before they had ended."""
        self.spares: list[_Pod] = []
        """Those that have no rank."""
        self.members: dict[int, Member] = {}
        self._timeout = float(env.get("DDPJOB_NODE_TIMEOUT") or 0)
        self._keeps = bool(env.get("DDPJOB_KEEP_SECONDS"))
        self._head = names.pod_name(_labels(pod)[names.JOB_LABEL], self.attempt, 0)
        self.programs: dict[str, tuple[str, ...]] = {}
        """What rank 0's agent has got for ranks to run, by its print."""
        self.news = asyncio.Event()
        self._make_group(int(env["DDPJOB_NNODES"]))

    def _make_group(self, nnodes: int) -> None:
        """Rank 0's agent begins, and nobody is in touch with it."""
        self.group = Group(nnodes, self.hurry)
        self.group.has = lambda program: program in self.programs
        self.programs = {}
        self._serial = self.group.serial
        if self._network is not None:
            self.group.head = Head(self._timeout, self._network.clock.monotonic)
            for rank in range(1, nnodes):
                self._watch(rank)

    def _watch(self, rank: int) -> None:
        self.members[rank] = Member(rank, self._timeout)
        if rank in self.pods:
            self.pods[rank].lease = self.members[rank].lease

    def see(self, body: Body) -> None:
        """Take in a pod that runs."""
        _, rank, since = placed(body, {})
        (trainer,) = body["spec"]["containers"]
        env = {v["name"]: v.get("value") for v in trainer["env"]}
        pod = _Pod(body, rank, since, follows=str(env["MASTER_ADDR"]).partition(".")[0])
        pod.program, pod.args = str(env.get("DDPJOB_PROGRAM") or ""), tuple(trainer["args"])
        if pod.program == names.FIRST_PROGRAM:
            pod.program = ""
        if rank < 0:
            self.spares.append(pod)
            return self._promote()
        old = self.pods.get(rank)
        if old is not None and old.since >= since:
            return
        self._enter(pod)

    def _enter(self, pod: _Pod) -> None:
        """A pod has its rank from now on."""
        old = self.pods.get(pod.rank)
        if old is not None and old.state != "over":
            self.former.append(old)
        self.pods[pod.rank] = pod
        if pod.since:
            self._replace(pod)
        elif len(self.pods) == self.group.nnodes:
            if self._network is not None:
                for each in self.pods.values():
                    self._share_lease(each)
            for each in self.pods.values():
                if not each.state:
                    self._tell(each.rank, each, RUNNING, 0, "begins")
        self.go_on()

    def _promote(self) -> None:
        """Let spares have the ranks that rank 0's agent tells them."""
        for pod in list(self.spares):
            place = self.group.place_of(pod.print) if pod.follows == self._head else None
            if place and (self._network is None or not self._network.is_stopped(pod.node)):
                self._get(pod, *place)

    def _resize(self) -> None:
        """Let pods of ranks that the group has no more get others, or end.

        They go on until their next round is ordered.
        """
        size = self.group.nnodes
        for pod in [pod for pod in self.pods.values() if pod.rank >= size]:
            place = self.group.place_of(pod.print)
            if place and place[1] > self.group.order.round and pod.state != "over":
                continue
            del self.pods[pod.rank]
            self.members.pop(pod.rank, None)
            if pod.state == "over":
                continue
            self._note(self._deed("ends", pod.rank, pod.round, pod.since))  # with this rank
            if place is None:
                self.former.append(pod)
                self._over(pod.rank, pod)
                continue
            pod.rank, pod.since = place
            self._enter(pod)

    def _get(self, spare: _Pod, rank: int, since: int) -> None:
        self.spares.remove(spare)
        spare.rank, spare.since = rank, since
        self._enter(spare)

    def _share_lease(self, pod: _Pod) -> None:
        assert self.group.head is not None
        pod.lease = self.members[pod.rank].lease if pod.rank else self.group.head.lease

    def _replace(self, pod: _Pod) -> None:
        """A pod begins in the place of another one."""
        pod.reads = False
        if pod.rank == 0:
            self._head = pod.follows = pod.body["metadata"]["name"]
            self._make_group(self.group.nnodes)
        elif self._network is not None:
            self._watch(pod.rank)
        if self._network is not None:
            self._share_lease(pod)
        self._tell(pod.rank, pod, CLEAN, pod.since, "clean")

    def follow(self, pod: _Pod) -> None:
        """Have a node, or a spare, be in touch with the pod that is rank 0's now."""
        if pod in self.spares:
            pod.follows = self._head
            return self._promote()
        rank = pod.rank
        if pod.follows != self._head:
            pod.follows = self._head
            if self._network is not None and rank:
                self._watch(rank)
            self._say(pod)
            self.go_on()

    def find(self, body: Body) -> _Pod | None:
        """A node's pod, or a spare; None where another pod is there in its place."""
        uid, every = body["metadata"]["uid"], [*self.pods.values(), *self.spares]
        return next((pod for pod in every if pod.body["metadata"]["uid"] == uid), None)

    def lead(self, spare: _Pod, pods: Mapping[int, str], since: int, size: int) -> None:
        """Have another pod be rank 0's, if the operator's order to it says so."""
        if pods.get(0) != spare.print:
            return
        self.group.nnodes = size or self.group.nnodes
        if spare in self.spares:
            self.spares.remove(spare)
        else:
            del self.pods[spare.rank]
            self.members.pop(spare.rank, None)
            self._note(self._deed("ends", spare.rank, spare.round, spare.since))
        spare.rank, spare.since = 0, since
        self._enter(spare)

    def lose(self, body: Body) -> None:
        """Take in that a pod is deleted, or has ended."""
        uid = body["metadata"]["uid"]
        self.spares = [pod for pod in self.spares if pod.body["metadata"]["uid"] != uid]
        every = [*self.pods.values(), *self.former]
        for pod in [each for each in every if each.body["metadata"]["uid"] == uid]:
            if pod.state != "over":
                self._leave(pod.rank, pod)
                self.go_on()

    def hurry(self) -> None:
        """Have `go_on` called soon."""
        asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Let everything happen that may."""
        while any([self._go_on(rank, pod) for rank, pod in self.pods.items()]):
            pass
        if self._serial != self.group.serial:
            self._serial = self.group.serial
            self.news.set()
            self.news = asyncio.Event()

    def fail(self, rank: int, code: int) -> bool:
        """Let a node's ranks end with this code; whether they were running."""
        pod = self.pods.get(rank)
        if pod is None or pod.state != RUNNING:
            return False
        self._fall(rank, pod, code)
        self.go_on()
        return True

    def bring(self, line: bytes) -> None:
        """Take what ranks may be ordered to run."""
        self.programs[print_of_program(line)] = tuple(json.loads(line)["args"])
        self.hurry()

    def deed(self, what: What, rank: int, number: int) -> None:
        """Say what has been done."""
        pod = self.pods[rank]
        deed = self._deed(what, rank, number, pod.since)
        self._note(replace(deed, args=pod.args) if what == "begins" else deed)

    def _deed(self, what: What, rank: int, number: int, since: int) -> Deed:
        at = asyncio.get_running_loop().time()
        return Deed(what, self.uid, self.attempt, number, rank, at, since)

    def order(
        self,
        number: int,
        ends: bool,
        pods: Mapping[int, str],
        since: int,
        size: int,
        program: str,
        *,
        is_held: bool,
    ) -> bool:
        """Take the operator's order; whether it has arrived."""
        if self._play.unheard and self.attempt == 0 and number > 0:
            for rank, pod in self.pods.items():
                if pod.state == FAILED:
                    self._over(rank, pod)
            return False
        self.group.want(number, ends, pods, since, size, program, is_held=is_held)
        self._resize()
        self._promote()
        for pod in self.pods.values():  # they ask again, with what they are
            self._say(pod)
        self.go_on()
        return True

    async def answer(self, after: int | None, hold: int) -> Body:
        """The page /group, once there is more to tell."""
        with suppress(TimeoutError):
            async with asyncio.timeout(hold):
                until = self._now() + hold
                while self.group.serial == after and self._now() < until:
                    if self.group.lacks_program():
                        break
                    await self.news.wait()
        return self.page()

    def page(self) -> Body:
        """The page /group; nothing is known of steps."""
        about = self.progress(0)
        return {**about, **self.group.page(), "progress": about}

    def progress(self, rank: int) -> Body:
        """The page /progress of a node; nothing is known of steps."""
        labels, member = _labels(self.pods[rank].body), self.members.get(rank)
        return {
            "namespace": self.pods[rank].body["metadata"]["namespace"],
            "job": labels[names.JOB_LABEL],
            "attempt": self.attempt,
            "node_rank": rank,
            "round": self.pods[rank].round,
            "source": "none",
            **({} if member is None else member.page(self._now())),
        }

    async def is_heard(self, pod: _Pod) -> bool:
        """Whether the operator hears this pod's agent now; if not, it has waited in vain."""
        network = self._network
        if pod.state == "over":
            return False
        if network is None or network.reaches(pod.node, "operator"):
            pod.answered_at = self._now()
            return True
        await network.clock.sleep(NO_ANSWER_PART * self._timeout)
        return False

    def turn(self) -> None:
        """Let some time have passed: heartbeats come, or do not, and leases end."""
        network, head = self._network, self.group.head
        if network is None or head is None or len(self.pods) < self.group.nnodes:
            return
        self.spares = [pod for pod in self.spares if not network.is_dead(pod.node)]
        for pod in [*self.pods.values(), *self.former]:
            if pod.state != "over":
                self._befall(network, pod.rank, pod)
        for rank, member in self.members.items():
            if self.pods[rank].follows == self._head:
                self._beat(network, head, rank, member)
        if self._is_up(0):
            head.look(self._now())
            if head.take_news():
                self.group.count()
        for rank, pod in self.pods.items():
            if self._is_up(rank) and network.reaches(pod.node, "operator"):
                pod.reached_at = self._now()
            is_unheard = self._is_unheard(head, rank)
            if is_unheard != pod.is_unheard:
                pod.is_unheard = is_unheard
                self.deed("unheard" if is_unheard else "heard", rank, pod.round)
        self.go_on()
        self.news.set()  # whoever waits for news looks at the clock
        self.news = asyncio.Event()

    def _befall(self, network: Network, rank: int, pod: _Pod) -> None:
        """Let a node die, stop or go on, or its lease end."""
        was_stopped, pod.is_stopped = pod.is_stopped, network.is_stopped(pod.node)
        if pod.is_stopped != was_stopped:
            what: What = "stops" if pod.is_stopped else "goes-on"
            self._note(self._deed(what, rank, pod.round, pod.since))
        is_lost = not pod.is_stopped and pod.lease and pod.lease.is_lost(self._now())
        if network.is_dead(pod.node):
            self._leave(rank, pod)
        elif is_lost and (rank == 0 or pod in self.former):
            pod.code = SILENT
            self._over(rank, pod)
        elif is_lost and pod.state == RUNNING:  # it waits for another pod of rank 0
            pod.code = SILENT
            self._tell(rank, pod, FAILED, pod.round, "fails")

    def _beat(self, network: Network, head: Head, rank: int, member: Member) -> None:
        """Let a node send a heartbeat, if it is due, and rank 0 answer it."""
        now = self._now()
        if not self._is_up(rank) or now < member.due:
            return
        place = self.group.place_of(self.pods[rank].print)
        beat = replace(member.beat(now), node_rank=place[0] if place else rank)
        if self._is_up(0) and self._are_joined(network, rank):
            answer = head.take(beat, None, now)
            if answer is not None:
                member.take(answer, now)

    def _are_joined(self, network: Network, rank: int) -> bool:
        """Whether a node and rank 0 hear each other."""
        nodes = (self.pods[rank].node, self.pods[0].node)
        return all(network.reaches(node, "rank 0") for node in nodes)

    def _is_up(self, rank: int) -> bool:
        """Whether a node's agent does anything."""
        pod = self.pods[rank]
        return pod.state != "over" and not pod.is_stopped

    def _is_unheard(self, head: Head, rank: int) -> bool:
        """Whether a node may count as silent, by what docs/operations.md says of it."""
        pod, now, timeout = self.pods[rank], self._now(), NEARLY * self._timeout
        if rank == 0:
            lost = all(now - each.lease.at >= timeout for each in self.members.values())
            return lost and now - pod.answered_at >= timeout
        heard = head.members.get(rank)
        missed = heard is not None and now - heard.arrived >= timeout
        return missed and now - pod.reached_at >= timeout / 3

    def _now(self) -> float:
        if self._network is not None:
            return self._network.clock.monotonic()
        return asyncio.get_running_loop().time()

    def _go_on(self, rank: int, pod: _Pod) -> bool:
        """Let one thing happen to a node; whether it did."""
        order, network = self.group.order, self._network
        if pod.follows != self._head or network is not None and not self._is_up(rank):
            return False
        if pod.state == RUNNING and network is not None and self.attempt == 0 and network.is_over:
            self._fall(rank, pod, 0)
        elif pod.state == RUNNING and pod.reads:
            pod.reads = False
            code = self._play.fate(self.attempt, pod.round, rank)
            if code is not None:
                self._fall(rank, pod, code)
        elif pod.state == CLEAN and order.begun >= pod.round:
            pod.reads = True
            self._tell(rank, pod, RUNNING, pod.round, "begins")
        elif pod.state in (RUNNING, FAILED) and order.round > pod.round:
            if (self.attempt, order.round) == (0, 1) and rank in self._play.stuck:
                return False
            return self._clean(rank, pod)
        elif pod.state == CLEAN and (order.round > pod.round or self._is_another(pod)):
            return self._clean(rank, pod)  # another one has been lost, say
        elif order.ends and (pod.state == FAILED or pod.state == CLEAN and self._keeps):
            self._over(rank, pod)
        else:
            return False
        return True

    def _clean(self, rank: int, pod: _Pod) -> bool:
        """Have a node be clean for the round that is wanted; whether it has what that runs."""
        order = self.group.order
        if self._is_another(pod):
            if order.program not in self.programs:
                return False
            pod.program, pod.args = order.program, self.programs[order.program]
        self._tell(rank, pod, CLEAN, order.round, "clean")
        return True

    def _is_another(self, pod: _Pod) -> bool:
        """Whether the pod's ranks are to run something else than they have."""
        return self.group.order.program not in ("", pod.program)

    def _fall(self, rank: int, pod: _Pod, code: int) -> None:
        """The node's ranks end with this code."""
        pod.code = code
        if code == 0 and not self._keeps:
            self._over(rank, pod)
        else:
            self._tell(rank, pod, FAILED, pod.round, "fails" if code else "rests")

    def _tell(self, rank: int, pod: _Pod, state: str, number: int, what: What) -> None:
        """The node has come to another state, and tells rank 0's agent."""
        if state == CLEAN and not self._keeps:
            pod.code = NO_RENDEZVOUS  # if the round never begins
        pod.state, pod.round = state, number
        self.deed(what, rank, number)
        self._say(pod)
        if pod.timer is not None:
            pod.timer.cancel()
        if state != RUNNING and not self._keeps:
            waits = state == CLEAN and (self.group.order.waits or pod.since == number)
            seconds = REPLACED_SECONDS if waits else WAIT_SECONDS
            loop = asyncio.get_running_loop()
            pod.timer = loop.call_later(seconds, self._tire, rank, pod, HEAD_SECONDS - seconds)

    def _say(self, pod: _Pod) -> None:
        """A node tells rank 0's agent what it is, if it is in touch with that."""
        if pod.follows == self._head and pod.state not in ("", "over"):
            is_failed = pod.state == FAILED
            failure = failure_of(pod.code, pod.message.encode()) if is_failed else None
            node = Node(pod.round, pod.state, failure, pod.program)
            self.group.tell(pod.rank, node, pod.print)

    def _tire(self, rank: int, pod: _Pod, more: float) -> None:
        """The node has waited in vain; for another rank 0 it does so for some `more` seconds."""
        if rank and more > 0 and not self._is_up(0):
            pod.timer = asyncio.get_running_loop().call_later(more, self._over, rank, pod)
        else:
            self._over(rank, pod)

    def _over(self, rank: int, pod: _Pod) -> None:
        """The node has waited in vain, or is done: its pod ends."""
        if pod.state != "over":
            self._leave(rank, pod)
            self._end(pod.body, pod.code, pod.message)

    def _leave(self, rank: int, pod: _Pod) -> None:
        if pod.timer is not None:
            pod.timer.cancel()
        pod.state = "over"
        self._note(self._deed("ends", rank, pod.round, pod.since))
        if pod.rank and self._network is None and self.pods.get(pod.rank) is not pod:
            self.group.bury(pod.print)  # perhaps before its kubelet says so
        self._say_bye(rank, pod)
        self.hurry()

    def _say_bye(self, rank: int, pod: _Pod) -> None:
        """Have the others not miss a node that ends in order."""
        network, head, now = self._network, self.group.head, self._now()
        if network is None or head is None or network.is_dead(pod.node) or pod.code == SILENT:
            return
        if pod in self.former or pod.follows != self._head:
            return
        for each in [rank] if rank else list(self.members):
            if not self._are_joined(network, each):
                continue
            if rank and self._is_up(0):
                head.take(self.members[rank].beat(now, bye=True), None, now)
            elif not rank and self._is_up(each):
                self.members[each].take(Beat(0, now, bye=True), now)


class Doors:
    """Where rank 0's agents listen: each has an address. A context manager.

    It does without asyncio's servers: one that is closed loses a connection that comes just then.
    """

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}  # by uid of the pod
        self._doors: dict[str, socket.socket] = {}  # by uid of the pod
        self._answers: dict[str, Answers] = {}  # by uid of the pod
        self._guests: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for uid in list(self._doors):
            self._shut(uid)
        for task in self._guests:
            task.cancel()

    def address(self, pod: Body) -> str:
        """The address of a pod that is about to run; "" where nobody will ask it."""
        uid = pod["metadata"]["uid"]
        if not waits_to_be_asked_on(pod):
            return ""
        if uid not in self._addresses:
            self._addresses[uid] = address = Loopback().address(uid)
            self._doors[uid] = door = socket.create_server((address, names.AGENT_PORT))
            door.setblocking(False)
            asyncio.get_running_loop().add_reader(door, self._accept, uid)
        return self._addresses[uid]

    def open(self, pod: Body, answers: Answers) -> None:
        """Let what asks at this pod's address be answered."""
        self._answers[pod["metadata"]["uid"]] = answers

    def close(self, pod: Body) -> None:
        """Nobody is at home any more."""
        uid = pod["metadata"]["uid"]
        self._answers.pop(uid, None)
        if uid in self._doors:
            self._shut(uid)

    def _shut(self, uid: str) -> None:
        door = self._doors.pop(uid)
        asyncio.get_running_loop().remove_reader(door)
        door.close()

    def _accept(self, uid: str) -> None:
        with suppress(BlockingIOError):
            guest, _ = self._doors[uid].accept()
            guest.setblocking(False)
            task = asyncio.create_task(self._serve(uid, guest))
            self._guests.add(task)
            task.add_done_callback(self._guests.discard)
            task.add_done_callback(lambda _: guest.close())  # it may never have begun

    async def _serve(self, uid: str, guest: socket.socket) -> None:
        """One request, of which nothing matters but its query, its token and what is posted."""
        loop, head = asyncio.get_running_loop(), b""
        with guest, suppress(OSError):  # nobody waits for it any more
            while b"\r\n\r\n" not in head:
                part = await loop.sock_recv(guest, 4096)
                if not part:
                    return
                head += part
            head, _, content = head.partition(b"\r\n\r\n")
            text, answers = head.decode() + "\r\n", self._answers.get(uid)
            for size in map(int, re.findall("(?i)\r\ncontent-length: ([0-9]+)\r\n", text)):
                while len(content) < size and (part := await loop.sock_recv(guest, 4096)):
                    content += part
            path, _, query = text.split(" ")[1].partition("?")
            words = dict(pair.partition("=")[::2] for pair in query.split("&"))
            words |= {"content": content.decode()} if content else {}
            (token,) = re.findall("(?i)\r\nauthorization: bearer (.*)\r\n", text) or [""]
            if answers is None:
                return
            if (page := await answers(path, words, token)) is not None:
                body = json.dumps(page).encode()
                length = f"Content-Length: {len(body)}"
                answer = f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n".encode() + body
                await loop.sock_sendall(guest, answer)


class Agents:
    """The agents of all pods of a cluster, as far as they may restart in place."""

    def __init__(
        self,
        doors: Doors,
        play: Play,
        note: Callable[[Deed], None],
        end: Callable[[Body, int, str], None],
        network: Network | None = None,
    ) -> None:
        self._doors, self._play, self._network = doors, play, network
        self._note, self._end = note, end
        self._groups: dict[tuple[str, str], PlayedGroup] = {}
        self._seen: dict[str, Body] = {}  # pods that have run, by uid

    def see(self, pod: Body, *, gone: bool = False) -> None:
        """Take in a pod's newer version, or that it is gone."""
        uid, labels = pod["metadata"]["uid"], _labels(pod)
        if not waits_to_be_asked_on(pod) or not self._has_kubelet(pod):
            return
        key = labels[_UID], labels[names.ATTEMPT_LABEL]
        if gone or "deletionTimestamp" in pod["metadata"] or _phase(pod) in ("Succeeded", "Failed"):
            if uid in self._seen and key in self._groups:
                del self._seen[uid]
                self._doors.close(pod)
                self._groups[key].lose(pod)
        elif _phase(pod) == "Running" and uid not in self._seen:
            self._seen[uid] = pod
            group = self._groups.get(key)
            if group is None:
                group = PlayedGroup(self._play, pod, self._note, self._end, self._network)
                self._groups[key] = group
            self._doors.open(pod, partial(self._answer, pod, group))
            group.see(pod)

    def group(self, uid: str, attempt: int) -> PlayedGroup | None:
        """All nodes of an attempt of the job with this uid, if one of them has run."""
        return self._groups.get((uid, str(attempt)))

    def see_all(self, pods: Mapping[str, Body]) -> None:
        """Take in all pods that there are, by uid."""
        for uid, pod in list(self._seen.items()):
            if uid not in pods:
                self.see(pod, gone=True)
        for pod in pods.values():
            self.see(pod)

    def turn(self) -> None:
        """Let some time have passed."""
        for group in self._groups.values():
            group.turn()

    def _has_kubelet(self, pod: Body) -> bool:
        """Whether what becomes of the pod in the API becomes of its processes."""
        return self._network is None or self._network.reaches(node_of(pod), "api")

    async def _answer(
        self, pod: Body, group: PlayedGroup, path: str, words: Mapping[str, str], token: str
    ) -> Body | None:
        """A page, as `ddpjob_agent.server` has it; None where there is no answer."""
        node = group.find(pod)
        if node is None or not await group.is_heard(node):
            return None
        if path == "/progress" and node.rank >= 0:
            return group.progress(node.rank)
        if path == "/head" and token == _token(pod):
            if self._doors.address(group.pods[0].body) not in words:
                return None  # nobody is there yet
            group.follow(node)
            return {}
        if path == "/group" and node.rank != 0 and token == _token(pod):
            pods = read_pods(words.get("pods", ""))
            since, size = (whole(words.get(name, "")) or 0 for name in ("since", "size"))
            group.lead(node, pods, since, size)
        if node.rank != 0:
            return None
        if path == "/program" and token == _token(pod):
            group.bring(words["content"].partition("\n")[0].encode())
            return {}
        page = await self._answer_group(pod, group, words, token)
        return page if await group.is_heard(node) else None

    async def _answer_group(
        self, pod: Body, group: PlayedGroup, words: Mapping[str, str], token: str
    ) -> Body | None:
        """The page /group; None where there is no answer."""
        number, after, hold, ends = (
            whole(words.get(name, "")) for name in ("round", "after", "hold", "ends")
        )
        if number is None or hold is None or token != _token(pod):
            return None
        group.group.hear(seconds(words.get("heard", "")))
        pods = read_pods(words.get("pods", ""))
        since, size, held = (whole(words.get(n, "")) or 0 for n in ("since", "size", "held"))
        told = number, bool(ends), pods, since, size, words.get("program", "")
        page, order = group.page(), group.group.order
        if ends and (order.round, order.ends) == (number, False):
            group.deed("dismissed", 0, number)
        if number <= order.round:
            group.order(*told, is_held=bool(held))
            return await group.answer(after, hold)
        group.deed("ordered", 0, number)
        # Where the order arrives, this answer was on its way already.
        return page if group.order(*told, is_held=bool(held)) else None


_UID = names.JOB_UID_LABEL


def waits_to_be_asked_on(pod: Body) -> bool:
    """Whether the pod's agent is of that kind."""
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(names.RESTART_ANNOTATION) == "InPlace")


def _labels(pod: Body) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _phase(pod: Body) -> str:
    return (pod.get("status") or {}).get("phase") or ""


def _token(pod: Body) -> str:
    """The token in the environment of the pod's agent."""
    (trainer,) = pod["spec"]["containers"]
    env = {each["name"]: each.get("value", "") for each in trainer["env"]}
    return str(env[names.TOKEN_VARIABLE])
