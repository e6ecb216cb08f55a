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

Trail = list[Entry]
Rounds = list[Entry | Deed]


@pytest.fixture(scope="module")
def good() -> Trail:
    """A job that fails once and then succeeds."""

    return [entry for entry in trail("fails-once") if isinstance(entry, Entry)]


def trail(name: str) -> list[Entry | Deed]:
    """All that happens in a life of this job."""
    (workload,) = (w for w in (*WORKLOADS, *SILENCES) if w.name == name)
    return asyncio.run(trail_of(workload))


def find(trail: Trail, verb: str, kind: str, holds: Callable[[Entry], Any] = bool) -> int:
    """Place of the operator's first such entry."""
    return next(
        n
        for n, e in enumerate(trail)
        if e.by_operator and (e.verb, e.kind) == (verb, kind) and holds(e)
    )


def pod(attempt: int, rank: int) -> Callable[[Entry], bool]:
    def holds(entry: Entry) -> bool:
        labels = entry.object["metadata"]["labels"]
        wanted = {names.ATTEMPT_LABEL: str(attempt), names.RANK_LABEL: str(rank)}
        return bool(wanted.items() <= labels.items())

    return holds


def changed(entry: Entry, change: Callable[[Body], Any]) -> Entry:
    after = copy.deepcopy(entry.after)
    assert after is not None
    change(after)
    return replace(entry, after=after)


def tamper(trail: Trail, place: int, change: Callable[[Body], Any]) -> Trail:
    return [*trail[:place], changed(trail[place], change), *trail[place + 1 :]]


def promises(trail: Sequence[Entry | Deed]) -> set[str]:
    auditor = Auditor()
    auditor.replay(trail)
    return {breach.promise for breach in auditor.at_rest()}


def another(body: Body) -> None:
    body["metadata"]["uid"] = "another"


def restart(entry: Entry) -> bool:
    assert entry.after is not None
    return bool(entry.after["status"]["attempt"] == 1)


def test_a_good_run_breaks_nothing(good: Trail) -> None:
    assert len(good) > 20 and promises(good) == set()


def test_a_rank_that_lives_twice(good: Trail) -> None:
    place = find(good, "create", "Pod", pod(0, 1))
    twin = replace(changed(good[place], another), before=None)
    assert "I1" in promises([*good[: place + 1], twin, *good[place + 1 :]])


def test_a_new_attempt_beside_the_old_one(good: Trail) -> None:
    # As if the survivors of attempt 0 never ended.
    kept = [e for e in good if not (e.kind == "Pod" and e.after is None and pod(0, 0)(e))]
    assert "I2" in promises(kept)


def test_a_rank_with_another_rendezvous(good: Trail) -> None:
    def change(body: Body) -> None:
        for variable in body["spec"]["containers"][0]["env"]:
            if variable["name"] == "MASTER_ADDR":
                variable["value"] = "elsewhere"

    assert "I3" in promises(tamper(good, find(good, "create", "Pod", pod(0, 1)), change))


def test_a_rank_beyond_the_group(good: Trail) -> None:
    def change(body: Body) -> None:
        body["metadata"]["labels"][names.RANK_LABEL] = "7"

    assert "I3" in promises(tamper(good, find(good, "create", "Pod", pod(0, 1)), change))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["status"].update(state="Suspended"),
        lambda body: body["status"].update(restarts=-1),
        lambda body: body["status"].update(observedGeneration=0),
    ],
    ids=["state", "restarts", "generation"],
)
def test_a_status_that_goes_back(good: Trail, change: Callable[[Body], Any]) -> None:
    def succeeded(entry: Entry) -> bool:
        assert entry.after is not None
        return bool(entry.after["status"]["state"] == "Succeeded")

    last = find(good, "status", names.KIND, succeeded)
    again = replace(changed(good[last], change), before=good[last].after)
    assert "I4" in promises([*good, again])


def test_a_result_that_is_lost(good: Trail) -> None:
    def unfinished(entry: Entry) -> bool:
        assert entry.after is not None
        return bool(entry.after["status"]["state"] != "Succeeded")

    kept = [e for e in good if e.kind != names.KIND or e.verb != "status" or unfinished(e)]
    assert promises(kept) == {"I5"}


