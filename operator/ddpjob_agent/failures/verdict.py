"""The verdict on a pod's part of the attempt, and the termination message that carries it."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Any, Mapping, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import (
    NO_RENDEZVOUS,
    OK,
    OUT_OF_MEMORY,
    SAVED,
    SILENT,
    TERMINATED,
    USER_ERROR,
    Config,
    say,
)
from ddpjob_agent.failures.failures import (
    PRIMARY,
    SECONDARY,
    STOPPED,
    SUSPECT,
    TORCH_ERRORS,
    Failure,
    make_failure,
    one_line,
    who_left,
)
from ddpjob_agent.processes import memory_limit
from ddpjob_agent.records import compact, integer

# The kubelet keeps no more of a termination message.
TERMINATION_BYTES = 4096
# Of a helper process.
KILLED = re.compile(r"killed by signal: Killed|exited unexpectedly|exitcode -9|SIGKILL")


@dataclass(frozen=True)
class Verdict:
    """The end of this pod's part of the attempt."""

    reason: str
    agent_exit: int
    failure: Failure
    result: dict[str, Any] | None = None
    """The value that rank 0 has left, and its size."""


def first_cause(failures: list[Failure]) -> Failure:
    """The failure that explains the others: primary before secondary, then the earliest.

    One that was stopped counts only where nothing else happened: torchrun stops a failed worker's
    siblings.
    """
    if not all(f.stopped for f in failures):
        for failure in failures:
            failure.grade = STOPPED if failure.stopped else failure.grade
    return min(failures, key=lambda f: (f.grade, f.time))


def judge_failures(
    failures: list[Failure], alone: bool = True, workers: Sequence[Mapping[str, Any]] = ()
) -> Verdict:
    """The verdict on workers that failed; `alone`: there are no other pods to have caused it.

    `workers`: all of them, as in launch.json, with the `step` that each has made.
    """
    first = first_cause(failures)
    left = who_left(workers, first) if first.grade == SECONDARY else None
    first = left or first
    if alone:
        first.grade = PRIMARY
    if left is not None:
        return peer_ended(left)
    if first.exit_code == SAVED:
        first.message = f"saved and stopped (exit code {SAVED})"
        return Verdict("Preempted", SAVED, first)
    if first.exception is None and first.signal is not None:
        return Verdict("Signal", 128 + signal_number(first.signal), first)
    if not first.launched:
        return Verdict("LaunchFailed", USER_ERROR, first)
    return Verdict("Exception" if first.exception else "ExitCode", USER_ERROR, first)


def peer_ended(left: Failure) -> Verdict:
    """The verdict on ranks that lost one, or wait for one, that has ended well."""
    return Verdict("PeerEnded", USER_ERROR, left)


def signal_number(name: str) -> int:
    """The number of a signal's name, which may be one without a name of its own: SIG35."""
    digits = name[len("SIG") :]
    return int(digits) if digits.isdigit() else int(getattr(signal, name, 0))


def judge_memory(verdict: Verdict, kills: int) -> Verdict:
    """`verdict`, or OOMKilled where the kernel has meanwhile killed for want of memory.

    With cgroup v1, or the kubelet's singleProcessOOMKill, one process is killed and the agent lives
    to tell; else the whole container is, and the kubelet tells.
    """
    first = verdict.failure
    if kills <= 0 or not (first.signal == "SIGKILL" or KILLED.search(first.message)):
        return verdict
    limit = memory_limit()
    of = "the memory limit" if limit is None else f"the memory limit of {limit / 2**20:.0f} MiB"
    first.message = f"{first.message}: out of memory, by {of}; processes killed for it: {kills}"
    return Verdict("OOMKilled", OUT_OF_MEMORY, first)


def judge_torchrun(error: Any, config: Config, code: int, now: float) -> Verdict:
    """The verdict on a torchrun that ended without a failed worker; `error` is its own."""
    if not isinstance(error, dict):
        failure = make_failure({"exitcode": code}, None, False, now)
        failure.message = "torchrun itself was " * (code < 0) + failure.message
        return judge_failures([failure])
    kind, text = str(error.get("type")), str(error.get("message"))
    failure = Failure(text, now, exit_code=integer(error.get("exit_code")))
    if error.get("stage") != "run":
        return Verdict("LaunchFailed", USER_ERROR, failure)
    failure.exception, failure.message = one_line(kind, text)
    failure.traceback = str(error.get("traceback", ""))
    if TORCH_ERRORS.fullmatch(kind) or kind.startswith("Rendezvous"):
        where = f"{config.master_addr}:{config.master_port}"
        failure.message = f"no group of {config.nnodes} nodes at {where}: {failure.message}"
        failure.grade = SECONDARY if "Did the remote server shutdown or crash" in text else PRIMARY
        return Verdict("Rendezvous", NO_RENDEZVOUS, failure)
    return Verdict("LaunchFailed", USER_ERROR, failure)


