"""Reads the agents' termination messages, and finds the first cause of several failures. Pure.

Any process in a pod may write its termination message, so the message is hostile: types are strict,
sizes are bounded, and a message that is not the agent's is read as the kubelet's.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddpjob.api import MAX_REASON, MAX_TRACEBACK, Failure, Result
from ddpjob.names import MAX_RESULT
from ddpjob.plan.model import UNREAD, PodRecord, Report, Termination
from ddpjob.plan.reasons import (
    COMPLETED,
    HANG,
    NODE_REFUSED,
    NODE_SILENT,
    PEER_ENDED,
    PREEMPTED,
    UNCOUNTED,
)
from ddpjob.ranks import format_ranks
from ddpjob.text import printable, printable_end
from ddpjob.times import as_timestamp, timestamp, unix_seconds

# Characters of a failure's message that go into status.
MAX_MESSAGE = 1024
# The agent says the same of ranks in one pod.
SAME_STEPS = "all ranks must take the same number of steps (drop_last, or DDP's join)"
_TIMEOUT = re.compile(r"(?i)timed? ?out")
# 2100-01-01: sorts failures without a time behind those with one.
_LATE = 4102444800.0

MAX_NAME = 63
Name = Annotated[str, Field(max_length=MAX_NAME)]


_POD_FIELDS = ("namespace", "job", "node_rank")


class ProgressPage(BaseModel):
    """The agent's answer at `/progress`, and `progress` of its termination message.

    NaN and infinite losses are legal.
    """

    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, ser_json_inf_nan="constants"
    )

    namespace: str | None = None
    job: str | None = None
    attempt: Annotated[int, Field(ge=0, lt=2**31)] = 0
    round: Annotated[int, Field(ge=0, lt=2**31)] = 0
    node_rank: Annotated[int, Field(ge=0, lt=2**31)] = 0
    source: Literal["file", "callback", "counted", "none"] = "none"
    step: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    first_step: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    total_steps: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    epoch: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: Annotated[float, Field(ge=0, lt=2**53)] | None = None
    updated_at: Annotated[float, Field(ge=0, lt=2**36)] | None = None
    metrics: Annotated[dict[Name, float], Field(max_length=32)] = {}

    def is_of(self, pod: PodRecord) -> bool:
        """Whether it is this pod's. On a node's own network another pod may have answered."""
        of = (self.attempt, self.node_rank) == (pod.attempt, pod.rank)
        return of and self.job in (None, pod.job) and self.namespace in (None, pod.namespace)

    def report(self) -> Report | None:
        """Return the report, or None if there is nothing to report yet."""
        if self.step is None or self.source == "none":
            return None
        fields = self.model_dump(exclude={"metrics", "source", "step", *_POD_FIELDS})
        shown = {printable(name, MAX_NAME): value for name, value in self.metrics.items()}
        return Report(step=self.step, source=self.source, metrics=tuple(shown.items()), **fields)


class LeftResult(BaseModel):
    """The result that rank 0 has left, which may be anything."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    value: Any = None
    size: Annotated[int, Field(ge=0, lt=2**53)]

    def result(self) -> Result:
        """Return `status.result`. A value that is too large for it, or too deep, is left out."""
        text = ""
        if "value" in self.model_fields_set:
            with suppress(RecursionError):
                text = json.dumps(self.value, separators=(",", ":"))
        return Result(value=text if 0 < len(text) <= MAX_RESULT else None, size_bytes=self.size)


class TerminationMessage(BaseModel):
    """What the agent writes into the pod's termination message when it ends."""

    model_config = ProgressPage.model_config

    version: Literal[1]
    reason: Annotated[str, Field(max_length=63)]
    round: Annotated[int, Field(ge=0, lt=2**31)] = 0
    rank: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    signal: Annotated[str, Field(max_length=63)] | None = None
    exception: Annotated[str, Field(max_length=253)] | None = None
    message: Annotated[str, Field(max_length=4096)] = ""
    peer: bool = False
    """The failure is secondary: another rank's failure has caused it."""
    suspect: bool = False
    """The failure looks secondary, but it may be the primary one."""
    place: Annotated[str, Field(max_length=200)] | None = None
    """Where a rank that hangs waits for others."""
    time: Annotated[float, Field(ge=0, lt=2**36)] | None = None
    result: LeftResult | None = None
    progress: ProgressPage | None = None
    traceback: Annotated[str, Field(max_length=4096)] = ""
    """Its end, where it is long."""


