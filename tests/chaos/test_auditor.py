"""The auditor sees each broken promise: in the trail of a good run, one thing is made wrong."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddpjob import names
from ddpjob.json_depth import Body
from tests.chaos.auditor import Auditor, Entry
from tests.chaos.embedded import trail_of
from tests.chaos.rounds import Deed, What
from tests.chaos.workloads import SILENCES, WORKLOADS

Trail = list[Entry | Deed]
CHARGED = {"charged": 2, "consecutiveRestarts": 1}


def trail(name: str) -> Trail:
    """All that happens in a life of this job."""
    (workload,) = (w for w in (*WORKLOADS, *SILENCES) if w.name == name)
    return asyncio.run(trail_of(workload))


@pytest.fixture(scope="module")
def good() -> Trail:
    """A job that fails once and then succeeds."""
    return trail("fails-once")


@pytest.fixture(scope="module")
def in_place() -> Trail:
    """A job that fails in round 0 and succeeds in round 1 of its only attempt."""
    return trail("fails-in-place")


@pytest.fixture(scope="module")
def silent() -> Trail:
    """The node of rank 1 is stopped, and goes on once the next attempt runs elsewhere."""
    return trail("has-a-node-stopped")


def promises(trail: Sequence[Entry | Deed]) -> set[str]:
    """The promises that the auditor finds broken."""
    auditor = Auditor()
    auditor.replay(trail)
    return {breach.promise for breach in auditor.at_rest()}


# ---- Places in a trail


def of_pod(attempt: int, rank: int) -> Callable[[Entry], bool]:
    def holds(entry: Entry) -> bool:
        labels = entry.object["metadata"].get("labels") or {}
        wanted = {names.ATTEMPT_LABEL: str(attempt), names.RANK_LABEL: str(rank)}
        return entry.kind == "Pod" and bool(wanted.items() <= labels.items())

    return holds


def of_status(**fields: Any) -> Callable[[Entry], bool]:
    def holds(entry: Entry) -> bool:
        status = (entry.after or {}).get("status") or {}
        return entry.kind == names.KIND and all(status.get(f) == v for f, v in fields.items())

    return holds


def write(trail: Trail, verb: str, holds: Callable[[Entry], bool]) -> int:
    """Place of the operator's first such write."""
    return next(
        n
        for n, e in enumerate(trail)
        if isinstance(e, Entry) and e.by_operator and e.verb == verb and holds(e)
    )


def deed(trail: Trail, what: What, *, attempt: int = 0, number: int = 0, rank: int = 0) -> int:
    """Place of the first such deed."""
    wanted = (what, attempt, number, rank)
    return next(
        n
        for n, d in enumerate(trail)
        if isinstance(d, Deed) and (d.what, d.attempt, d.round, d.rank) == wanted
    )


# ---- Trails with something wrong


def changed(entry: Entry | Deed, path: Sequence[str | int], value: object) -> Entry:
    """The entry with another value in its object."""
    assert isinstance(entry, Entry)
    after = copy.deepcopy(entry.after)
    inner: Any = after
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return replace(entry, after=after)


def put(trail: Trail, place: int, *entries: Entry | Deed) -> Trail:
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


def later(trail: Trail, place: int, seconds: float) -> Trail:
    """The trail in which what follows a place comes later."""
    return [replace(e, at=e.at + seconds * (n > place)) for n, e in enumerate(trail)]


def test_good_runs_break_nothing(good: Trail, in_place: Trail, silent: Trail) -> None:
    for found in (good, in_place, silent):
        assert len(found) > 20 and promises(found) == set()
    whats = {entry.what for entry in [*in_place, *silent] if isinstance(entry, Deed)}
    assert whats >= {"ordered", "begins", "fails", "clean", "ends", "stops", "unheard", "goes-on"}


# ---- Pods and attempts


@pytest.mark.parametrize(
    ("path", "value", "promise"),
    [
        (("spec", "containers", 0, "env"), [], "I3"),
        (("metadata", "labels", names.RANK_LABEL), "7", "I3"),
        (("metadata", "annotations", names.SPEC_HASH_ANNOTATION), "other", "I10"),
        (("metadata", "labels", names.JOB_UID_LABEL), "other", "I13"),
    ],
)
def test_a_pod_that_does_not_fit_its_group(
    good: Trail, path: Sequence[str | int], value: object, promise: str
) -> None:
    place = write(good, "create", of_pod(0, 1))
    assert promise in promises(put(good, place, changed(good[place], path, value)))


