"""Judges each process that failed: what failed, and whether another rank's failure caused it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Any, Mapping, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.records import integer, objects, past

# The messages of a rank that has lost another one, by library. [R]: from reports, not seen by us.
# The exception must be one of torch's: a script's ConnectionResetError is its own failure.
TORCH_ERRORS = re.compile(r"RuntimeError|Dist(Backend|Network|Store|)Error")
PEER_ENDS = {
    "gloo": r"(?i)(gloo|\.cc:\d+\]).*((closed|reset) by peer|broken pipe|refused|timed? ?out)"
    r"|timeout caused pair closure|failed to pass monitoredBarrier",
    "nccl [R]": r"remote process exited or there was a network error|ncclRemoteError"
    r"|NCCL communicator was aborted|collective operation timeout|ncclUniqueId.*store->get",
    # One that cannot reach the store tells more than the store, which only waits for it.
    "store": r"Did the remote server shutdown or crash|Socket Timeout"
    r"|socket has timed out(?!.*while trying to connect)"
    r"|wait timeout after|waiting for clients|\A(Broken pipe|Connection reset by peer)",
}
# The same in lines of a log, where no type stands beside them.
LOGGED_ENDS = "|".join(
    (PEER_ENDS["nccl [R]"], PEER_ENDS["gloo"][4:], "Did the remote server shutdown or crash")
)
# The higher, the less a failure explains.
PRIMARY, SUSPECT, SECONDARY, STOPPED = 0, 1, 2, 3
# So much of a record is judged: patterns take their time on long texts.
TEXT_CHARS, CAUSES = 4000, 8
# Colours in a terminal.
ESCAPES = r"\x1b\[[0-9;]*[A-Za-z]"
# sys.exit(1) and exit(-1), with which programs end that give no reason.
PLAIN_CODES = (1, 255)
# What a script has to do about a rank that leaves the others.
SAME_STEPS = "all ranks must take the same number of steps (drop_last, or DDP's join)"
# Libraries whose sentence is the last one on stderr.
PARSERS = ("argparse", "click.", "typer.")
# Of a script that was written for torch.distributed.launch.
NO_LOCAL_RANK = "; torchrun sets LOCAL_RANK"
# Programs that only start others, as modules and as commands.
LAUNCHERS = re.compile(
    r"torch\.distributed\.(run|launch)|torchrun|accelerate(\.commands\.\w+)?|accelerate-launch"
)


def names_peer_end(exception: str, text: str) -> bool:
    """Whether an exception only says that another rank has gone."""
    heard = any(re.search(pattern, text, re.DOTALL) for pattern in PEER_ENDS.values())
    return heard and TORCH_ERRORS.fullmatch(exception) is not None


def one_line(exception: str, text: str) -> tuple[str, str]:
    """Type and one line, `ValueError: boom`, of an exception's whole message.

    Where it carries the traceback of another process (of a DataLoader worker, of mp.spawn), the
    last line tells what happened there. A first line with a colon at its end only announces.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and "Traceback (most recent call last)" in text:
        match = re.match(r"(?:\w+\.)*([A-Za-z_]\w*)(?:: |\Z)", lines[-1])
        return match.group(1) if match else exception, lines[-1]
    said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return exception, f"{exception}: {said}" if said else exception


@dataclass
class Failure:
    """The end of one process that failed."""

    message: str
    time: float  # unix seconds
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    traceback: str = ""
    grade: int = PRIMARY
    place: str = ""
    """The place where the process waits for other ranks."""
    stopped: bool = False
    """By torchrun, and it had not failed before; by SIGTERM where torchrun is not ours."""
    launched: bool = True
    """The script itself began."""


