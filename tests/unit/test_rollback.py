"""Updates that are taken back, by the operator's own decisions."""

from typing import Any

import pytest

from ddpjob import Job, NotFound, names
from ddpjob.client.rollback import Verdict, undo, watch_rollback
from ddpjob.code.archive import pack
from tests.builders import failed, reports, running, summary
from tests.unit.playedoperator import PlayedOperator, broken, done, runs

ONCE = {"failurePolicy": {"maxRestarts": 0}}
SPEC = {"env": [{"name": "LR", "value": "1"}]}


def updated(*turns: dict[str, Any], **spec: Any) -> tuple[PlayedOperator, Verdict]:
    """What becomes of a job that has just been updated, when this is observed of it."""
    played = PlayedOperator(runs(0), **{**SPEC, **spec})
    job = Job(played, played.request("GET", played.path))
    before = job.body
    job.update(
        code=pack(None, extra={"train.py": b"new"}), script_args=["--lr", "2"], env={"LR": "2"}
    )
    assert played.job["spec"]["args"] == ["train.py", "--lr", "2"]
    played.turns = list(turns)
    return played, watch_rollback(job, before)


def is_as_before(played: PlayedOperator) -> bool:
    """Whether args, code and env are those before the update; they are not of two kinds."""
    spec = played.job["spec"]
    found = (spec["args"], spec["env"], spec["code"]["sha256"])
    former = (["train.py"], SPEC["env"], "f" * 64)
    same = [now == then for now, then in zip(found, former, strict=True)]
    assert len({*same}) == 1
    return all(same)


def step(number: int, round: int = 1, source: str = "counted") -> dict[str, Any]:
    return runs(round, report=reports(number, round=round, source=source))


def test_a_failure_before_the_first_step_takes_all_of_it_back() -> None:
    played, verdict = updated({}, runs(1), broken(1))
    assert verdict.kind == "back" and is_as_before(played)
    assert verdict.words.startswith("failed before its first step as revision 2: Exception r1")
    noted = played.job["metadata"]["annotations"][names.PREVIOUS_CODE_ANNOTATION]
    assert noted.startswith("ddpjob-code-")  # the next update may delete them
    played.take({})
    assert played.job["status"]["program"]["revision"] == 3


def test_so_does_one_that_leaves_the_pods_or_a_file_without_a_new_step() -> None:
    uncounted = {"rules": [{"onReasons": ["Preempted"], "action": "FailJob"}]}
    for policy, reason in ((ONCE["failurePolicy"], "Exception"), (uncounted, "Preempted")):
        failure = broken(1, reason=reason)
        played, verdict = updated({}, runs(1), failure, failurePolicy=policy)
        assert (verdict.kind, is_as_before(played)) == ("back", True)
    # A progress file begins with the step of the checkpoint.
    played, verdict = updated({}, step(500, source="file"), broken(1))
    assert (verdict.kind, is_as_before(played)) == ("back", True)


@pytest.mark.parametrize(
    "turns",
    [
        [{}, runs(1), step(1)],
        [{}, {**step(1), **broken(1)}],  # both are seen at once
        [{}, step(500, source="file"), step(501, source="file")],
        [{}, runs(1), done("well", 1)],
    ],
)
def test_a_step_or_a_good_end_keeps_it(turns: list[dict[str, Any]]) -> None:
    played, verdict = updated(*turns)
    assert (verdict.kind, is_as_before(played)) == ("kept", False)


def test_steps_failures_and_broken_edits_of_before_do_not_count() -> None:
    played = PlayedOperator(broken(), step(7))
    broken_edit = {"edit": {"args": ["none.py"]}, "program": "", "edit_error": ValueError("none")}
    played.take({**runs(1), **broken_edit})
    assert played.job["status"]["history"][0]["charged"]
    assert played.job["status"]["conditions"][0]["reason"] == "Invalid"
    job = Job(played, played.request("GET", played.path))
    before = job.body
    job.update(script_args=["--new"])
    played.turns = [{}, runs(2), done("well", 2)]
    assert watch_rollback(job, before).words == "has ended well as revision 2"


def test_a_node_that_is_lost_is_no_failure_of_the_update() -> None:
    lost = (running(0), running(1, deleting=True))
    played, verdict = updated(
        {}, runs(1, pods=lost), {"pods": lost}, *[{}] * 2, runs(2), done(1, 2)
    )
    assert verdict.kind == "kept"
    assert [each["reason"] for each in played.job["status"]["history"]][:2] == [
        "Updated",
        "PodDeleted",
    ]


def test_an_edit_by_somebody_else_stays() -> None:
    played, verdict = updated({}, {"edit": {"args": ["theirs.py"]}, **runs(1)}, broken(1))
    assert verdict.kind == "edited" and played.job["spec"]["args"] == ["theirs.py"]


def test_what_has_changed_since_it_was_read_is_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    played = PlayedOperator(runs(0))
    job = Job(played, played.request("GET", played.path))
    before = job.body
    job.update(script_args=["--new"])
    played.turns = [{}, runs(1), broken(1)]
    patch = job.patch

    def late(changes: Any) -> Job:
        played.take({"edit": {"suspend": True}})
        return patch(changes)

    monkeypatch.setattr(job, "patch", late)
    assert watch_rollback(job, before).kind == "edited"
    assert played.job["spec"]["args"] == ["train.py", "--new"]


def test_an_edit_that_cannot_run_is_taken_back() -> None:
    error = ValueError("no ConfigMap")
    played, verdict = updated({"program": "", "edit_error": error})
    assert verdict.kind == "back" and is_as_before(played) and "no ConfigMap" in verdict.words


def test_a_job_that_has_failed_for_good_says_what_to_do() -> None:
    ended = (failed(0, summary(peer=True, round=1)), failed(1, summary(rank=1, round=1)))
    played, verdict = updated({}, broken(1), {"pods": ended}, keepSeconds=0, **ONCE)
    assert verdict.kind == "ended" and not is_as_before(played)
    assert "ddpjob rerun digits" in verdict.words


def test_no_update_another_edit_before_it_and_a_deleted_job() -> None:
    played = PlayedOperator(runs(0))
    job = Job(played, played.job)
    assert watch_rollback(job, played.job).kind == "kept"
    before = job.body
    job.update(script_args=["--new"])
    ours = {**before, "metadata": {**before["metadata"], "generation": 7}}
    assert watch_rollback(job, ours).kind == "edited"
    del played.stored[played.path]
    with pytest.raises(NotFound):
        watch_rollback(job, before)


def test_what_an_update_has_added_is_removed() -> None:
    before = {"metadata": {}, "spec": {"image": "i", "args": ["a.py"]}}
    notes = {names.REVISION_ANNOTATION: "abc", names.PREVIOUS_CODE_ANNOTATION: "a,b", "x": "y"}
    metadata = {"resourceVersion": "5", "annotations": notes}
    code = {"configMaps": ["c"], "sha256": "0" * 64}
    spec = {"image": "other", "args": ["b.py"], "env": [], "code": code}
    patch = undo({"metadata": metadata, "spec": spec}, before)
    assert patch["spec"] == {"args": ["a.py"], "env": None, "code": None}
    wanted = {names.REVISION_ANNOTATION: None, names.PREVIOUS_CODE_ANNOTATION: "a,b,c"}
    assert patch["metadata"] == {"resourceVersion": "5", "annotations": wanted}
    former = {**before, "spec": {**before["spec"], "code": {"configMaps": ["a"]}}}
    patch = undo({"metadata": metadata, "spec": spec}, former)
    assert patch["metadata"]["annotations"][names.PREVIOUS_CODE_ANNOTATION] == "b,c"