def read_termination(pod: PodRecord) -> TerminationMessage | None:
    """Return the agent's termination message, or None if the pod has none.

    A kubelet keeps 12 KiB of all containers' messages together, so in a pod of more than three
    containers each may lose its end.
    """
    if not pod.message.startswith("{"):
        return None
    kept = (pod.message.rpartition(f',"{name}":')[0] for name in ("traceback", "progress"))
    for text in (pod.message, *(start + "}" for start in kept if start)):
        with suppress(ValueError, ValidationError):
            return TerminationMessage.model_validate(loads(text))
    return None


def termination_of(pod: PodRecord) -> Termination | None:
    """Return how the pod ended by its agent's message, read once for each record, or None."""
    if pod.termination is UNREAD:
        # Not a change: it follows from the message. By two threads at once it is read twice.
        object.__setattr__(pod, "termination", _termination(pod))
    return pod.termination


def _termination(pod: PodRecord) -> Termination | None:
    """Little is kept, since there are thousands of records: no traceback, and rank 0's report."""
    message = read_termination(pod)
    if message is None:
        return None
    progress = message.progress
    said = progress if pod.rank == 0 else None
    left = message.result if pod.rank == 0 and message.reason == COMPLETED else None
    return Termination(
        reason=message.reason,
        rank=message.rank,
        exit_code=message.exit_code,
        signal=message.signal,
        exception=message.exception,
        message=_clip(message.message),
        timed_out=message.reason != HANG and _TIMEOUT.search(message.message) is not None,
        secondary=message.peer,
        maybe_primary=message.suspect,
        place=message.place,
        time=message.time,
        report=said.report() if said else None,
        result=left.result() if left else None,
        round=message.round,
        step=progress.step if progress else None,
        stepped=progress is not None
        and progress.source in ("callback", "counted")
        and progress.round == message.round
        and bool(progress.step),
    )


def loads(text: str | bytes) -> Any:
    """JSON with NaN and Infinity, as Python writes them. Raises ValueError."""
    try:
        return json.loads(text)  # orjson refuses both
    except RecursionError:
        raise ValueError("nested too deeply") from None


def final_report(pods: Iterable[PodRecord]) -> Report | None:
    """Return the last report of node rank 0, from its termination message."""
    for pod in pods:
        if pod.rank == 0 and pod.result:
            termination = termination_of(pod)
            return termination.report if termination else None
    return None


def final_result(pods: Iterable[PodRecord]) -> Result | None:
    """Return the result that node rank 0 has left, if it has ended well."""
    found = (termination_of(pod) for pod in pods if pod.rank == 0 and pod.result)
    return next((termination.result for termination in found if termination), None)


def is_secondary(pod: PodRecord) -> bool:
    """Whether this pod failed because another pod had failed, as its agent judges."""
    termination = termination_of(pod)
    return termination is not None and termination.secondary


def first_cause(pods: Iterable[PodRecord]) -> PodRecord:
    """Return the failed pod that began it."""
    return by_cause(pods)[0]


def by_cause(pods: Iterable[PodRecord]) -> list[PodRecord]:
    """Return failed pods in order, the nearest to the cause first.

    Primary failures come before secondary ones, and a secondary one that may be primary before the
    others; then the earliest. (An agent learns of an abort by the process's end, and other ranks
    may have reported before.) Of ranks that hang and all wait for others, the one comes first that
    waits where the fewest do.
    """
    pods = list(pods)
    shared = Counter(places(pods).values())

    def order(pod: PodRecord) -> tuple[bool, bool, float, float, int]:
        termination = termination_of(pod)
        if termination is None:
            return (False, False, 0, _seconds(pod.finished_at), pod.rank)
        time = termination.time if termination.time is not None else _seconds(pod.finished_at)
        is_certain = termination.secondary and not termination.maybe_primary
        rarity = shared.get(termination.place or "", math.inf) if is_certain else 0
        return (termination.secondary, is_certain, rarity, time, pod.rank)

    return sorted(pods, key=order)


def places(pods: Iterable[PodRecord]) -> dict[int, str]:
    """Return where pods that hang wait for others, by node rank."""
    terminations = {pod.rank: termination_of(pod) for pod in pods}
    return {rank: found.place for rank, found in terminations.items() if found and found.place}


def late_failure(
    failed: Sequence[PodRecord], live: Sequence[PodRecord], current_round: int = 0
) -> Failure | None:
    """Return the failure of the one pod that the others waited for in vain, if there is one.

    All that failed have failed secondarily. A rank that does not notice the others' end, although
    their collectives timed out, is in no collective.
    """
    if (
        len(live) != 1
        or not live[0].running
        or not any((found := termination_of(pod)) and found.timed_out for pod in failed)
    ):
        return None
    late, reported = live[0], failure(first_cause(failed), current_round)
    words = f"the others waited for node rank {late.rank} in vain, which has not failed"
    return _blamed(late, HANG, _clip(f"{words}: {reported.message}"), reported)


