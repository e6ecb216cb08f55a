"""Lines of the ranks' logs: whose a line is, and which ones somebody wants to see. No I/O."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ddpjob import names
from ddpjob.client import why
from ddpjob.json_depth import Body
from ddpjob.ranks import MAX_WORLD_SIZE

# What the agent writes: before a rank's lines if the pod has several ranks, and before its own.
_RANK = re.compile(rb"\[rank (0|[1-9][0-9]{0,5})\] ")
AGENT = b"ddpjob-agent: "
# And between two rounds.
_ROUND = re.compile(rb"ddpjob-agent: round ([0-9]{1,9}) of attempt [0-9]{1,9} begins\r?")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a pod of the job has printed."""

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
    """The text as it was printed, without its end. It may be anything; at 1 MiB it is cut."""
    container: str = names.TRAINER_CONTAINER
    """The name of the container."""

    @property
    def place(self) -> str:
        """Return where the line comes from, in short: `a0 r3`, or `a0.1 n1` of round 1, node 1.

        A line of another container than the trainer has its name: `a0 n1 fetch`.
        """
        round_ = f".{self.round}" if self.round else ""
        who = f"n{self.node_rank}" if self.rank is None else f"r{self.rank}"
        other = "" if self.container == names.TRAINER_CONTAINER else f" {self.container}"
        return f"a{self.attempt}{round_} {who}{other}"

    @property
    def text(self) -> str:
        """Return the content as text. It may have escape sequences of a terminal."""
        return self.content.decode(errors="replace")


State = Literal["waiting", "running", "ended"]
# A pod's uid, and a container.
Log = tuple[str, str]


@dataclass(frozen=True)
class Pod:
    """A pod of a job, as far as its log needs it."""

    name: str
    uid: str
    attempt: int
    node_rank: int
    node: str
    state: State
    """That of the container."""
    reason: str
    """Why it waits, how an init container has failed, or an empty text."""
    container: str = names.TRAINER_CONTAINER
    """The container whose log is read."""
    containers: tuple[str, ...] = ()
    """The names of all its containers."""

    @property
    def log(self) -> Log:
        """Return what tells its log from all others."""
        return self.uid, self.container


def local_pod(job: str, attempt: int, node_rank: int) -> Pod:
    """Return a pod of a job that runs on this machine."""
    name = names.pod_name(job, attempt, node_rank)
    return Pod(name, "", attempt, node_rank, node="local", state="running", reason="")


def read_pod(body: Body, job: str, job_uid: str, container: str | None = None) -> Pod | None:
    """Return the job's pod; None for a pod of another job, or of nobody's.

    Without a container it is the trainer, or the init container that failed before it began.

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
    failure = None if container else _init_failure(body)
    container, reason = failure or (container or names.TRAINER_CONTAINER, "")
    state, waits = _container(body, container)
    return Pod(
        name=name,
        uid=why.text(body, "metadata", "uid"),
        attempt=place[0],
        node_rank=place[1],
        node=why.text(body, "spec", "nodeName"),
        state=state,
        reason=reason or waits,
        container=container,
        containers=tuple(why.text(each, "name") for each in _all(body, "spec", _KINDS)),
    )


_KINDS = ("initContainers", "containers")
_STATUSES = ("initContainerStatuses", "containerStatuses")


def _all(body: Body, part: str, kinds: Iterable[str]) -> list[Any]:
    """Return the entries of some lists of a pod."""
    found = (why.part(body, part, kind) for kind in kinds)
    return [each for entries in found if isinstance(entries, list) for each in entries]


def _named(entries: Iterable[Any], name: str) -> Any:
    return next((each for each in entries if why.part(each, "name") == name), None)


def _container(body: Body, name: str) -> tuple[State, str]:
    """Return the state of a container, and why it waits."""
    if why.text(body, "status", "phase") in ("Failed", "Succeeded"):
        return "ended", ""
    status = _named(_all(body, "status", _STATUSES), name)
    state, last = why.part(status, "state"), why.part(status, "lastState", "terminated")
    if why.part(state, "terminated") is not None:
        spec = _named(_all(body, "spec", _KINDS), name)
        # A sidecar is started again as long as its pod runs.
        return "running" if why.part(spec, "restartPolicy") == "Always" else "ended", ""
    if why.part(state, "running") is not None or last is not None:
        return "running", ""
    return "waiting", why.text(state, "waiting", "reason")


def _init_failure(body: Body) -> tuple[str, str] | None:
    """Return the init container that failed, and how, if the trainer has not begun."""
    statuses = _all(body, "status", _STATUSES)
    trainer = why.part(_named(statuses, names.TRAINER_CONTAINER), "state")
    if any(why.part(trainer, kind) is not None for kind in ("running", "terminated")):
        return None  # sidecars are killed after it
    for status in _all(body, "status", _STATUSES[:1]):
        ended = why.part(status, "state", "terminated")
        if why.text(status, "state", "waiting", "reason") == "CrashLoopBackOff":
            ended = why.part(status, "lastState", "terminated")
        if code := why.number(ended, "exitCode"):
            return why.text(status, "name"), f"exit code {code}"
    return None


class LineMaker:
    """Makes lines of what one pod prints: finds the rank, and the round."""

    def __init__(self, pod: Pod, processes: int, *, from_the_beginning: bool) -> None:
        self._pod, self._processes = pod, processes
        first = pod.node_rank * processes
        self._ranks = range(first, first + processes)
        self._is_trainer = pod.container == names.TRAINER_CONTAINER
        self._round: int | None = 0 if from_the_beginning and self._is_trainer else None

    def line(self, content: bytes, time: str = "") -> LogLine:
        """Return the line with this content, which has no time on this machine."""
        pod, rank = self._pod, None
        if self._is_trainer:
            rank, content = self._whose(content)
            if rank is None and (begun := _ROUND.fullmatch(content)):
                self._round = int(begun[1])
        place = pod.attempt, self._round, rank, pod.node_rank, pod.node, pod.name
        return LogLine(time, *place, content, pod.container)

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

    def __post_init__(self) -> None:
        _ = self.spans  # raises ValueError

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
