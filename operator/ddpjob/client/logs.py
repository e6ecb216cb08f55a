"""Lines of the ranks' logs: whose a line is, and which ones somebody wants to see. No I/O."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ddpjob import names
from ddpjob.client import why
from ddpjob.client.pieces import Piece
from ddpjob.json_depth import Body
from ddpjob.ranks import MAX_WORLD_SIZE

# What the agent writes: before a rank's lines if the pod has several ranks, and before its own.
_RANK = re.compile(rb"\[rank (0|[1-9][0-9]{0,5})\] ")
AGENT = b"ddpjob-agent: "
# And between two rounds.
_ROUND = re.compile(rb"ddpjob-agent: round ([0-9]{1,9}) of attempt [0-9]{1,9} begins\r?")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, or a part of a very long one, that a pod of the job has printed."""

    time: str
    """The time of the line by the clock of its node, in RFC 3339."""
    attempt: int
    """The number of the attempt, from 0."""
    round: int | None
    """The round of the attempt; None if the part of the log that was read does not say it."""
    rank: int | None
    """The global rank; None for a line of the pod's agent or of torchrun."""
    node_rank: int
    """The number of the pod in its attempt."""
    node: str
    """The name of the Kubernetes node."""
    pod: str
    """The name of the pod."""
    content: bytes
    """The text as it was printed, without its end. It may be anything."""
    part: int = 0
    """The number of this part, from 0; nearly every line has one."""
    is_last: bool = True
    """Whether the line ends with this part."""

    @property
    def place(self) -> str:
        """Return where the line comes from, in short: `a0 r3`, or `a0.1 n1` of round 1, node 1."""
        round_ = f".{self.round}" if self.round else ""
        who = f"n{self.node_rank}" if self.rank is None else f"r{self.rank}"
        return f"a{self.attempt}{round_} {who}"

    @property
    def text(self) -> str:
        """Return the content as text. It may have escape sequences of a terminal."""
        return self.content.decode(errors="replace")


@dataclass(frozen=True)
class Pod:
    """A pod of a job, as far as its log needs it."""

    name: str
    uid: str
    attempt: int
    node_rank: int
    node: str
    state: Literal["waiting", "running", "ended"]
    """That of its trainer container."""
    reason: str
    """Why it waits, or an empty text."""


def local_pod(job: str, attempt: int, node_rank: int) -> Pod:
    """Return a pod of a job that runs on this machine."""
    name = names.pod_name(job, attempt, node_rank)
    return Pod(name, "", attempt, node_rank, node="local", state="running", reason="")


def read_pod(body: Body, job: str, job_uid: str) -> Pod | None:
    """Return the job's pod; None for a pod of another job, or of nobody's.

    A pod that only has the labels of the job is not its own: the operator's are named by a pattern,
    and refer to the job by its uid.
    """
    owners = why.part(body, "metadata", "ownerReferences")
    owned = any(
        why.part(owner, "uid") == job_uid and why.part(owner, "controller") is True
        for owner in (owners if isinstance(owners, list) else ())
    )
    name = why.text(body, "metadata", "name")
    place = names.parse_pod_name(job, name)
    if not owned or place is None:
        return None
    state, reason = _container(body)
    return Pod(
        name=name,
        uid=why.text(body, "metadata", "uid"),
        attempt=place[0],
        node_rank=place[1],
        node=why.text(body, "spec", "nodeName"),
        state=state,
        reason=reason,
    )


def _container(body: Body) -> tuple[Literal["waiting", "running", "ended"], str]:
    """Return the state of the trainer container, and why it waits."""
    if why.text(body, "status", "phase") in ("Failed", "Succeeded"):
        return "ended", ""
    statuses = why.part(body, "status", "containerStatuses")
    for status in statuses if isinstance(statuses, list) else ():
        if why.part(status, "name") == names.TRAINER_CONTAINER:
            if why.part(status, "state", "terminated") is not None:
                return "ended", ""
            if why.part(status, "state", "running") is not None:
                return "running", ""
            return "waiting", why.text(status, "state", "waiting", "reason")
    return "waiting", ""