def test_a_part_of_a_group_that_waits_for_the_rest(good: Trail) -> None:
    def limit(body: Body) -> None:
        body["spec"]["startupDeadlineSeconds"] = 1

    def is_end(entry: Entry) -> bool:
        return entry.kind == "Pod" and entry.object["status"]["phase"] == "Failed"

    def is_start_of_rank_2(entry: Entry) -> bool:
        return entry.kind == "Pod" and entry.verb == "update" and pod(0, 2)(entry)

    limited = [changed(e, limit) if e.kind == names.KIND and e.after else e for e in good]
    end = next(n for n, entry in enumerate(limited) if is_end(entry))
    later = [replace(e, at=e.at + 100 * (n >= end)) for n, e in enumerate(limited)]
    assert promises(later) == set()
    assert promises([e for e in later if not is_start_of_rank_2(e)]) >= {"I7"}
    assert "I7" in promises([e for e in limited[:end] if not is_start_of_rank_2(e)])


def test_a_pod_for_a_finished_job(good: Trail) -> None:
    late = good[find(good, "create", "Pod", pod(1, 2))]
    assert promises([*good, changed(late, another)]) == {"I6"}


def test_a_restart_without_a_cause_which_a_pod_that_lost_its_owner_is(good: Trail) -> None:
    begins = find(good, "status", names.KIND, restart)

    def fails(entry: Entry) -> bool:
        status = (entry.after or {}).get("status") or {}
        return entry.kind == "Pod" and status.get("phase") == "Failed"

    calm = [e for e in good[:begins] if not fails(e)]
    assert "I8" in promises([*calm, *good[begins:]])
    created = good[find(good, "create", "Pod", pod(0, 0))]
    orphaned = changed(created, lambda body: body["metadata"].pop("ownerReferences"))
    orphaned = replace(orphaned, verb="patch", before=created.after, by_operator=False)
    assert "I8" not in promises([*calm, orphaned, *good[begins:]])


def test_two_restarts_for_one_failure(good: Trail) -> None:
    def change(body: Body) -> None:
        body["status"]["restarts"] = 2

    assert "I8" in promises(tamper(good, find(good, "status", names.KIND, restart), change))


def test_a_failure_that_is_charged_twice(good: Trail) -> None:
    def change(body: Body) -> None:
        body["status"]["budget"]["charged"] = 2

    assert "I8" in promises(tamper(good, find(good, "status", names.KIND, restart), change))


def test_a_deletion_before_the_counter(good: Trail) -> None:
    counter = find(good, "status", names.KIND, restart)
    deletion = find(good, "delete", "Pod", pod(0, 0))
    assert counter < deletion
    early = [*good[:counter], good[deletion], *good[counter:deletion], *good[deletion + 1 :]]
    assert "I9" in promises(early)


def test_a_pod_of_another_spec(good: Trail) -> None:
    def change(body: Body) -> None:
        body["metadata"]["annotations"][names.SPEC_HASH_ANNOTATION] = "other"

    assert promises(tamper(good, find(good, "create", "Pod", pod(0, 1)), change)) == {"I10"}


def test_what_outlives_its_job(good: Trail) -> None:
    last = next(e for e in reversed(good) if e.kind == names.KIND)
    gone = Entry(False, "delete", names.KIND, {}, last.after, None)
    assert promises([*good, gone]) == {"I11"}


def test_blind_writes_and_others_objects(good: Trail) -> None:
    for verb, kind in (("delete", "Pod"), ("status", names.KIND)):
        place = find(good, verb, kind)
        blind = replace(good[place], sent={"metadata": {}})
        assert promises([*good[:place], blind, *good[place + 1 :]]) == {"I12"}
    foreign = {"kind": "Pod", "metadata": {"name": "x", "uid": "x"}, "status": {}}
    options = {"preconditions": {"uid": "x"}}
    deletion = Entry(True, "delete", "Pod", options, foreign, None)
    assert promises([*good, deletion]) == {"I12"}


def test_a_pod_that_names_another_job(good: Trail) -> None:
    def change(body: Body) -> None:
        body["metadata"]["labels"][names.JOB_UID_LABEL] = "other"

    assert promises(tamper(good, find(good, "create", "Pod", pod(0, 1)), change)) == {"I13"}


@pytest.fixture(scope="module")
def in_place() -> list[Entry | Deed]:
    """A job that fails in round 0 and succeeds in round 1 of its only attempt."""

    return trail("fails-in-place")