def signal_name(code: int) -> str:
    """SIGKILL for exit status -9; SIG<n> where the number has no name."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"SIG{-code}"


def judge_exception(record: Mapping[str, Any]) -> tuple[int, str, str]:
    """Grade, type and line of a recorded exception, which may come from others.

    An exception that wraps a peer's end is secondary too. A peer's end that came while another
    exception was handled, in a `finally` for example, explains less than that exception; but that
    one may have been of no account.
    """
    kind, text = str(record.get("type")), str(record.get("message", ""))
    is_of_child = "Traceback (most recent call last)" in text
    text = text[-TEXT_CHARS:] if is_of_child else text[:TEXT_CHARS]
    line = one_line(kind, text)
    links = [(line[0], text)]
    for cause in objects(record.get("causes"))[-CAUSES:]:
        links.append((str(cause.get("type")), str(cause.get("message", ""))[:TEXT_CHARS]))
    heard = [names_peer_end(*link) for link in links]
    if heard[-1] or not any(heard):
        return (SECONDARY if heard[-1] else PRIMARY, *line)
    return (SUSPECT, *one_line(*links[-1]))


def judge_words(words: Mapping[str, Any], code: int) -> tuple[int, str]:
    """Grade and text of what a process said as it exited with `code`; without text: unknown."""
    exceptions = objects(words.get("handled"))[-CAUSES:]
    handled = sorted(map(judge_exception, exceptions), key=lambda judged: judged[0])
    text, logged = (
        " ".join(re.sub(ESCAPES, "", str(words.get(name) or "")[:TEXT_CHARS]).split())
        for name in ("message", "stderr")
    )
    is_parser = str(words.get("by")).startswith(PARSERS) and bool(text or logged)
    if is_parser and code not in PLAIN_CODES:
        told = NO_LOCAL_RANK if re.search(r"required: .*--local[-_]rank\b", text or logged) else ""
        return PRIMARY, f": {text or logged}{told}"
    if text or handled:
        grade = SECONDARY if re.search(LOGGED_ENDS, text) else PRIMARY
        return (handled[0][0] if handled else grade), f": {text or handled[0][2]}"
    if logged:
        grade = SUSPECT if code in PLAIN_CODES else PRIMARY
        colon = ": " if is_parser else "; last on stderr: "  # click tells with 1 of any failure
        return (SECONDARY if re.search(LOGGED_ENDS, logged) else grade), f"{colon}{logged}"
    return (SUSPECT if code in PLAIN_CODES else PRIMARY), ""


def is_launch(words: Mapping[str, Any]) -> bool:
    """Whether no script ever began: none was found, or a launcher refuses its own options."""
    by, asked_by = str(words.get("by")), str(words.get("asked_by"))
    return by in ("python", "runpy") or LAUNCHERS.fullmatch(asked_by) is not None


def lacks_torch(record: Mapping[str, Any]) -> bool:
    """Whether an exception is that of a launcher in an image without torch, or without itself."""
    missing = str(record.get("missing")).split(".")[0]
    program = LAUNCHERS.fullmatch(str(record.get("program")))
    return program is not None and missing in ("torch", "accelerate")


def make_failure(
    worker: Mapping[str, Any],
    record: Mapping[str, Any] | None,
    crowd: bool,
    now: float,
    words: Mapping[str, Any] | None = None,
) -> Failure:
    """The failure of `worker` (rank, local_rank, exitcode, ended_at), with its hook's `record`.

    `words` is what it printed as it exited. In a `crowd` an abort without an exception, and an end
    without a reason, may be secondary: NCCL's watchdog and gloo abort after the death of a peer,
    and scripts exit with 1 after they have printed what came to them.
    """
    code = worker.get("exitcode")
    code = code if isinstance(code, int) else 1
    failure = Failure(
        message=f"killed by {signal_name(code)}" if code < 0 else f"exited with code {code}",
        time=past(worker.get("ended_at"), now),
        rank=integer(worker.get("rank")),
        local_rank=integer(worker.get("local_rank")),
        exit_code=None if code < 0 else code,
        signal=signal_name(code) if code < 0 else None,
    )
    if record is not None:
        failure.grade, failure.exception, failure.message = judge_exception(record)
        failure.traceback = str(record.get("traceback", ""))
        failure.time = past(record.get("time"), failure.time)
        failure.launched = not lacks_torch(record)
    elif code > 0 and words is not None and words.get("code") in (code, None):
        failure.launched = not is_launch(words)
        failure.time = past(words.get("time"), failure.time)
        failure.grade, said = judge_words(words, code)
        failure.message += said
    elif failure.signal == "SIGABRT" or code in PLAIN_CODES:
        failure.grade = SUSPECT
    if failure.grade == SUSPECT and not crowd:
        failure.grade = PRIMARY
    failure.stopped = was_stopped(worker, failure, now)
    return failure


def who_left(workers: Sequence[Mapping[str, Any]], lost: Failure) -> Failure | None:
    """The first rank that ended well by itself, where another one only failed, or hangs, for that.

    `workers` are as in launch.json, with the `step` that each has made; `lost` is the other one.
    Without a rank it stands for ranks on other nodes. It may end first: Python closes its
    connections some time before it ends.
    """
    ends = [
        (past(worker.get("ended_at"), lost.time), worker)
        for worker in workers
        if worker.get("exitcode") == 0 and worker.get("stopped_at") is None
    ]
    if not ends:
        return None
    at, worker = min(ends, key=lambda end: end[0])
    step = {integer(other.get("rank")): other.get("step") for other in workers}.get(lost.rank)
    after = f" after step {worker.get('step')}" * bool(worker.get("step"))
    who = "others" if lost.rank is None else f"rank {lost.rank}"
    since = f", past step {step}," * bool(step)
    message = f"ended{after} while {who}{since} still waited for it; {SAME_STEPS}"
    rank, local_rank = (integer(worker.get(name)) for name in ("rank", "local_rank"))
    failure = Failure(message, at, rank, local_rank, traceback=lost.traceback)
    failure.grade = SUSPECT
    return failure


def was_stopped(worker: Mapping[str, Any], failure: Failure, now: float) -> bool:
    """Whether torchrun stopped a worker before this failure; SIGTERM alone where it is not ours."""
    if "stopped_at" not in worker:
        return failure.signal == "SIGTERM" and failure.exception is None
    if worker["stopped_at"] is None:
        return False
    return failure.exception is None or failure.time >= past(worker["stopped_at"], now)


def recorded_by_torch(worker: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of torch's `@record`, in the shape of our hook's; None where there is none."""
    error = worker.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("extraInfo"), dict):
        return None
    kind, _, text = str(error.get("message")).partition(": ")
    return {"type": kind, "message": text, "traceback": error["extraInfo"].get("py_callstack", "")}