def completed(now: float, result: dict[str, Any] | None = None) -> Verdict:
    """The verdict on a pod that has done its work, and has left this result."""
    return Verdict("Completed", OK, Failure("", now, exit_code=0), result)


def refused(problem: str, exception: str | None = None) -> Verdict:
    """The verdict on a pod whose launcher could not be started.

    With an exception, it was for want of something that another try may have.
    """
    failure = Failure(problem, time.time(), exception=exception)
    return Verdict("LaunchFailed", USER_ERROR, failure)


def judge_stop(at: float) -> Verdict:
    """The verdict on a pod that SIGTERM ended at `at` (unix seconds) without a word of saving."""
    text = f"stopped by SIGTERM; no worker ended with {SAVED} (saved)"
    return Verdict("Signal", TERMINATED, Failure(text, at, signal="SIGTERM"))


def silent(words: str) -> Verdict:
    """The verdict on a pod whose ranks ended because others had not been heard for too long.

    Why they were not heard is known elsewhere.
    """
    return Verdict("NodeSilent", SILENT, Failure(words, time.time(), grade=SECONDARY))


def unready(words: str) -> Verdict:
    """The verdict on a pod that cannot begin another round."""
    return Verdict("Rendezvous", NO_RENDEZVOUS, Failure(words, time.time()))


def termination_message(verdict: Verdict, page: Mapping[str, Any]) -> bytes:
    """The termination message as JSON of at most TERMINATION_BYTES.

    The traceback loses its beginning first, then the message its end, then progress its metrics.
    """
    first = verdict.failure
    message: dict[str, Any] = {
        "version": 1,
        "reason": verdict.reason,
        "rank": first.rank,
        "local_rank": first.local_rank,
        "exit_code": first.exit_code,
        "signal": first.signal,
        "exception": (first.exception or "")[:200] or None,
        "message": first.message[:1000],
        "peer": first.grade > PRIMARY,
        "suspect": first.grade == SUSPECT,
        "place": re.sub(r"[^ -~]", "?", first.place)[:200] or None,
        "time": first.time,
        "round": page.get("round", 0),
        **({} if verdict.result is None else {"result": verdict.result}),
        "progress": dict(page),
        # Last, as what may go: of a pod with many containers the kubelet keeps less of each.
        "traceback": first.traceback.strip(),
    }
    while True:
        content = compact(message)
        if len(content) <= TERMINATION_BYTES:
            return content
        if message["traceback"]:
            message["traceback"] = message["traceback"][len(message["traceback"]) // 8 + 1 :]
        elif len(message["message"]) > 200:
            message["message"] = message["message"][:-100]
        else:
            message["progress"].pop("metrics", None)


def write_termination(path: str, content: bytes) -> None:
    """Write in place: the kubelet mounts the file alone, so that no rename can replace it."""
    try:
        # A fifo in its place would keep us waiting for somebody who reads.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
        with open(os.open(path, flags, 0o666), "wb") as file:
            file.write(content)
    except OSError as problem:
        say(f"cannot write the termination message to {path}: {problem}")


def announce(verdict: Verdict) -> None:
    """Write the cause into the log."""
    first = verdict.failure
    rank = "" if first.rank is None else f"rank {first.rank}: "
    gone = first.grade > PRIMARY and verdict.reason not in ("Hang", "NodeSilent", "PeerEnded")
    note = " (another rank had gone before)" if gone else ""
    say(f"{verdict.reason}: {rank}{first.message}{note}")


def conclude(verdict: Verdict, page: Mapping[str, Any], path: str, *, quietly: bool = False) -> int:
    """Write the termination message, and the cause into the log; return the exit code.

    `quietly`: the log has it already.
    """
    write_termination(path, termination_message(verdict, page))
    if verdict.agent_exit != OK and not quietly:
        announce(verdict)
    return verdict.agent_exit
