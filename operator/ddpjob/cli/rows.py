"""A job as a row of `ddpjob get`. Pure: `now` comes in."""

import math
import re
from collections.abc import Callable

from ddpjob.client import why
from ddpjob.client.job import Job
from ddpjob.times import duration

HEADINGS = ("NAME", "STATE", "NODES", "STEP", "LOSS", "ETA", "RESTARTS", "AGE")
# Before the reason, which is cut at the end of a terminal's line.
WIDE = ("ATTEMPT", "POD", "NODE", "IMAGE", "USER")
NONE = "-"
# Characters of a cell, but for the last ones.
MAX_CELL = 64

# By which `--sort` puts jobs into order.
ORDERS: dict[str, Callable[[Job], tuple[float | str, ...]]] = {
    "age": lambda job: (-(job.created or 0.0), job.namespace, job.name),
    "name": lambda job: (job.namespace, job.name),
    "state": lambda job: (job.state, job.namespace, job.name),
    "restarts": lambda job: (-restarts(job), job.namespace, job.name),
    "step": lambda job: (-(why.number(job.seen, "status", "progress", "step") or 0), job.name),
    "loss": lambda job: (loss(job), job.name),
}


def loss(job: Job) -> float:
    """Return the last loss, infinity without one: those jobs come last."""
    text = why.text(job.seen, "status", "summary", "loss", limit=32)
    return float(text) if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?", text) else math.inf


def headings(*, wide: bool = False, namespaces: bool = False) -> tuple[str, ...]:
    """Return the headings of the columns."""
    first, more = ["NAMESPACE"] if namespaces else [], WIDE if wide else ()
    return (*first, *HEADINGS, *more, "REASON")


def row(job: Job, now: float, *, wide: bool = False, namespaces: bool = False) -> tuple[str, ...]:
    """Return the cells of a job, all of them printable."""
    age = NONE if job.created is None else duration(max(0.0, now - job.created))
    cells = [
        *([job.namespace] if namespaces else []),
        job.name,
        job.state,
        *(_summary(job, name) for name in ("nodes", "step", "loss", "eta")),
        str(restarts(job)),
        age,
    ]
    if wide:
        image = why.text(job.seen, "spec", "image") or NONE
        cells += [_attempt(job), *_place(job), image, job.user or NONE]
    return (*cells, reason(job, now))


def restarts(job: Job) -> int:
    """Return the number of the job's restarts."""
    return why.number(job.seen, "status", "restarts") or 0


def reason(job: Job, now: float) -> str:
    """Return the job's reason, with the time for which it waits: `Unschedulable 12m: 0/9 …`."""
    line = job.reason
    word, colon, rest = line.partition(":")
    status = job.seen.get("status")
    began = why.since(status)
    if began is None or word != why.text(why.condition(status, "Running"), "reason"):
        return line
    return f"{word} {duration(max(0.0, now - began))}{colon}{rest}"


def _summary(job: Job, name: str) -> str:
    return why.text(job.seen, "status", "summary", name, limit=MAX_CELL) or NONE


def _attempt(job: Job) -> str:
    told = why.text(job.seen, "status", "summary", "attempt", limit=MAX_CELL)
    return told or f"{job.attempt}.{why.number(job.seen, 'status', 'round') or 0}"


def _place(job: Job) -> list[str]:
    """Return pod and node: of an older operator's job, those of the primary failure."""
    places = []
    for name in ("pod", "node"):
        told = why.text(job.seen, "status", "summary", name, limit=253)
        failed = "" if job.state == "Running" else why.text(job.seen, "status", "failure", name)
        places.append(told or failed or NONE)
    return places