def peer_ended(found: Failure, failed: PodRecord, left: PodRecord) -> Failure:
    """Return the failure of `left`, which ended well while `failed` still waited for it.

    `found` is the secondary failure of `failed`.
    """
    ends = (termination_of(pod) for pod in (left, failed))
    step, since = (end.step if end else None for end in ends)
    who = f"node rank {failed.rank}" if found.rank is None else f"rank {found.rank}"
    waited = f"{who}, past step {since}," if since else who
    after = f" after step {step}" if step else ""
    words = f"ended{after} while {waited} still waited for it; {SAME_STEPS}"
    return _blamed(left, PEER_ENDED, words, found)


def _blamed(pod: PodRecord, reason: str, message: str, reported: Failure) -> Failure:
    """Return the failure of a pod that has not failed itself, but caused the one `reported`."""
    return Failure(
        attempt=pod.attempt,
        round=reported.round,
        pod=pod.name,
        node=pod.node or None,
        reason=reason,
        message=message,
        traceback=reported.traceback,
        time=reported.time,
    )


def secondary_failure(failed: Sequence[PodRecord], current_round: int = 0) -> Failure:
    """Return `status.failure` of a group in which all failures are secondary.

    If ranks wait in different collectives, the message names both places.
    """
    first = first_cause(failed)
    found, where = with_traceback(failure(first, current_round), first), places(failed)
    elsewhere = {rank: place for rank, place in where.items() if place != where.get(first.rank)}
    if first.rank not in where or not elsewhere:
        return found
    place = Counter(elsewhere.values()).most_common(1)[0][0]
    ranks = format_ranks(rank for rank, at in elsewhere.items() if at == place)
    message = _clip(f"{found.message[: MAX_MESSAGE // 2]}; node rank {ranks} in {place}")
    return found.model_copy(update={"message": message})


def failure(pod: PodRecord, current_round: int = 0) -> Failure:
    """Return `status.failure` of this pod, whose attempt is in `current_round`.

    It has a rank if the agent has named the process.
    """
    termination = termination_of(pod)
    where: dict[str, Any] = {"attempt": pod.attempt, "pod": pod.name, "node": pod.node or None}
    if termination is None:
        return Failure(
            **where,
            round=current_round,
            exit_code=pod.exit_code,
            reason=pod.disruption or pod.reason[:MAX_REASON] or "Error",
            message=_clip(_kubelet_message(pod)),
            time=as_timestamp(pod.finished_at),
        )
    # An agent that gives a reason that only Kubernetes can know: it would not be counted.
    is_kubernetes_own = termination.reason in UNCOUNTED - {PREEMPTED, NODE_SILENT}
    return Failure(
        **where,
        round=min(termination.round, current_round),  # no later one has begun
        rank=termination.rank,
        exit_code=termination.exit_code,
        signal=termination.signal,
        reason=pod.disruption or ("Error" if is_kubernetes_own else termination.reason),
        exception=termination.exception,
        message=termination.message,
        time=timestamp(termination.time) if termination.time else as_timestamp(pod.finished_at),
    )


def with_rank(found: Failure, node_rank: int | None, processes: int) -> Failure:
    """Return `found` with a rank, if its pod has one process, whether or not the agent named it.

    Of a pod with more of them no rank is the one that failed: it is evicted with all of its ranks.
    """
    if found.rank is not None or found.pod is None or processes > 1:
        return found
    return found.model_copy(update={"rank": node_rank})


def with_traceback(found: Failure, pod: PodRecord) -> Failure:
    """Return `found`, the failure of this pod, with the traceback that its agent has left.

    The message is read once more for it, so that no record keeps it.
    """
    message = read_termination(pod)
    text = message.traceback.strip("\n") if message else ""
    traceback = printable_end(text, MAX_TRACEBACK) or None
    return found.model_copy(update={"traceback": traceback})


def _kubelet_message(pod: PodRecord) -> str:
    """Return the last line of a message that is not the agent's, or else the exit code."""
    message = next(
        (line.strip() for line in reversed(pod.message.splitlines()) if line.strip()), ""
    )
    if not message and pod.exit_code is not None:
        message = f"ended with exit code {pod.exit_code}, without a message"
    # Our reason stands for several of Kubernetes', so that one is named too.
    return f"{pod.reason}: {message}" if pod.disruption == NODE_REFUSED else message


def _clip(text: str) -> str:
    return printable(text, MAX_MESSAGE)


def _seconds(time: str | None) -> float:
    seconds = unix_seconds(time)
    return _LATE if seconds is None else seconds
