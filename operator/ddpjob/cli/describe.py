"""`ddpjob describe`: one job, its attempts, what failed first, and what to do."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ddpjob.cli.options import Name, Place, Recorded, find
from ddpjob.cli.output import as_text, document, note, say
from ddpjob.cli.table import lines
from ddpjob.client import description
from ddpjob.client.description import is_because_of
from ddpjob.client.snapshot import Event
from ddpjob.errors import Forbidden
from ddpjob.times import duration, unix_seconds
from ddpjob.why import short_place

HEADINGS = ("ATTEMPT", "FROM", "RAN", "STEPS", "CHARGED", "REASON", "WHERE", "MESSAGE")
NONE = "-"
# Characters of a message in a table.
MAX_MESSAGE = 100
LABEL = 10

Found = Mapping[str, Any]


def describe(
    place: Place,
    name: Name = None,
    output: Recorded = "text",
) -> None:
    """Describe a job: how it is and why, its attempts, what failed first, and what to do next."""
    job = find(place.client(), name)
    events: list[Event] = []
    try:
        events = job.events()
    except Forbidden as error:
        note(f"without events: you may not {error.verb} {error.resource} (role view)")
    found = description.describe(job, events, now=time.time(), flags=place.flags)
    if output == "json":
        document(as_text(found, "json"))
    else:
        say(*text(found, time.time()))


def text(found: Found, now: float) -> Iterator[str]:
    """Yield the lines of a description. `now` is Unix time."""
    yield _title(found, now)
    yield _numbers(found)
    yield from _progress(found, now)
    yield from _why(found, now)
    if found["attempts"]:
        yield from lines(HEADINGS, [_row(each) for each in found["attempts"]])
    yield from _events_of(found, now)
    for label in ("hint", "next"):
        for line in found["hints" if label == "hint" else "next"]:
            yield f"{label:<{LABEL}}{line}"
    if found["docs"]:
        yield f"{'docs':<{LABEL}}{found['docs']}"


def _title(found: Found, now: float) -> str:
    began = unix_seconds(found["since"])
    ago = "" if began is None else duration(max(0.0, now - began))
    finished = found["state"] in ("Succeeded", "Failed")
    state = found["state"] + (f" {ago} ago" if finished else f" for {ago}") * bool(ago)
    parts = [found["name"], found["namespace"], state, f"image {found['image'] or NONE}"]
    if code := found["code"]:
        commit, dirty, _ = (code["revision"] or "").partition("-dirty")
        revision = f" (git {commit[:7]}{', dirty' if dirty else ''})" if commit else ""
        parts.append(f"code {code['sha256'][:7]}{revision}")
    if found["revision"] > 1:
        parts.append(f"revision {found['revision']}")
    return "  ".join(parts)


def _numbers(found: Found) -> str:
    gpus, ranks = found["gpusPerNode"], found["processesPerNode"]
    each = f"{gpus} GPUs" if gpus else f"{ranks} ranks" if ranks > 1 else "1 rank"
    restarts, budget = found["restarts"], found["budget"]
    many = "restart" if restarts == 1 else "restarts"
    since = f"{budget['charged']} charged since new progress, {budget['max']} allowed"
    nodes = "1 node" if found["nodes"] == 1 else f"{found['nodes']} nodes"
    if found["size"] < found["nodes"]:
        nodes = f"{found['size']} of {nodes}"
    size = f"{nodes} x {each}"
    if (spares := found["spares"]) is not None:
        size += f", {spares} {'spare waits' if spares == 1 else 'spares wait'}"
    parts = [size, f"{restarts} {many}: {since}"]
    if found["usefulTime"] is not None:
        parts.append(f"useful time {found['usefulTime']:.0%}")
    return "  ".join(parts)


def _progress(found: Found, now: float) -> Iterator[str]:
    progress = found["progress"]
    if progress is None or progress["step"] is None:
        return
    total = f"/{progress['totalSteps']}" if progress["totalSteps"] else ""
    parts = [f"{progress['step']}{total}"]
    parts += [f"loss {progress['loss']}"] * bool(progress["loss"])
    parts += [f"{progress['samplesPerSecond']} samples/s"] * bool(progress["samplesPerSecond"])
    if found["state"] == "Running" and progress["etaSeconds"] is not None:
        parts.append(f"eta {duration(progress['etaSeconds'])}")
    if (told := unix_seconds(progress["updatedAt"])) is not None:
        parts.append(f"reported {duration(max(0.0, now - told))} ago")
    yield f"{'step':<{LABEL}}{'  '.join(parts)}"


def _why(found: Found, now: float) -> Iterator[str]:
    """Yield why the job is as it is; of one that goes on, what failed last."""
    cause, state, reason = found["cause"], found["state"], found["reason"]
    shows_cause = cause is not None and is_because_of(cause["reason"], state, reason)
    if found["unseen"]:
        text = "no operator has seen this job: does one run, and does it watch this namespace?"
        yield f"{'why now':<{LABEL}}{text}"
    elif not shows_cause:
        words = reason
        if "…" in words and found["message"]:
            words = reason.partition(":")[0]
        if found["message"] and found["message"] not in words and words:
            words = f"{words}: {found['message']}" if len(words) < 64 else words
        if words:
            yield f"{'why now':<{LABEL}}{words}"
    if cause is not None:
        yield from _cause(found, cause, "why now" if shows_cause else "before")


def _cause(found: Found, cause: Found, label: str) -> Iterator[str]:
    rank, node = cause["rank"], cause["nodeRank"]
    named = [("rank", rank), ("node", node)]
    who, *inside = [f"{kind} {number}" for kind, number in named if number is not None] or ["a pod"]
    where = cause["pod"] or "no pod"
    where += f" on {cause['node']}" if cause["node"] else ""
    place = ", ".join([*inside, where])
    yield f"{label:<{LABEL}}{who} ({place}) {how(cause)}: {cause['message'] or NONE}"
    text = f"the first cause of attempt {cause['attempt']}"
    text += f", round {cause['round']}" if cause["round"] else ""
    text += f", revision {cause['revision']}" if cause["revision"] > 1 else ""
    # Of those outside the pod if it failed as a whole.
    processes = found["processesPerNode"]
    others = found["nodes"] * processes - (processes if rank is None else 1)
    if others > 0 and not (rank is None and node is None):
        them = f"{others} other ranks were" if others > 1 else "other rank was"
        text += f"; the {them} stopped after it"
    yield f"{'':<{LABEL}}{text}"
    if found["state"] == "Failed" and found["reason"] and label == "why now":
        yield f"{'':<{LABEL}}{found['reason'].partition(':')[0]}: the job has failed for good"
    yield from (f"  {line}" for line in cause["traceback"].splitlines())


def how(failure: Found) -> str:
    """Return how a process has ended: `exit 1`, `SIGKILL`, `OOMKilled`."""
    reason = str(failure["reason"])
    if failure["exitCode"] is not None and reason in ("ExitCode", "Exception"):
        return f"exit {failure['exitCode']}"
    return str(failure["signal"] or reason) if reason == "Signal" else reason


def _row(each: Found) -> tuple[str, ...]:
    began = unix_seconds(each["startTime"])
    steps = "-".join(str(step) for step in (each["firstStep"], each["step"]) if step is not None)
    place = short_place(each["rank"], each["nodeRank"])
    detail = {"ExitCode": each["exitCode"], "Signal": each["signal"]}.get(each["reason"])
    message = each["message"] or NONE
    return (
        f"{each['attempt']}.{each['round']}" if each["round"] else str(each["attempt"]),
        NONE if began is None else time.strftime("%b%d %H:%M", time.localtime(began)),
        NONE if each["seconds"] is None else duration(each["seconds"]),
        steps or NONE,
        "yes" if each["charged"] else "no",
        each["reason"] if detail is None else f"{each['reason']} {detail}",
        " ".join(filter(None, (place, each["node"]))) or NONE,
        message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
    )


def _events_of(found: Found, now: float) -> Iterator[str]:
    for event in found["events"][-5:]:
        told = unix_seconds(event["time"])
        ago = NONE if told is None else f"{duration(max(0.0, now - told))} ago"
        yield f"{'event':<{LABEL}}{ago:<9} {event['reason']}: {event['message']}"
