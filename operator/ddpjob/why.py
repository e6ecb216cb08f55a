"""Why a job is not simply running: read from the status as it was stored. Pure.

Everything in a status may be anybody's text, and of any type where no definition has checked it.
"""

import math
from collections.abc import Mapping
from typing import Any

from ddpjob import names
from ddpjob.ranks import MAX_NNODES, MAX_WORLD_SIZE
from ddpjob.text import printable
from ddpjob.times import duration, seconds_since, unix_seconds

# The condition that says why a job is in a state; of all other states it is Running.
DECISIVE = {"Failed": "Failed", "Succeeded": "Complete", "Suspended": "Suspended"}
# The states that a job never leaves. `api.FINISHED` has them too, behind a slow import.
FINISHED = ("Succeeded", "Failed")
# The states of a job that has no pods yet.
BEFORE_PODS = ("Pending", "Queued")
# Seconds for which a refusal may pass by itself: a webhook that starts, a name that is freed.
REFUSED_SECONDS = 30.0
# Characters of the line.
MAX_LINE = 256
# The largest number that is read: JSON readers keep integers exact up to here.
MAX_NUMBER = 2**53 - 1


def part(body: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None where a part of it is missing."""
    for name in path:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def text(body: Any, *path: str, limit: int = MAX_LINE) -> str:
    """Return the text at a path of keys, printable; empty where there is none."""
    found = part(body, *path)
    if isinstance(found, str):
        return printable(found, limit)
    count = number(body, *path)
    return "" if count is None else str(count)


def number(body: Any, *path: str) -> int | None:
    """Return the integer at a path of keys, or None; None too for one that is out of bounds."""
    found = part(body, *path)
    # True is an int, and no number of anything.
    is_number = isinstance(found, int) and not isinstance(found, bool)
    return found if is_number and -MAX_NUMBER <= found <= MAX_NUMBER else None


def condition(status: Any, kind: str) -> Mapping[str, Any]:
    """Return the condition of this type; an empty one if there is none."""
    found = part(status, "conditions")
    for each in found if isinstance(found, list) else ():
        if isinstance(each, Mapping) and each.get("type") == kind:
            return each
    return {}


def has_failed(status: object) -> bool:
    """Return whether the job is as it is because its ranks have failed."""
    if state(status) != "Idle":
        return state(status) in ("Failed", "Restarting")
    return text(condition(status, "Running"), "reason") != "Idle"


def state(status: Any) -> str:
    """Return the job's state in one word."""
    return text(status, "state", limit=63) or "Pending"


def reason(status: Any) -> str:
    """Return why the job is not simply running, in one line; empty while all is well."""
    return text(status, "summary", "reason")


def with_time(reason: str, status: Any, now: float) -> str:
    """Return a job's reason with the time for which it waits: `Unschedulable 12m: 0/9 …`.

    The reason itself may be younger. The condition's own time is not enough: it is older where the
    job was suspended, or where attempts before this one never ran.
    """
    word, colon, rest = reason.partition(":")
    running = condition(status, "Running")
    if not word or word != text(running, "reason"):
        return reason
    ended = part(status, "history")
    times = (
        text(running, "lastTransitionTime", limit=64),
        text(status, "goodput", "since", limit=64),
        text(ended[-1], "endTime", limit=64) if isinstance(ended, list) and ended else "",
    )
    known = [seconds for time in times if (seconds := unix_seconds(time)) is not None]
    return f"{word} {duration(max(0.0, now - max(known, default=now)))}{colon}{rest}"


def useful(status: Any, now: float) -> float | None:
    """Return the useful part of the job's time until `now`, from 0 to 1; None before it ran.

    The status has the time of a state once that has ended; the present one is added here, until
    the last step. What is useful now is lost if the next attempt has to repeat it.
    """
    spent = part(status, "goodput")
    books = ("startingSeconds", "productiveSeconds", "lostSeconds")
    starting, productive, lost = (max(0, number(spent, book) or 0) for book in books)
    current = max(0.0, seconds_since(text(spent, "since", limit=64), now))
    match state(status):
        case "Running":
            seen = min(current, _seconds_of_steps(status, text(spent, "since", limit=64)))
            whole, kept = starting + productive + lost + current, productive + seen
        case "Starting" | "Restarting":
            whole, kept = starting + productive + lost + current, float(productive)
        case _:
            whole, kept = float(starting + productive + lost), float(productive)
    return kept / whole if kept or lost else None


def _seconds_of_steps(status: Any, since: str) -> float:
    """Return the seconds from `since` to the last step that was seen in this round."""
    progress = part(status, "progress")
    rounds = [
        [number(each, key) or 0 for key in ("attempt", "round")] for each in (status, progress)
    ]
    if not isinstance(progress, Mapping) or rounds[0] != rounds[1]:
        return 0.0
    last = unix_seconds(text(progress, "updatedAt", limit=64))
    return math.inf if last is None else max(0.0, seconds_since(since, last))


def message(status: Any) -> str:
    """Return the words of the condition that decides; of a finished job, those of its end."""
    kinds = ("Accepted",) if condition(status, "Accepted").get("status") == "False" else ()
    for kind in (*kinds, DECISIVE.get(state(status), "Running")):
        if found := text(condition(status, kind), "message", limit=4096):
            return found
    return ""


def refusal(status: Any) -> str:
    """Return why the job gets no pods until somebody changes something; empty if it may get them.

    A job that runs goes on, whatever an edit has broken. In pods that are kept nothing runs then.
    """
    if state(status) not in (*BEFORE_PODS, "Starting", "Restarting", "Idle"):
        return ""
    accepted, running = condition(status, "Accepted"), condition(status, "Running")
    if accepted.get("status") == "False":
        return f"{text(accepted, 'reason')}: {text(accepted, 'message', limit=4096)}"
    if text(running, "reason") == "CreateRefused":
        return f"CreateRefused: {text(running, 'message', limit=4096)}"
    return ""


def cause(status: Any, processes: int) -> str:
    """Return the primary failure in short: `ExitCode r13 gpu-17: CUDA error`."""
    failure = part(status, "failure")
    where = [text(failure, "reason"), short_place(*place(status, failure, processes))]
    where.append(text(failure, "node"))
    words = (" ".join(filter(None, where)), text(failure, "message"))
    return printable(": ".join(filter(None, words)), MAX_LINE)


def place(status: Any, failure: Any, processes: int) -> tuple[int | None, int | None]:
    """Return the global rank of the process that failed, and the node rank of its pod.

    None is what is not known: there is no rank if a pod of several processes failed as a whole, or
    nobody knows which of them did. Of a pod that has got another rank, `status` knows it.
    """
    rank, named = number(failure, "rank"), names.place(text(failure, "pod", limit=253))
    node = None if named is None else (rank_of(status, *named) or named[1:])[0]
    if rank not in range(MAX_WORLD_SIZE):  # any process of a pod may have written it
        rank = None
    if node not in range(MAX_NNODES):
        node = None if rank is None else rank // processes
    return rank, node


def rank_of(status: Any, attempt: int, rank: int, since: int) -> tuple[int, int] | None:
    """Return the node rank that a pod has got, and its first round with it.

    The pod has this place in its name (`names.place`). None is returned if it has got no other one,
    as long as the status has it: that of a finished job has not.
    """
    for table in part(status, "pods") or ():
        if table["attempt"] != attempt:
            continue
        for spare in table.get("spares", ()):
            if spare["number"] == -rank and "rank" in spare:
                return spare["rank"], spare["round"]
        for moved in table.get("moved", ()):
            if (moved["of"], moved.get("round", 0)) == (rank, since):
                return moved["rank"], since
    return None


def short_place(rank: int | None, node_rank: int | None) -> str:
    """Return a place as the lines of a log begin: `r13`, or of a whole pod `n1`."""
    if rank is not None:
        return f"r{rank}"
    return "" if node_rank is None else f"n{node_rank}"