@pytest.mark.parametrize(
    ("fields", "promise"),
    [({"restarts": 2}, "I8"), ({"budget": CHARGED}, "I8"), ({"state": "Pending"}, "I4")],
)
def test_a_restart_that_is_counted_wrongly(
    good: Trail, fields: dict[str, Any], promise: str
) -> None:
    begins = write(good, "status", of_status(attempt=1))
    assert promise in promises(rewritten(good, begins, **fields))


def test_a_rank_that_lives_twice(good: Trail) -> None:
    place = write(good, "create", of_pod(0, 1))
    twin = changed(good[place], ("metadata", "uid"), "another")
    assert "I1" in promises(put(good, place, good[place], replace(twin, before=None)))


def test_a_new_attempt_beside_the_old_one(good: Trail) -> None:
    """As if the survivors of attempt 0 never ended."""
    ends = [n for n, e in enumerate(good) if isinstance(e, Entry) and e.after is None]
    assert "I2" in promises(without(good, *ends))


def test_a_status_that_goes_back(good: Trail) -> None:
    last = good[write(good, "status", of_status(state="Succeeded"))]
    assert isinstance(last, Entry)
    for field, value in (("state", "Suspended"), ("restarts", -1), ("observedGeneration", 0)):
        again = replace(changed(last, ("status", field), value), before=last.after)
        assert "I4" in promises([*good, again])


def test_a_result_that_is_lost(good: Trail) -> None:
    last = write(good, "status", of_status(state="Succeeded"))
    assert promises(good[:last]) == {"I5"}


def test_a_pod_for_a_finished_job(good: Trail) -> None:
    late = changed(good[write(good, "create", of_pod(1, 2))], ("metadata", "uid"), "another")
    assert promises([*good, late]) == {"I6"}


def test_a_part_of_a_group_that_waits_for_the_rest(good: Trail) -> None:
    entries = [entry for entry in good if isinstance(entry, Entry)]
    limited: Trail = [
        changed(e, ("spec", "startupDeadlineSeconds"), 1) if e.kind == names.KIND and e.after else e
        for e in entries
    ]
    phases = [(entry.after or {}).get("status", {}).get("phase") for entry in entries]
    end = phases.index("Failed")
    slow = later(limited, end - 1, 100)
    start = [n for n, e in enumerate(entries) if e.verb == "update" and of_pod(0, 2)(e)]
    assert promises(slow) == set()
    assert promises(without(slow, *start)) >= {"I7"}


def test_a_restart_without_a_cause_which_a_pod_that_lost_its_owner_is(good: Trail) -> None:
    begins = write(good, "status", of_status(attempt=1))
    failed = [
        n
        for n, e in enumerate(good[:begins])
        if isinstance(e, Entry) and (e.after or {}).get("status", {}).get("phase") == "Failed"
    ]
    assert "I8" in promises(without(good, *failed))
    created = good[write(good, "create", of_pod(0, 0))]
    assert isinstance(created, Entry)
    orphaned = changed(created, ("metadata", "ownerReferences"), [])
    orphaned = replace(orphaned, verb="patch", before=created.after, by_operator=False)
    assert "I8" not in promises(without(put(good, begins, orphaned, good[begins]), *failed))


def test_a_deletion_before_the_counter(good: Trail) -> None:
    counter = write(good, "status", of_status(attempt=1))
    deletion = write(good, "delete", of_pod(0, 0))
    assert counter < deletion
    assert "I9" in promises(moved(good, deletion, counter))


def test_what_outlives_its_job(good: Trail) -> None:
    jobs = [entry for entry in good if isinstance(entry, Entry) and entry.kind == names.KIND]
    gone = Entry(False, "delete", names.KIND, {}, jobs[-1].after, None)
    assert promises([*good, gone]) == {"I11"}


