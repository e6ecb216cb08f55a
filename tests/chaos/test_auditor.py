"""The auditor sees each broken promise: in the trail of a good run, one thing is made wrong."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.chaos.auditor import Auditor, Entry
from tests.chaos.embedded import trail_of
from tests.chaos.rounds import Deed, What
from tests.chaos.workloads import QUEUES, SILENCES, WORKLOADS

Trail = Sequence[Any]
"""Entries and deeds."""
IN_PLACE, SILENT, REPLACED = "fails-in-place", "has-a-node-stopped", "replaces-rank-1"


@cache
def good(name: str) -> Trail:
    """All that happens in a life of this job."""
    (workload,) = (w for w in (*WORKLOADS, *QUEUES, *SILENCES) if w.name == name)
    return asyncio.run(trail_of(workload))


def promises(trail: Trail) -> set[str]:
    """The promises that the auditor finds broken."""
    auditor = Auditor()
    auditor.replay(trail)
    return {breach.promise for breach in auditor.at_rest()}


def pod(trail: Trail, verb: str, attempt: int, rank: int, since: int = 0) -> int:
    """Place of the operator's first such write of a pod."""
    wanted = {names.ATTEMPT_LABEL: str(attempt), names.RANK_LABEL: str(rank)}
    name = names.pod_name("digits", attempt, rank, since)
    return next(
        n
        for n, e in enumerate(trail)
        if isinstance(e, Entry) and (e.by_operator, e.verb, e.kind) == (True, verb, "Pod")
        if wanted.items() <= e.object["metadata"]["labels"].items()
        if e.object["metadata"]["name"] == name
    )


def status(trail: Trail, **fields: Any) -> int:
    """Place of the operator's first write of a status that has these fields."""
    return next(
        n
        for n, e in enumerate(trail)
        if isinstance(e, Entry) and e.verb == "status"
        if fields.items() <= e.object["status"].items()
    )


def deed(trail: Trail, what: What, *, number: int = 0, rank: int = 0) -> int:
    """Place of the first such deed of the first attempt."""
    wanted = (what, 0, number, rank)
    return next(
        n
        for n, d in enumerate(trail)
        if isinstance(d, Deed) and (d.what, d.attempt, d.round, d.rank) == wanted
    )


def changed(entry: Entry, path: Sequence[str | int], value: object) -> Entry:
    """The entry with another value in its object."""
    after = copy.deepcopy(entry.after)
    inner: Any = after
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return replace(entry, after=after)


def put(trail: Trail, place: int, *entries: Entry) -> Trail:
    """The trail with these in the place of one entry."""
    return [*trail[:place], *entries, *trail[place + 1 :]]


def without(trail: Trail, *places: int) -> Trail:
    return [entry for n, entry in enumerate(trail) if n not in places]


def moved(trail: Trail, place: int, to: int) -> Trail:
    rest = without(trail, place)
    return [*rest[:to], trail[place], *rest[to:]]


def rewritten(trail: Trail, since: int, **fields: Any) -> Trail:
    """The trail with these fields of status in every write from this place on."""

    def body(found: Body | None) -> Body | None:
        return found and {**found, "status": {**(found.get("status") or {}), **fields}}

    def one(n: int, entry: Entry | Deed) -> Entry | Deed:
        if n < since or isinstance(entry, Deed) or entry.kind != names.KIND:
            return entry
        before = entry.before if n == since else body(entry.before)
        return replace(entry, after=body(entry.after), before=before)

    return [one(n, entry) for n, entry in enumerate(trail)]


def odd_pod(*path: str | int, value: object) -> Callable[[Trail], Trail]:
    """Rank 1 of the first attempt is created with another value at this path."""

    def spoil(trail: Trail) -> Trail:
        place = pod(trail, "create", 0, 1)
        return put(trail, place, changed(trail[place], path, value))

    return spoil


def twin(trail: Trail) -> Trail:
    """A rank lives twice."""
    place = pod(trail, "create", 0, 1)
    another = changed(trail[place], ("metadata", "uid"), "another")
    return put(trail, place, trail[place], another)


def survivors(trail: Trail) -> Trail:
    """The pods of attempt 0 that are deleted never end, nor go."""

    def is_end(entry: Entry | Deed) -> bool:
        if not isinstance(entry, Entry) or entry.after is None:
            return isinstance(entry, Entry)
        is_deleted = "deletionTimestamp" in entry.after["metadata"]
        return is_deleted and entry.after["status"].get("phase") == "Failed"

    return without(trail, *(n for n, entry in enumerate(trail) if is_end(entry)))


def no_failure(trail: Trail) -> Trail:
    """No pod fails."""
    phases = [isinstance(e, Entry) and (e.after or {}).get("status", {}) for e in trail]
    return without(trail, *(n for n, p in enumerate(phases) if p and p.get("phase") == "Failed"))


def late_pod(trail: Trail) -> Trail:
    """A finished job gets another pod."""
    return [*trail, changed(trail[pod(trail, "create", 1, 2)], ("metadata", "uid"), "another")]


def slow_start(trail: Trail) -> Trail:
    """One rank does not start, and a hundred seconds pass before another one fails."""
    entries = [entry for entry in trail if isinstance(entry, Entry)]
    limited = [
        changed(e, ("spec", "startupDeadlineSeconds"), 1) if e.kind == names.KIND and e.after else e
        for e in entries
    ]
    end = [(entry.after or {}).get("status", {}).get("phase") for entry in entries].index("Failed")
    slow = [replace(e, at=e.at + 100 * (n >= end)) for n, e in enumerate(limited)]
    return [e for e in slow if e.verb != "update" or e.object["metadata"]["name"] != "digits-0-2"]


