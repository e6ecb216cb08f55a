"""Played agents of pods that may restart in place, as the operator meets them.

What rank 0's agent knows and says is the real one's (`ddpjob_agent.group`). The nodes' lives follow
`ddpjob_agent.rounds`, but nothing in them takes any time.
"""

import asyncio
import base64
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from ddpjob import names
from ddpjob.cluster import CONFIGMAPS
from ddpjob.errors import NotFound
from ddpjob.json_depth import Body
from ddpjob.runner.network import Loopback
from ddpjob_agent.config import NO_RENDEZVOUS
from ddpjob_agent.group import CLEAN, FAILED, RUNNING, Group, Node, failure_of
from ddpjob_agent.network import whole
from ddpjob_agent.rounds import WAIT_SECONDS
from tests.chaos.rounds import Deed, What

Answers = Callable[[Mapping[str, str], str], Awaitable[Body | None]]
"""(query, token) → a page, or None to hang up."""
Fate = Callable[[int, int, int], int | None]
"""(attempt, round, node rank) → exit code of its ranks, None to run on."""
SECONDARY = 86  # the exit code of ranks that have failed because of others


@dataclass(frozen=True)
class Play:
    """What becomes of a job's nodes."""

    fate: Fate
    stuck: tuple[int, ...] = ()
    """Nodes of the first attempt whose ranks nothing ends but their pod's deletion."""
    unheard: bool = False
    """In the first attempt no order of another round arrives; the failed do not wait for it."""


@dataclass
class _Pod:
    """A node as it is."""

    body: Body
    round: int = 0
    state: str = ""  # none of the group's yet, one of those, or `over`
    code: int = 0
    reads: bool = True  # its ranks' fate in this round is open
    timer: asyncio.TimerHandle | None = None

    @property
    def message(self) -> str:
        """The termination message."""
        reason = "Rendezvous" if self.code == NO_RENDEZVOUS else "ExitCode"
        said = {
            "version": 1,
            "reason": reason if self.code else "Completed",
            "round": self.round,
            "exit_code": self.code,
            "message": f"exit code {self.code}" if self.code else "",
            "peer": self.code == SECONDARY,
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
    ) -> None:
        """`pod` is any of them; `end` is told when a pod ends: its exit code and last message."""
        env = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
        self.attempt, self.uid = int(_labels(pod)[names.ATTEMPT_LABEL]), _labels(pod)[_UID]
        self._play, self._note, self._end = play, note, end
        self.pods: dict[int, _Pod] = {}
        self.group = Group(int(env["PET_NNODES"]), self.hurry)
        self.news = asyncio.Event()
        self._serial = self.group.serial

    def see(self, body: Body) -> None:
        """Take in a pod that runs."""
        self.pods.setdefault(int(_labels(body)[names.RANK_LABEL]), _Pod(body))
        if len(self.pods) == self.group.nnodes:
            for rank, pod in self.pods.items():
                if not pod.state:
                    self._tell(rank, pod, RUNNING, 0, "begins")
            self.go_on()

    def lose(self, body: Body) -> None:
        """Take in that a pod is deleted, or has ended."""
        rank = int(_labels(body)[names.RANK_LABEL])
        pod = self.pods.setdefault(rank, _Pod(body))
        if pod.state != "over":
            self._leave(rank, pod)
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

    def deed(self, what: What, rank: int, number: int, version: int = 0) -> None:
        """Say what has been done."""
        at = asyncio.get_running_loop().time()
        self._note(Deed(what, self.uid, self.attempt, number, rank, at, version))

    def order(self, number: int, ends: bool) -> bool:
        """Take the operator's order; whether it has arrived."""
        if self._play.unheard and self.attempt == 0 and number > 0:
            for rank, pod in self.pods.items():
                if pod.state == FAILED:
                    self._over(rank, pod)
            return False
        self.group.want(number, ends)
        self.go_on()
        return True

    async def answer(self, after: int | None, hold: int) -> Body:
        """The page /group, once there is more to tell."""
        with suppress(TimeoutError):
            async with asyncio.timeout(hold):
                while self.group.serial == after:
                    await self.news.wait()
        return self.page()

    def page(self) -> Body:
        """The page /group; nothing is known of steps."""
        labels = _labels(self.pods[0].body)
        about = {
            "namespace": self.pods[0].body["metadata"]["namespace"],
            "job": labels[names.JOB_LABEL],
            "attempt": self.attempt,
            "node_rank": 0,
            "round": self.pods[0].round,
            "source": "none",
        }
        return {**about, **self.group.page(), "progress": about}

    def _go_on(self, rank: int, pod: _Pod) -> bool:
        """Let one thing happen to a node; whether it did."""
        order = self.group.order
        if pod.state == RUNNING and pod.reads:
            pod.reads = False
            code = self._play.fate(self.attempt, pod.round, rank)
            if code is not None:
                self._fall(rank, pod, code)
        elif pod.state == CLEAN and order.begun >= pod.round:
            pod.reads = True
            self._tell(rank, pod, RUNNING, pod.round, "begins")
        elif pod.state in (RUNNING, FAILED) and order.round > pod.round:
            if self.attempt == 0 and rank in self._play.stuck:
                return False
            self._tell(rank, pod, CLEAN, order.round, "clean")
        elif pod.state == FAILED and order.ends:
            self._over(rank, pod)
        elif pod.state in (FAILED, CLEAN) and self.pods[0].state == "over":
            self._over(rank, pod)  # rank 0's agent is gone
        else:
            return False
        return True

    def _fall(self, rank: int, pod: _Pod, code: int) -> None:
        """The node's ranks end with this code."""
        pod.code = code
        if code == 0:
            self._over(rank, pod)
        else:
            self._tell(rank, pod, FAILED, pod.round, "fails")

    def _tell(self, rank: int, pod: _Pod, state: str, number: int, what: What) -> None:
        """The node has come to another state, and tells rank 0's agent."""
        if state == CLEAN:
            pod.code = NO_RENDEZVOUS  # if the round never begins
        pod.state, pod.round = state, number
        self.deed(what, rank, number)
        failure = failure_of(pod.code, pod.message.encode()) if state == FAILED else None
        self.group.tell(rank, Node(number, state, failure))
        if pod.timer is not None:
            pod.timer.cancel()
        if state != RUNNING:
            loop = asyncio.get_running_loop()
            pod.timer = loop.call_later(WAIT_SECONDS, self._over, rank, pod)

    def _over(self, rank: int, pod: _Pod) -> None:
        """The node has waited in vain, or is done: its pod ends."""
        if pod.state != "over":
            self._leave(rank, pod)
            self._end(pod.body, pod.code, pod.message)

    def _leave(self, rank: int, pod: _Pod) -> None:
        if pod.timer is not None:
            pod.timer.cancel()
        pod.state = "over"
        self.deed("ends", rank, pod.round)
        self.hurry()


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
        uid, rank = pod["metadata"]["uid"], _labels(pod)[names.RANK_LABEL]
        if not waits_to_be_asked_on(pod) or rank != "0":
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
        """One request, of which nothing matters but its query and its token."""
        loop, head = asyncio.get_running_loop(), b""
        with guest, suppress(OSError):  # nobody waits for it any more
            while b"\r\n\r\n" not in head:
                part = await loop.sock_recv(guest, 4096)
                if not part:
                    return
                head += part
            text, answers = head.decode(), self._answers.get(uid)
            path, _, query = text.split(" ")[1].partition("?")
            words = dict(pair.partition("=")[::2] for pair in query.split("&"))
            (token,) = re.findall("(?i)\r\nauthorization: bearer (.*)\r\n", text) or [""]
            if answers is None or path != "/group":
                return
            if (page := await answers(words, token)) is not None:
                body = json.dumps(page).encode()
                length = f"Content-Length: {len(body)}"
                answer = f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n".encode() + body
                await loop.sock_sendall(guest, answer)