def deed(trail: Rounds, what: What, number: int, rank: int = 0) -> int:
    """Place of the first such deed."""
    return next(
        n
        for n, d in enumerate(trail)
        if isinstance(d, Deed) and (d.what, d.round, d.rank) == (what, number, rank)
    )


def next_round(trail: Rounds) -> int:
    """Place of the write with which round 1 begins."""
    return next(
        n
        for n, e in enumerate(trail)
        if isinstance(e, Entry) and e.verb == "status" and status_of(e).get("round") == 1
    )


def last_write(trail: Rounds) -> int:
    """Place of the last status."""
    return max(n for n, e in enumerate(trail) if isinstance(e, Entry) and e.verb == "status")


def status_of(entry: Entry) -> Body:
    assert entry.after is not None
    found: Body = entry.after["status"]
    return found


def rewritten(trail: Rounds, since: int, **fields: Any) -> Rounds:
    """The trail with these fields of status in every write from this place on."""

    def change(body: Body) -> None:
        body["status"].update(copy.deepcopy(fields))

    def one(entry: Entry | Deed) -> Entry | Deed:
        if isinstance(entry, Deed) or entry.kind != names.KIND or not entry.after:
            return entry
        before = copy.deepcopy(entry.before)
        if entry is not trail[since] and before is not None:
            change(before)
        return replace(changed(entry, change), before=before)

    return [entry if n < since else one(entry) for n, entry in enumerate(trail)]


def without(trail: Rounds, *places: int) -> Rounds:
    return [entry for n, entry in enumerate(trail) if n not in places]


def moved(trail: Rounds, place: int, to: int) -> Rounds:
    rest = without(trail, place)
    return [*rest[:to], trail[place], *rest[to:]]


def test_a_restart_in_place_breaks_nothing(in_place: Rounds) -> None:
    assert promises(in_place) == set()
    assert sum(isinstance(entry, Deed) for entry in in_place) >= 11


def test_an_order_before_the_status(in_place: Rounds) -> None:
    early = moved(in_place, deed(in_place, "ordered", 1), next_round(in_place))
    assert promises(early) == {"R1"}


def test_processes_before_the_status(in_place: Rounds) -> None:
    begins = in_place[deed(in_place, "begins", 1)]
    assert isinstance(begins, Deed)
    unheard_of = replace(begins, round=2)
    assert promises([*in_place, unheard_of]) == {"R1"}


@pytest.mark.parametrize(("attempt", "number"), [(0, 2), (1, 1)], ids=["jump", "no first round"])
def test_rounds_that_do_not_grow_by_one(in_place: Rounds, attempt: int, number: int) -> None:
    wrong = rewritten(in_place, next_round(in_place), attempt=attempt, round=number)
    assert "R1" in promises(wrong)


def test_a_round_that_comes_again(in_place: Rounds) -> None:
    assert "R1" in promises(rewritten(in_place, last_write(in_place), round=0))


def test_a_rank_that_begins_beside_one_of_the_round_before(in_place: Rounds) -> None:
    # As if the processes of rank 1 had neither failed nor been killed.
    places = deed(in_place, "fails", 0, 1), deed(in_place, "clean", 1, 1)
    assert "R3" in promises(without(in_place, *places))


def test_a_round_that_nothing_of_the_round_before_has_failed_for(in_place: Rounds) -> None:
    failures = [deed(in_place, "fails", 0, rank) for rank in (0, 1)]
    assert promises(without(in_place, *failures)) == {"R5"}


def test_nodes_that_are_dismissed_without_a_failure(in_place: Rounds) -> None:
    ordered = deed(in_place, "ordered", 1)
    told = in_place[ordered]
    assert isinstance(told, Deed)
    told = replace(told, what="dismissed")
    assert promises([*in_place[: ordered + 1], told, *in_place[ordered + 1 :]]) == {"R5"}


def test_a_failure_that_is_charged_in_two_rounds(in_place: Rounds) -> None:
    budget = {"charged": 2, "consecutiveRestarts": 1}
    assert promises(rewritten(in_place, last_write(in_place), budget=budget)) == {"R5"}


def test_a_round_that_is_charged_twice(in_place: Rounds) -> None:
    running = next(
        n
        for n, e in enumerate(in_place)
        if isinstance(e, Entry) and e.verb == "status" and status_of(e)["state"] == "Running"
    )
    first, then = ({"charged": n, "consecutiveRestarts": n} for n in (1, 2))
    early = rewritten(in_place, running, budget=first)
    assert promises(rewritten(early, next_round(early), budget=then)) == {"R5"}