class LineMaker:
    """Makes lines of one pod's pieces: finds the rank, and the round."""

    def __init__(self, pod: Pod, processes: int, *, from_the_beginning: bool) -> None:
        self._pod, self._processes = pod, processes
        first = pod.node_rank * processes
        self._ranks = range(first, first + processes)
        self._round: int | None = 0 if from_the_beginning else None
        self._rank: int | None = None

    def line(self, text: str) -> LogLine:
        """Return the line of a text that has no time, as on this machine."""
        (line,) = self.lines([Piece(b"", text.encode(errors="replace"), 0, True)])
        return line

    def lines(self, pieces: Iterable[Piece]) -> Iterator[LogLine]:
        """Yield the line of each piece."""
        pod = self._pod
        for piece in pieces:
            content = piece.text
            if piece.number == 0:
                self._rank, content = self._whose(content)
                if self._rank is None and (begun := _ROUND.fullmatch(content)):
                    self._round = int(begun[1])
            yield LogLine(
                piece.time.decode("ascii", "replace"),
                pod.attempt,
                self._round,
                self._rank,
                pod.node_rank,
                pod.node,
                pod.name,
                content,
                piece.number,
                piece.is_last,
            )

    def _whose(self, content: bytes) -> tuple[int | None, bytes]:
        """Return the rank that has printed a line, and what it has printed."""
        if self._processes == 1:
            return (None if content.startswith(AGENT) else self._ranks[0]), content
        found = _RANK.match(content)
        if found and int(found[1]) in self._ranks:
            return int(found[1]), content[found.end() :]
        return None, content


@dataclass(frozen=True)
class Ranges:
    """A set of numbers as text, such as `0,8-11`. Raises ValueError for another text."""

    text: str

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return first and last number of each part."""
        found = []
        for part in self.text.split(","):
            match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part, re.ASCII)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last < MAX_WORLD_SIZE:
                raise ValueError(f"must be numbers such as 0,8-11, got {self.text!r}")
            found.append((first, last))
        return tuple(found)

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.spans)

    def meets(self, numbers: range) -> bool:
        """Return whether one of the numbers is in the set."""
        return any(first < numbers.stop and numbers.start <= last for first, last in self.spans)


@dataclass(frozen=True)
class Wanted:
    """Which lines somebody wants to see."""

    ranks: Ranges | None = None
    """Global ranks. Lines that are no rank's come with those of their pod."""
    nodes: Ranges | None = None
    """Node ranks, that is, pods."""
    attempt: int | Literal["all", "current"] = "current"
    """`current` are the current attempt and, for who follows, all later ones."""

    def has_pod(self, pod: Pod, processes: int, current: int) -> bool:
        """Return whether lines of the pod are wanted. `current` is the attempt to begin with."""
        if self.attempt == "current":
            if pod.attempt < current:
                return False
        elif self.attempt not in ("all", pod.attempt):
            return False
        first = pod.node_rank * processes
        of_rank = self.ranks is None or self.ranks.meets(range(first, first + processes))
        return of_rank and (self.nodes is None or pod.node_rank in self.nodes)

    def has_line(self, line: LogLine) -> bool:
        """Return whether a line of such a pod is wanted."""
        return self.ranks is None or line.rank is None or line.rank in self.ranks


class LastLines:
    """The last lines of all that are added, in bounded memory."""

    def __init__(self, count: int, most_bytes: int = 64 * 2**20) -> None:
        self._count, self._most = count, most_bytes
        self._kept: deque[LogLine] = deque()
        self._begun = self._size = 0

    def add(self, lines: Iterable[LogLine]) -> None:
        """Take in more lines, and let go of as many."""
        for line in lines:
            self._kept.append(line)
            self._size += len(line.content)
            self._begun += line.part == 0
            while self._kept and (self._begun > self._count or self._size > self._most):
                gone = self._kept.popleft()
                self._size -= len(gone.content)
                self._begun -= gone.part == 0
                while self._kept and self._kept[0].part:  # the rest of that line
                    self._size -= len(self._kept.popleft().content)

    @property
    def lines(self) -> list[LogLine]:
        """Return the last lines."""
        return list(self._kept)
