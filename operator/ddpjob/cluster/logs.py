"""Lines of the ranks' logs: whose a line is, and which ones somebody wants to see. No I/O."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ddpjob import names, why
from ddpjob.json_depth import Body
from ddpjob.ranks import MAX_WORLD_SIZE

# What the agent writes: before a rank's lines if the pod has several ranks, and before its own.
_RANK = re.compile(rb"\[rank (0|[1-9][0-9]{0,5})\] ")
AGENT = b"ddpjob-agent: "
# And between two rounds.
_ROUND = re.compile(rb"ddpjob-agent: round ([0-9]{1,9}) of attempt [0-9]{1,9} begins\r?")
# And once a spare has a rank.
_PLACE = re.compile(rb"ddpjob-agent: this pod gets node rank ([0-9]{1,5})\r?")
# A colour that a script has given to its words.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,32}m")


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
    """The number of the pod in its attempt; minus its number of a spare without a rank."""
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
        node = names.rank_text(self.node_rank)
        who = f"r{self.rank}" if self.rank is not None else node if node[0] == "s" else f"n{node}"
        other = "" if self.container == names.TRAINER_CONTAINER else f" {self.container}"
        return f"a{self.attempt}{round_} {who}{other}"

    @property
    def text(self) -> str:
        """Return the content as text. It may have escape sequences of a terminal."""
        return self.content.decode(errors="replace")

    def shown(self, limit: int) -> str:
        """Return the text without colours, as a terminal would be left by it, cut at `limit` bytes.

        Other escape sequences of a terminal stay in it.
        """
        content = self.content.rstrip(b"\r")
        content = content[content.rfind(b"\r") + 1 :]  # of a progress bar the last state
        text = _COLOUR.sub("", content[:limit].decode(errors="replace"))
        return text + (" … (the line goes on)" if len(content) > limit else "")


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
    reason: str = ""
    """Why it waits, how an init container has failed, or an empty text."""
    container: str = names.TRAINER_CONTAINER
    """The container whose log is read."""
    containers: tuple[str, ...] = ()
    """The names of all its containers."""
    since: int = 0
    """The first round of a pod that has replaced another one."""
    moved: bool = False
    """It has got another rank than in its name; its log says when."""

    @property
    def log(self) -> Log:
        """Return what tells its log from all others."""
        return self.uid, self.container


def local_pod(job: str, attempt: int, node_rank: int) -> Pod:
    """Return a pod of a job that runs on this machine."""
    name = names.pod_name(job, attempt, node_rank)
    return Pod(name, "", attempt, node_rank, node="local", state="running")


def read_pod(body: Body, job: str, job_uid: str, container: str | None = None) -> Pod | None:
    """Return the job's pod; None for a pod of another job, or of nobody's.

    Without a container it is the trainer, or the init container that failed before it began.

    A pod that only has the labels of the job is not its own: the operator's are named by a pattern,
    and refer to the job by its uid.
    """
    metadata, spec, status = body["metadata"], body["spec"], body.get("status", {})
    place = names.parse_pod_name(job, metadata["name"])
    owners = metadata.get("ownerReferences", ())
    is_owned = any(owner["uid"] == job_uid and owner.get("controller") for owner in owners)
    if not is_owned or place is None:
        return None
    init = status.get("initContainerStatuses", ())
    statuses = {each["name"]: each for each in (*init, *status.get("containerStatuses", ()))}
    every = (*spec.get("initContainers", ()), *spec.get("containers", ()))
    containers = {each["name"]: each for each in every}
    failure = None if container else _init_failure(init, statuses)
    container, reason = failure or (container or names.TRAINER_CONTAINER, "")
    state, waits = _state(statuses.get(container, {}))
    # A sidecar is started again as long as its pod runs.
    if state == "ended" and containers.get(container, {}).get("restartPolicy") == "Always":
        state = "running"
    if status.get("phase") in ("Failed", "Succeeded"):
        state, waits = "ended", ""
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        attempt=place[0],
        node_rank=place[1],
        node=spec.get("nodeName", ""),
        state=state,
        reason=reason or waits,
        container=container,
        containers=tuple(containers),
        since=place[2],
    )


def with_rank(pod: Pod, job: Body) -> Pod:
    """Return a pod with the node rank that it has got, as the job's status says."""
    got = why.rank_of(job.get("status"), pod.attempt, pod.node_rank, pod.since)
    return pod if got is None else replace(pod, node_rank=got[0], since=got[1], moved=True)