def test_blind_writes_and_others_objects(good: Trail) -> None:
    for verb, holds in (("delete", of_pod(0, 0)), ("status", of_status())):
        place = write(good, verb, holds)
        blind = good[place]
        assert isinstance(blind, Entry)
        assert promises(put(good, place, replace(blind, sent={"metadata": {}}))) == {"I12"}
    foreign = {"kind": "Pod", "metadata": {"name": "x", "uid": "x"}, "status": {}}
    options = {"preconditions": {"uid": "x"}}
    assert promises([*good, Entry(True, "delete", "Pod", options, foreign, None)]) == {"I12"}


# ---- Rounds


def test_an_order_before_the_status(in_place: Trail) -> None:
    begins = write(in_place, "status", of_status(round=1))
    early = moved(in_place, deed(in_place, "ordered", number=1), begins)
    assert promises(early) == {"R1"}


@pytest.mark.parametrize(("attempt", "number"), [(0, 2), (1, 1)], ids=["jump", "no first round"])
def test_rounds_that_do_not_grow_by_one(in_place: Trail, attempt: int, number: int) -> None:
    begins = write(in_place, "status", of_status(round=1))
    assert "R1" in promises(rewritten(in_place, begins, attempt=attempt, round=number))


def test_a_rank_that_begins_beside_one_of_the_round_before(in_place: Trail) -> None:
    """As if the processes of rank 1 had neither failed nor been killed."""
    places = deed(in_place, "fails", rank=1), deed(in_place, "clean", number=1, rank=1)
    assert "R3" in promises(without(in_place, *places))


def test_a_round_that_nothing_of_the_round_before_has_failed_for(in_place: Trail) -> None:
    failures = [deed(in_place, "fails", rank=rank) for rank in (0, 1)]
    assert promises(without(in_place, *failures)) == {"R5"}


def test_nodes_that_are_dismissed_without_a_failure(in_place: Trail) -> None:
    place = deed(in_place, "ordered", number=1)
    told = in_place[place]
    assert isinstance(told, Deed)
    assert promises(put(in_place, place, told, replace(told, what="dismissed"))) == {"R5"}


def test_a_failure_that_is_charged_in_two_rounds(in_place: Trail) -> None:
    last = write(in_place, "status", of_status(state="Succeeded"))
    assert promises(rewritten(in_place, last, budget=CHARGED)) == {"R5"}


def test_a_node_that_waits_for_ever(in_place: Trail) -> None:
    failed = deed(in_place, "fails", rank=1)
    assert "R6" in promises(in_place[: failed + 1])
    assert promises(later(in_place, failed, 40)) == set()
    assert promises(later(in_place, failed, 60)) == {"R6"}


def test_a_job_that_runs_before_its_ranks_do(in_place: Trail) -> None:
    places = [deed(in_place, what, number=1, rank=1) for what in ("begins", "ends")]
    assert "I4" in promises(without(in_place, *places))


# ---- Silent nodes


@pytest.mark.parametrize(("what", "rank"), [("ends", 0), ("stops", 1)])
def test_ranks_of_two_attempts_at_once(silent: Trail, what: What, rank: int) -> None:
    assert "S1" in promises(without(silent, deed(silent, what, rank=rank)))


def test_a_node_that_counts_as_silent_too_early(silent: Trail) -> None:
    place = deed(silent, "unheard", rank=1)
    assert promises(without(silent, place)) == {"I8", "S2"}
    unheard = silent[place]
    assert isinstance(unheard, Deed)
    assert promises(put(silent, place, unheard, replace(unheard, what="heard"))) == {"I8", "S2"}


def test_a_silence_that_is_charged(silent: Trail) -> None:
    begins = write(silent, "status", of_status(attempt=1))
    budget = {"charged": 1, "consecutiveRestarts": 1}
    assert promises(rewritten(silent, begins, budget=budget)) == {"S3"}


def test_a_pod_that_does_not_keep_off_the_silent_node(silent: Trail) -> None:
    place = write(silent, "create", of_pod(1, 0))
    assert promises(put(silent, place, changed(silent[place], ("spec", "affinity"), {}))) == {"S4"}


def test_a_pod_that_is_deleted_by_force_for_no_reason(silent: Trail) -> None:
    place = write(silent, "delete", of_pod(0, 0))
    entry = silent[place]
    assert isinstance(entry, Entry)
    forced = replace(entry, sent={**entry.sent, "gracePeriodSeconds": 0})
    assert promises(put(silent, place, forced)) == {"S5"}