def test_a_node_that_waits_for_ever(in_place: Rounds) -> None:
    failed = deed(in_place, "fails", 0, 1)
    assert "R6" in promises(in_place[: failed + 1])
    clean = deed(in_place, "clean", 1, 1)
    assert "R6" in promises(in_place[: clean + 1])
    for place, seconds, wrong in ((failed, 40, set()), (failed, 60, {"R6"}), (clean, 60, {"R6"})):
        late = [replace(e, at=e.at + seconds * (n > place)) for n, e in enumerate(in_place)]
        assert promises(late) == wrong


def test_a_job_that_runs_before_its_ranks_do(in_place: Rounds) -> None:
    begins = deed(in_place, "begins", 1, 1)
    ends = deed(in_place, "ends", 1, 1)
    assert "I4" in promises(without(in_place, begins, ends))


@pytest.fixture(scope="module")
def silent() -> list[Entry | Deed]:
    """The node of rank 1 is stopped, and goes on once the next attempt runs elsewhere."""
    return trail("has-a-node-stopped")


def first(trail: Rounds, what: What, attempt: int, rank: int) -> int:
    """Place of the first such deed."""
    return next(
        n
        for n, d in enumerate(trail)
        if isinstance(d, Deed) and (d.what, d.attempt, d.rank) == (what, attempt, rank)
    )


def begins_again(trail: Rounds) -> int:
    """Place of the write with which attempt 1 begins."""
    return next(
        n
        for n, e in enumerate(trail)
        if isinstance(e, Entry) and e.verb == "status" and status_of(e).get("attempt") == 1
    )


def change_of_pod(trail: Rounds, verb: str, attempt: int, rank: int) -> int:
    """Place of the operator's first such change."""
    holds = pod(attempt, rank)
    return next(
        n
        for n, e in enumerate(trail)
        if isinstance(e, Entry)
        and (e.by_operator, e.verb, e.kind) == (True, verb, "Pod")
        and holds(e)
    )


def test_a_node_that_is_silent_breaks_nothing(silent: Rounds) -> None:
    assert promises(silent) == set()
    whats = [entry.what for entry in silent if isinstance(entry, Deed)]
    assert {"stops", "unheard", "goes-on"} <= set(whats)


@pytest.mark.parametrize(("what", "rank"), [("ends", 0), ("stops", 1)])
def test_ranks_of_two_attempts_at_once(silent: Rounds, what: What, rank: int) -> None:
    assert "S1" in promises(without(silent, first(silent, what, 0, rank)))


def test_a_node_that_goes_on_beside_the_next_attempt(silent: Rounds) -> None:
    assert promises(without(silent, first(silent, "ends", 0, 1))) == {"S1"}


def test_a_node_that_counts_as_silent_too_early(silent: Rounds) -> None:
    early = without(silent, first(silent, "unheard", 0, 1))
    assert promises(early) == {"I8", "S2"}
    heard = silent[first(silent, "unheard", 0, 1)]
    assert isinstance(heard, Deed)
    place = begins_again(silent)
    again = [*silent[:place], replace(heard, what="heard"), *silent[place:]]
    assert promises(again) == {"I8", "S2"}


def test_a_silence_that_is_charged(silent: Rounds) -> None:
    budget = {"charged": 1, "consecutiveRestarts": 1}
    assert promises(rewritten(silent, begins_again(silent), budget=budget)) == {"S3"}


def test_a_pod_that_does_not_keep_off_the_silent_node(silent: Rounds) -> None:
    def change(body: Body) -> None:
        del body["spec"]["affinity"]

    place = change_of_pod(silent, "create", 1, 0)
    entry = silent[place]
    assert isinstance(entry, Entry)
    wrong = [*silent[:place], changed(entry, change), *silent[place + 1 :]]
    assert promises(wrong) == {"S4"}


def test_a_pod_that_is_deleted_by_force_for_no_reason(silent: Rounds) -> None:
    place = change_of_pod(silent, "delete", 0, 0)
    entry = silent[place]
    assert isinstance(entry, Entry)
    forced = replace(entry, sent={**entry.sent, "gracePeriodSeconds": 0})
    assert promises([*silent[:place], forced, *silent[place + 1 :]]) == {"S5"}