async def _nothing_newer() -> int:
    return 0


class Agents:
    """The agents of all pods of a cluster, as far as they may restart in place."""

    def __init__(
        self,
        doors: Doors,
        cluster: Any,
        play: Play,
        note: Callable[[Deed], None],
        end: Callable[[Body, int, str], None],
        newest: Callable[[], Awaitable[int]] = _nothing_newer,
    ) -> None:
        """`note` takes deeds; `newest` is the version that the API server has when asked."""
        self._doors, self._cluster, self._play = doors, cluster, play
        self._note, self._end, self._newest = note, end, newest
        self._groups: dict[tuple[str, str], PlayedGroup] = {}
        self._seen: dict[str, Body] = {}  # pods that have run, by uid
        self._read: dict[str, str] = {}  # tokens, by uid of the pod

    def see(self, pod: Body, *, gone: bool = False) -> None:
        """Take in a pod's newer version, or that it is gone."""
        uid, labels = pod["metadata"]["uid"], _labels(pod)
        if not waits_to_be_asked_on(pod):
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
                group = PlayedGroup(self._play, pod, self._note, self._end)
                self._groups[key] = group
            if labels[names.RANK_LABEL] == "0":
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

    async def _answer(
        self, pod: Body, group: PlayedGroup, words: Mapping[str, str], token: str
    ) -> Body | None:
        """The page /group, as `ddpjob_agent.network` has it; None where there is no answer."""
        number, after, hold, ends = (
            whole(words.get(name, "")) for name in ("round", "after", "hold", "ends")
        )
        if number is None or hold is None or token != await self._token(pod):
            return None
        page, order = group.page(), group.group.order
        if ends and (order.round, order.ends) == (number, False):
            group.deed("dismissed", 0, number)
        if number <= order.round:
            group.order(number, bool(ends))
            return await group.answer(after, hold)
        group.deed("ordered", 0, number, await self._newest())
        # Where the order arrives, this answer was on its way already.
        return page if group.order(number, bool(ends)) else None

    async def _token(self, pod: Body) -> str:
        """The token that the pod finds beside its agent."""
        uid, meta = pod["metadata"]["uid"], pod["metadata"]
        if uid not in self._read:
            name = meta["annotations"][names.AGENT_ANNOTATION]
            try:
                found = await self._cluster.get(CONFIGMAPS, meta["namespace"], name)
            except NotFound:
                return ""
            self._read[uid] = base64.b64decode(found["binaryData"][names.AGENT_TOKEN]).decode()
        return self._read[uid]


_UID = names.JOB_UID_LABEL


def waits_to_be_asked_on(pod: Body) -> bool:
    """Whether the pod's agent is of that kind."""
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(names.RESTART_ANNOTATION) == "InPlace")


def _labels(pod: Body) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _phase(pod: Body) -> str:
    return (pod.get("status") or {}).get("phase") or ""
