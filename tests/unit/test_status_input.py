"""A status is input: whatever somebody wrote there is read as far as it goes, and costs little."""

import time
import tracemalloc
from dataclasses import replace
from typing import Any

import orjson
import pytest

from ddpjob import names
from ddpjob.api import DDPJob, Status, read_status
from ddpjob.plan.cleanup import UNBEGUN_SECONDS
from ddpjob.plan.decide import decide
from ddpjob.plan.model import Report
from ddpjob.times import timestamp
from tests.builders import (
    NOW,
    RECREATE,
    failed,
    job,
    pod,
    reports,
    running,
    see,
    started,
    succeeded,
    summary,
    write,
)
from tests.fuzz import fuzzed_status

STATUSES = 3000
WHEN = "2026-01-31T12:00:00Z"
PODS = (
    (),
    (pod(0), pod(1)),
    (running(0), running(1)),
    (succeeded(0), failed(1, summary())),
    (running(0, attempt=1), running(1, attempt=1)),
    (failed(0, summary(peer=True)), running(1, deleting=True)),
)
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"suspend": True},
    {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 60, "startupDeadlineSeconds": 60},
    {"hangTimeoutSeconds": 60, "successPolicy": "Rank0", "cleanPodPolicy": "All"},
)


def written(**fields: Any) -> Any:
    """A field's value after a job with this status has been read."""
    (name,) = fields
    return job(status=fields).status.to_json().get(name)


def test_no_status_stops_the_reading_or_the_plan() -> None:
    """Statuses of the schema and beyond it; each step's status is one that can be written."""
    slowest = 0.0
    for number in range(STATUSES):
        status = fuzzed_status(number)
        begin = time.perf_counter()
        ours = job(status=status, **SPECS[number % len(SPECS)])
        for confirmed in (False, True):
            seen = replace(see(*PODS[number % len(PODS)], report=reports(3)), confirmed=confirmed)
            step = decide(ours, seen, NOW)
            assert len(step.create) <= 2, number
            told = step.status.to_json()
            assert len(orjson.dumps(told)) < 200_000, number
            Status.model_validate(told)  # strictly: what breaks a rule would be refused
        slowest = max(slowest, time.perf_counter() - begin)
    print(f"slowest {slowest * 1e3:.1f} ms")


def test_only_the_part_that_breaks_a_rule_is_lost() -> None:
    attempt = {"attempt": 0, "endTime": "2026-01-31T12:00:00Z", "reason": "OOMKilled"}
    status = {
        "state": "Running",
        "attempt": 3,
        "restarts": -1,
        "nodes": {"desired": 2**53, "running": 2},
        "progress": {"step": 7, "loss": "abc", "metrics": [{"name": "a", "value": "1"}, {}]},
        "failure": {"attempt": 2, "message": "no reason"},
        "history": [attempt, {**attempt, "endTime": "2026-01-31T12:00:00+99:99"}, attempt],
        "budget": {"charged": 2, "nextRestartTime": "2026-13-45T00:00:00Z"},
        "goodput": {"lostSeconds": "many", "queuedSeconds": 5},
        "succeededRanks": "0-9999999",
        "startTime": "yesterday",
    }
    found = job(status=status).status
    assert (found.state, found.attempt, found.restarts) == ("Running", 3, 0)
    assert (found.nodes.desired, found.nodes.running) == (0, 2)
    assert found.progress and (found.progress.step, found.progress.loss) == (7, None)
    assert [metric.name for metric in found.progress.metrics] == ["a"]
    assert found.failure is None and len(found.history) == 2
    assert (found.budget.charged, found.budget.next_restart_time) == (2, None)
    assert (found.goodput.lost_seconds, found.goodput.queued_seconds) == (0, 5)
    assert (found.succeeded_ranks, found.start_time) == ("", None)


@pytest.mark.parametrize("status", [None, [], "x", 7, True, {"attempt": []}, {"no": "field"}])
def test_a_status_that_is_none_is_a_new_jobs(status: Any) -> None:
    assert read_status(status) == Status() == job(status=status).status


def test_what_the_operator_counts_on_has_room_above() -> None:
    """A number that could not be written would have every write of the job refused."""
    top = 2**53 - 1
    for name in ("restarts", "observedGeneration"):
        assert written(**{name: top}) == 2**52
    ours = job(
        status={
            "state": "Running",
            "attempt": names.MAX_ATTEMPT,
            "restarts": top,
            "budget": {
                "charged": top,
                "consecutiveRestarts": top,
                "sameStepFailures": top,
                "highestStep": top,
            },
            "goodput": {f"{name}Seconds": top for name in ("queued", "starting", "productive")},
        },
        failurePolicy={"maxRestarts": 1000},
    )
    last = names.MAX_ATTEMPT
    for seen in (see(failed(0, summary(), attempt=last), running(1, attempt=last)), see()):
        Status.model_validate(decide(ours, seen, NOW).status.to_json())