def _state(status: Mapping[str, Any]) -> tuple[State, str]:
    """Return the state of a container, and why it waits."""
    state = status.get("state", {})
    if "terminated" in state:
        return "ended", ""
    if "running" in state or "terminated" in status.get("lastState", {}):
        return "running", ""
    return "waiting", state.get("waiting", {}).get("reason", "")


def _init_failure(init: Sequence[Any], statuses: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the init container that failed, and how, if the trainer has not begun."""
    trainer = statuses.get(names.TRAINER_CONTAINER, {}).get("state", {})
    if "running" in trainer or "terminated" in trainer:
        return None  # sidecars are killed after it
    for status in init:
        state = status.get("state", {})
        loops = state.get("waiting", {}).get("reason") == "CrashLoopBackOff"
        ended = (status.get("lastState", {}) if loops else state).get("terminated", {})
        if code := ended.get("exitCode"):
            return status["name"], f"exit code {code}"
    return None


class LineMaker:
    """Makes lines of what one pod prints: finds the rank, and the round."""

    def __init__(self, pod: Pod, processes: int, *, from_the_beginning: bool) -> None:
        self._pod, self._processes = pod, processes
        self._is_trainer = pod.container == names.TRAINER_CONTAINER
        self._round: int | None = pod.since if from_the_beginning and self._is_trainer else None

    def line(self, content: bytes, time: str = "") -> LogLine:
        """Return the line with this content, which has no time on this machine."""
        pod, rank = self._pod, None
        if self._is_trainer:
            rank, content = self._whose(content)
            if rank is None and (begun := _ROUND.fullmatch(content)):
                self._round = int(begun[1])
            if rank is None and (got := _PLACE.fullmatch(content)):
                self._pod = pod = replace(pod, node_rank=int(got[1]))
        place = pod.attempt, self._round, rank, pod.node_rank, pod.node, pod.name
        return LogLine(time, *place, content, pod.container)

    def _whose(self, content: bytes) -> tuple[int | None, bytes]:
        """Return the rank that has printed a line, and what it has printed."""
        first = self._pod.node_rank * self._processes
        if self._processes == 1:
            return (None if content.startswith(AGENT) else first), content
        found = _RANK.match(content)
        if found and int(found[1]) in range(first, first + self._processes):
            return int(found[1]), content[found.end() :]
        return None, content


def parse_numbers(text: str) -> frozenset[int]:
    """Return the numbers that a text such as `0,8-11` stands for. Raises ValueError for another."""
    found = set[int]()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MAX_WORLD_SIZE:
            raise ValueError(f"must be numbers such as 0,8-11, got {text!r}")
        found.update(range(first, last + 1))
    return frozenset(found)


@dataclass(frozen=True)
class Wanted:
    """Which lines somebody wants to see."""

    ranks: frozenset[int] | None = None
    """Global ranks. Lines that are no rank's come with those of their pod."""
    nodes: frozenset[int] | None = None
    """Node ranks, that is, pods."""
    attempt: int | str = "current"
    """A number, `all`, or `current`: that attempt and, for who follows, all later ones."""

    def has_pod(self, pod: Pod, processes: int, current: int) -> bool:
        """Return whether lines of the pod are wanted. `current` is the attempt to begin with."""
        if self.attempt == "current":
            if pod.attempt < current:
                return False
        elif self.attempt not in ("all", pod.attempt):
            return False
        if pod.moved or pod.node_rank < 0:  # it may have had any rank
            return True
        if self.nodes is not None and pod.node_rank not in self.nodes:
            return False
        first = pod.node_rank * processes
        return self.ranks is None or not self.ranks.isdisjoint(range(first, first + processes))

    def has_line(self, line: LogLine) -> bool:
        """Return whether a line of such a pod is wanted."""
        if self.nodes is not None and line.node_rank not in self.nodes:
            return False
        if self.ranks is not None and line.node_rank < 0:
            return False
        return self.ranks is None or line.rank is None or line.rank in self.ranks
