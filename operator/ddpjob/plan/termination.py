"""Reads what the agent left in termination messages; finds the first cause of several failures.

A pod's message is written by whatever ran in it, so everything here treats it as hostile: strict
types, bounded sizes, and a fallback that knows the kubelet's words alone.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddpjob.api import MAX_REASON, Failure
from ddpjob.plan.observed import DISRUPTIONS, SAVED, UNREAD, PodRecord, Report, Word
from ddpjob.ranks import format_ranks
from ddpjob.text import printable
from ddpjob.times import restamped, stamp, unix_seconds

MAX_MESSAGE = 1024  # characters of a failure's message that go into status
HANG = "Hang"  # as the agent calls it
_TIMEOUT = re.compile(r"(?i)timed? ?out")
_EARLY = 4102444800.0  # 2100-01-01: sorts failures without a time behind those with one

MAX_NAME = 63
Name = Annotated[str, Field(max_length=MAX_NAME)]


_OF_WHOM = ("namespace", "job", "node_rank")


class AgentReport(BaseModel):
    """`/progress` of the agent, and `progress` of its summary.

    NaN and infinite losses are legal.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    namespace: str | None = None
    job: str | None = None
    attempt: Annotated[int, Field(ge=0, lt=2**31)] = 0
    node_rank: Annotated[int, Field(ge=0, lt=2**31)] = 0
    source: Literal["file", "counted", "none"] = "none"
    step: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    total_steps: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    epoch: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: Annotated[float, Field(ge=0, lt=2**53)] | None = None
    updated_at: Annotated[float, Field(ge=0, lt=2**36)] | None = None
    metrics: Annotated[dict[Name, float], Field(max_length=32)] = {}

    def is_of(self, pod: PodRecord) -> bool:
        """Whether it speaks of this pod: on a node's own network another one may answer for it."""
        of = (self.attempt, self.node_rank) == (pod.attempt, pod.rank)
        return of and self.job in (None, pod.job) and self.namespace in (None, pod.namespace)

    def report(self) -> Report | None:
        """The report, or None if nothing has been reported yet."""
        if self.step is None or self.source == "none":
            return None
        fields = self.model_dump(exclude={"metrics", "source", "step", *_OF_WHOM})
        shown = {printable(name, MAX_NAME): value for name, value in self.metrics.items()}
        metrics = tuple(shown.items())
        return Report(step=self.step, source=self.source, metrics=metrics, **fields)


class AgentSummary(BaseModel):
    """What the agent writes when it ends."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    version: Literal[1]
    reason: Annotated[str, Field(max_length=63)]
    rank: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    signal: Annotated[str, Field(max_length=63)] | None = None
    exception: Annotated[str, Field(max_length=253)] | None = None
    message: Annotated[str, Field(max_length=4096)] = ""
    peer: bool = False
    suspect: bool = False
    """Of a peer's noise: it may as well be what the others tell of."""
    place: Annotated[str, Field(max_length=200)] | None = None
    """Where a rank that hangs waits for others."""
    time: Annotated[float, Field(ge=0, lt=2**36)] | None = None
    progress: AgentReport | None = None
    traceback: Annotated[str, Field(max_length=4096)] = ""
    """Its end, where it is long."""


def read_summary(pod: PodRecord) -> AgentSummary | None:
    """The agent's summary in the pod's termination message, or None if there is none.

    A kubelet keeps 12 KiB of all containers' messages together: of a pod with more than three,
    each may lose its end.
    """
    if not pod.message.startswith("{"):
        return None
    kept = (pod.message.rpartition(f',"{name}":')[0] for name in ("traceback", "progress"))
    for text in (pod.message, *(start + "}" for start in kept if start)):
        with suppress(ValueError, ValidationError):
            return AgentSummary.model_validate(loads(text))
    return None


def word_of(pod: PodRecord) -> Word | None:
    """What the pod's summary says of its end, read once for each record; None without one."""
    if pod.word is UNREAD:
        # Not a change: it follows from the message. By two threads at once it is read twice.
        object.__setattr__(pod, "word", _word(pod))
    return pod.word


def _word(pod: PodRecord) -> Word | None:
    """Little, since the records of thousands of pods are kept: no traceback, of rank 0 a report."""
    summary = read_summary(pod)
    if summary is None:
        return None
    said = summary.progress if pod.rank == 0 else None
    return Word(
        reason=summary.reason,
        rank=summary.rank,
        exit_code=summary.exit_code,
        signal=summary.signal,
        exception=summary.exception,
        message=_clip(summary.message),
        timed_out=summary.reason != HANG and _TIMEOUT.search(summary.message) is not None,
        peer=summary.peer,
        suspect=summary.suspect,
        place=summary.place,
        time=summary.time,
        report=said.report() if said else None,
    )


def loads(text: str | bytes) -> Any:
    """JSON with NaN and Infinity, as Python writes them. Raises ValueError."""
    try:
        return json.loads(text)  # orjson refuses both
    except RecursionError:
        raise ValueError("nested too deeply") from None