def test_after_the_last_attempt_number_the_first_comes_when_the_last_is_gone() -> None:
    last = names.MAX_ATTEMPT
    nodes = {"desired": 2, "running": 2}
    ours = job(status={"state": "Running", "attempt": last, "nodes": nodes}, **RECREATE)
    old = timestamp(NOW - 2 * UNBEGUN_SECONDS)
    pods = [running(rank, attempt=last, created_at=old) for rank in (0, 1)]
    gone = write(ours, replace(pods[0], deleting=True), pods[1])
    assert (gone.status.attempt, gone.status.state) == (0, "Restarting")
    step = decide(gone, see(*pods), NOW)
    assert len(step.delete) == 2 and not step.create
    assert decide(write(gone), see(), NOW).create == (0, 1)


def test_ranks_and_nodes_of_a_status_are_no_more_than_a_job_may_have() -> None:
    """`0-9999999` took 1.2 GiB and 18 s from all other jobs, and 2**53 nodes ended the plan."""
    nodes = {"desired": 2**53, "pending": 0, "running": 2**53}
    ours = job(status={"state": "Running", "succeededRanks": "0-9999999", "nodes": nodes})
    tracemalloc.start()
    try:
        step = decide(ours, see(running(0), running(1)), NOW)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert step.status.state == "Running" and step.status.nodes.running == 2


def test_what_rank_0_and_kubelets_may_say_can_be_written() -> None:
    """At its largest, as the agent's own schema lets it through."""
    top, huge = 2**53 - 1, 1.7e308
    said = Report(
        0, top, "file", top, huge, -huge, huge, float(top), 2.0**36 - 1, (("a", float("nan")),)
    )
    status = decide(started(), see(running(0), running(1), report=said), NOW).status
    Status.model_validate(status.to_json())
    for number in (float("nan"), float("inf"), -float("inf"), 1e-320, 0.0, -0.0, 123456.0, 1e16):
        said = replace(said, loss=number, epoch=number, samples_per_second=number)
        found = decide(started(), see(running(0), running(1), report=said), NOW).status
        Status.model_validate(found.to_json())
    stuck = pod(0, reason="R" * 5000, message="m" * 9000)
    Status.model_validate(decide(started(), see(stuck, pod(1)), NOW).status.to_json())
    dead = failed(0, "w" * 9000, reason="R" * 5000, finished_at="0001-01-01T00:00:00+14:00")
    Status.model_validate(decide(started(), see(dead, pod(1)), NOW).status.to_json())


def test_the_largest_status_stays_far_below_what_etcd_takes() -> None:
    """Whatever agents, kubelets and whoever may write a status put into it, in any script."""
    letter = "\U0001f525"
    words = letter * 4096
    ended = {"attempt": 0, "endTime": WHEN, "reason": words, "message": words}
    ended |= {"signal": words, "exception": words, "pod": letter * 253, "node": letter * 253}
    condition = {"status": "False", "reason": words, "message": words, "lastTransitionTime": WHEN}
    status = {
        "state": "Restarting",
        "summary": {"reason": words, "pod": words, "node": words},
        "curve": [[2**53 - 1 - n, -1.2345678901234567e-300, 1.2345e300] for n in range(64)],
        "failure": {**ended, "traceback": words},
        "history": [ended] * 10,
        "conditions": [{**condition, "type": f"T{n}"} for n in range(16)],
    }
    del status["failure"]["endTime"]  # type: ignore[attr-defined]
    found = decide(job(status=status), see(running(0), running(1)), NOW).status.to_json()
    sizes = {name: len(orjson.dumps(part)) for name, part in found.items()}
    print(sizes)
    assert sum(sizes.values()) < 600_000
    assert sizes["curve"] < 5000 and sizes["summary"] < 3000
    assert sizes["failure"] < 4 * (4096 + 2048 + 1024 + 1024) and sizes["history"] < 100_000


def test_conditions_of_somebody_else_leave_room_for_ours() -> None:
    foreign = {"status": "True", "reason": "R", "message": "", "lastTransitionTime": WHEN}
    ours = job(status={"conditions": [{**foreign, "type": f"T{n}"} for n in range(16)]})
    for pods in ((), (pod(0), pod(1)), (running(0), running(1)), (failed(0, summary()), pod(1))):
        for _ in range(3):
            ours = write(ours, *pods)
            Status.model_validate(ours.status.to_json())
    kinds = [condition.type for condition in ours.status.conditions]
    assert {"Accepted", "Running"} <= {*kinds} and len(kinds) == 16


def test_an_odd_time_of_a_pod_stops_nothing() -> None:
    for text in ("2026-13-45T00:00:00Z", "0001-01-01T00:00:00+14:00", "", "now"):
        pods = [replace(p, created_at=text, started_at=text) for p in (running(0), running(1))]
        ours = DDPJob.model_validate(started().model_dump(by_alias=True))
        assert decide(ours, see(*pods), NOW).status.state == "Running"
        newer = [replace(p, attempt=7, unreachable_since=text, deleting=True) for p in pods]
        assert not decide(ours, see(*newer), NOW).create
