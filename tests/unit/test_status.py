from itertools import permutations

import pytest

from ddpjob import api
from ddpjob.plan.columns import with_columns
from ddpjob.plan.model import Report
from ddpjob.plan.reasons import ALL_NODES_RUNNING, STARTING, Reason, because
from ddpjob.plan.restart import next_attempt
from ddpjob.plan.status import with_condition, with_history, with_progress
from tests.builders import NOW, failure, job

REPORT = Report(
    attempt=0, step=1240, source="file", total_steps=2260, loss=0.08314, eta_seconds=13.2
)


def running(report: Report) -> api.Status:
    nodes = api.Nodes(desired=2, running=2)
    old = api.Status(state="Running", nodes=nodes)
    return with_columns(old, with_progress(old, report), (), NOW)


def test_the_columns_are_ready_made() -> None:
    summary = running(REPORT).summary
    assert (summary.nodes, summary.step, summary.loss, summary.eta) == (
        "2/2",
        "1240/2260",
        "0.08314",
        "14s",
    )


def test_a_conditions_time_changes_with_its_truth_alone() -> None:
    one = with_condition(api.Status(), STARTING, "", now=NOW)
    two = with_condition(one, because(STARTING, "ErrImagePull"), "no", now=NOW + 60)
    three = with_condition(two, ALL_NODES_RUNNING, "", now=NOW + 90)
    times = [s.conditions[0].last_transition_time for s in (one, two, three)]
    assert times[0] == times[1] != times[2]
    assert with_condition(three, ALL_NODES_RUNNING, "", now=NOW + 99) is three


def test_conditions_have_one_order_whichever_was_set_first() -> None:
    own = ("Accepted", "Running", "Suspended", "Failed")
    foreign = ("Zoned", "Audited")  # of somebody else's: as they were found, at the end
    for kinds in permutations((*own, *foreign)):
        status = api.Status()
        for kind in kinds:
            status = with_condition(status, Reason(kind, "Set", True), "", now=NOW)
        others = [kind for kind in kinds if kind in foreign]
        assert [c.type for c in status.conditions] == [*own, *others]


@pytest.mark.parametrize(
    ("progress", "is_current"),
    [
        ({"step": 7, "attempt": 2, "firstStep": 5}, True),
        ({"step": 7, "attempt": 1, "firstStep": 5}, False),
        ({"step": 7, "firstStep": 5}, True),  # as earlier operators wrote it
        ({"step": 7}, False),  # and as they left it when an attempt had ended
    ],
)
def test_progress_is_of_the_attempt_that_reported_it(
    progress: dict[str, int], is_current: bool
) -> None:
    ours = job(status={"attempt": 2, "state": "Running", "progress": progress})
    assert (ours.status.current_progress is not None) == is_current
    following = next_attempt(ours, ours.status)
    assert following.progress is not None and following.progress.step == 7
    assert following.current_progress is None


def test_the_history_says_how_each_round_ended() -> None:
    found = failure(
        rank=3,
        pod="digits-0-1",
        node="gpu-17",
        exit_code=1,
        signal="SIGKILL",
        exception="ValueError",
        message="ValueError: " + "\U0001f525" * 1000,
    )
    (entry,) = with_history(api.Status(), found.reason, NOW, found=found).history
    assert (entry.exit_code, entry.signal, entry.exception) == (1, "SIGKILL", "ValueError")
    assert (entry.rank, entry.pod, entry.node) == (3, "digits-0-1", "gpu-17")
    message = entry.message or ""
    assert message.startswith("ValueError: \U0001f525") and message.endswith("…")
    assert 505 < len(message.encode()) <= 512
    (entry,) = with_history(api.Status(), "Suspended", NOW).history
    assert {"exitCode", "signal", "exception", "message"}.isdisjoint(entry.to_json())