def final_report(pods: Iterable[PodRecord]) -> Report | None:
    """The last report of node rank 0, from its summary."""
    for pod in pods:
        if pod.rank == 0 and pod.result:
            word = word_of(pod)
            return word.report if word else None
    return None


def is_noise(pod: PodRecord) -> bool:
    """Whether this pod failed only because another had failed before it.

    By its agent's judgement.
    """
    word = word_of(pod)
    return word is not None and word.peer


def first_cause(pods: Iterable[PodRecord]) -> PodRecord:
    """Of several failed pods, the one that began it."""
    return by_cause(pods)[0]


def by_cause(pods: Iterable[PodRecord]) -> list[PodRecord]:
    """Failed pods by how near they are to the cause.

    Own failures before noise, a suspect before mere echoes, then the earliest: an agent learns of
    an abort by the process's end, which peers have told of by then. Of those that hang and all wait
    for others, the one that waits where the fewest do.
    """
    pods = list(pods)
    shared = Counter(places(pods).values())

    def order(pod: PodRecord) -> tuple[bool, bool, float, float, int]:
        word = word_of(pod)
        if word is None:
            return (False, False, 0, _seconds(pod.finished_at), pod.rank)
        time = word.time if word.time is not None else _seconds(pod.finished_at)
        is_echo = word.peer and not word.suspect
        rarity = shared.get(word.place or "", math.inf) if is_echo else 0
        return (word.peer, is_echo, rarity, time, pod.rank)

    return sorted(pods, key=order)


def places(pods: Iterable[PodRecord]) -> dict[int, str]:
    """Where pods that hang wait for others, by node rank."""
    words = {pod.rank: word_of(pod) for pod in pods}
    return {rank: word.place for rank, word in words.items() if word and word.place}


def late_failure(failed: Sequence[PodRecord], live: Sequence[PodRecord]) -> Failure | None:
    """The one pod that the others waited for in vain, where all that failed tell of others.

    Whoever has not noticed the others' end, although their collectives timed out, is in none.
    """
    if len(live) != 1 or not live[0].running or not any(map(is_timeout, failed)):
        return None
    late, told = live[0], failure(first_cause(failed))
    words = f"the others waited for node rank {late.rank} in vain, which has not failed"
    return Failure(
        attempt=late.attempt,
        pod=late.name,
        node=late.node or None,
        rank=late.rank,
        reason=HANG,
        message=_clip(f"{words}: {told.message}"),
        time=told.time,
    )


def noise_failure(failed: Sequence[PodRecord]) -> Failure:
    """What `status.failure` says where all that failed only tell of others.

    Of ranks that wait in different collectives both places are named.
    """
    first = first_cause(failed)
    found, where = failure(first), places(failed)
    elsewhere = {rank: place for rank, place in where.items() if place != where.get(first.rank)}
    if first.rank not in where or not elsewhere:
        return found
    place = Counter(elsewhere.values()).most_common(1)[0][0]
    ranks = format_ranks(rank for rank, at in elsewhere.items() if at == place)
    message = _clip(f"{found.message[: MAX_MESSAGE // 2]}; node rank {ranks} in {place}")
    return found.model_copy(update={"message": message})


def is_timeout(pod: PodRecord) -> bool:
    """Whether this pod's noise is that of a collective that timed out."""
    word = word_of(pod)
    return word is not None and word.timed_out


def failure(pod: PodRecord) -> Failure:
    """What `status.failure` says of this pod."""
    word = word_of(pod)
    where: dict[str, Any] = {"attempt": pod.attempt, "pod": pod.name, "node": pod.node or None}
    if word is None:
        lines = [line for line in pod.message.strip().splitlines() if line.strip()]
        return Failure(
            **where,
            rank=pod.rank,
            exit_code=pod.exit_code,
            reason=pod.disruption or pod.reason[:MAX_REASON] or "Error",
            message=_clip(_in_its_words(pod, lines[-1].strip() if lines else _no_words(pod))),
            time=restamped(pod.finished_at),
        )
    return Failure(
        **where,
        rank=word.rank if word.rank is not None else pod.rank,
        exit_code=word.exit_code,
        signal=word.signal,
        reason=pod.disruption or _own_reason(word.reason),
        exception=word.exception,
        message=word.message,
        time=stamp(word.time) if word.time else restamped(pod.finished_at),
    )


def _own_reason(reason: str) -> str:
    """What only Kubernetes can know, a pod cannot claim: it would not count."""
    return "Error" if reason in DISRUPTIONS - {SAVED} else reason


def _in_its_words(pod: PodRecord, message: str) -> str:
    """Where our reason stands for several of Kubernetes' own, that one too."""
    return f"{pod.reason}: {message}" if pod.disruption == "NodeRefused" else message


def _no_words(pod: PodRecord) -> str:
    return (
        "" if pod.exit_code is None else f"ended with exit code {pod.exit_code}, without a message"
    )


def _clip(text: str) -> str:
    return printable(text, MAX_MESSAGE)


def _seconds(time: str | None) -> float:
    seconds = unix_seconds(time)
    return _EARLY if seconds is None else seconds