def outlived(trail: Trail) -> Trail:
    """The job goes, its pods stay."""
    last = trail[status(trail, state="Succeeded")]
    return [*trail, Entry(False, "delete", names.KIND, {}, last.after, None)]


def sending(place: Callable[[Trail], int], **sent: object) -> Callable[[Trail], Trail]:
    """A write has sent something else."""
    return lambda trail: put(trail, place(trail), replace(trail[place(trail)], sent=sent))


def deleted_by_force(trail: Trail) -> Trail:
    """So is the pod that is heard."""
    sent = {"preconditions": {"uid": "x"}, "gracePeriodSeconds": 0}
    place = pod(trail, "delete", 0, 1)
    runs = next(
        e.after
        for e in trail
        if isinstance(e, Entry) and e.after and e.object["metadata"]["name"] == "digits-0-0"
        if e.object["status"].get("phase") == "Running"
    )
    return put(trail, place, replace(trail[place], sent=sent, before=runs, after=None))


def losses(trail: Trail) -> list[int]:
    """Places at which the pod that is replaced goes."""
    return [
        n
        for n, e in enumerate(trail)
        if isinstance(e, Entry) and e.kind == "Pod"
        if e.object["metadata"]["name"] == "digits-0-1"
        if e.after is None or "deletionTimestamp" in e.after["metadata"]
    ]


def zombie(trail: Trail) -> Trail:
    """The pod that was replaced begins the round, too."""
    place = deed(trail, "begins", number=1, rank=1)
    return put(trail, place, trail[place], replace(trail[place], since=0))


# Two pods have moved to rank 1.
TWICE = {
    "attempt": 0,
    "moved": [{"rank": 1, "of": of, "round": 0} for of in (0, 2)],
    "replacements": [{"round": 1, "ranks": "1"}],
}
SPOILT: list[tuple[str, str, Callable[[Trail], Trail]]] = [
    ("I1", "fails-once", twin),
    ("I2", "fails-once", survivors),
    ("I3", "fails-once", odd_pod("spec", "containers", 0, "env", value=[])),
    ("I3", "fails-once", odd_pod("metadata", "labels", names.RANK_LABEL, value="7")),
    ("I4", "fails-once", lambda t: rewritten(t, status(t, attempt=1), state="Pending")),
    ("I4", "fails-once", lambda t: rewritten(t, status(t, state="Succeeded"), restarts=-1)),
    ("I5", "fails-once", lambda t: t[: status(t, state="Succeeded")]),
    ("I6", "fails-once", late_pod),
    ("I7", "fails-once", slow_start),
    ("I8", "fails-once", lambda t: rewritten(t, status(t, attempt=1), restarts=2)),
    ("I8", "fails-once", no_failure),
    ("I9", "fails-once", lambda t: moved(t, pod(t, "delete", 0, 0), status(t, attempt=1))),
    (
        "I10",
        "fails-once",
        odd_pod("metadata", "annotations", names.SPEC_HASH_ANNOTATION, value="other"),
    ),
    ("I11", "fails-once", outlived),
    ("I12", "fails-once", sending(lambda t: pod(t, "delete", 0, 0))),
    ("I12", "fails-once", sending(status, metadata={})),
    ("I13", "fails-once", odd_pod("metadata", "labels", names.JOB_UID_LABEL, value="other")),
    ("R1", IN_PLACE, lambda t: moved(t, deed(t, "ordered", number=1), status(t, round=1))),
    (
        "R3",
        IN_PLACE,
        lambda t: without(t, deed(t, "fails", rank=1), deed(t, "clean", number=1, rank=1)),
    ),
    ("R5", IN_PLACE, lambda t: without(t, deed(t, "fails"), deed(t, "fails", rank=1))),
    ("R6", IN_PLACE, lambda t: t[: deed(t, "fails", rank=1) + 1]),
    ("S1", SILENT, lambda t: without(t, deed(t, "stops", rank=1))),
    ("S2", SILENT, lambda t: without(t, deed(t, "unheard", rank=1))),
    (
        "S3",
        SILENT,
        lambda t: rewritten(t, status(t, round=1), budget={"charged": 1, "consecutiveRestarts": 1}),
    ),
    (
        "S4",
        SILENT,
        lambda t: put(
            t,
            pod(t, "create", 0, 1, 1),
            changed(t[pod(t, "create", 0, 1, 1)], ("spec", "affinity"), {}),
        ),
    ),
    ("S5", SILENT, deleted_by_force),
    ("S1", REPLACED, lambda t: without(t, deed(t, "ends", rank=1))),
    ("I9", REPLACED, lambda t: rewritten(t, status(t, round=1), pods=[])),
    ("I1", REPLACED, lambda t: rewritten(t, status(t, round=1), pods=[TWICE])),
    ("R5", REPLACED, lambda t: without(t, *losses(t))),
    ("R7", REPLACED, zombie),
]


@pytest.mark.parametrize("life", ["fails-once", IN_PLACE, SILENT, REPLACED])
def test_a_good_run_breaks_nothing(life: str) -> None:
    assert len(good(life)) > 20 and promises(good(life)) == set()


@pytest.mark.parametrize(("promise", "life", "spoil"), SPOILT)
def test_a_broken_promise_is_seen(promise: str, life: str, spoil: Callable[[Trail], Trail]) -> None:
    assert promise in promises(spoil(good(life)))
