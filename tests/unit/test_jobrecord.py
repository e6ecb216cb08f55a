"""What the cache keeps of jobs: enough to plan by, and little of those at rest."""

from typing import Any

import pytest

from ddpjob.api import DDPJob
from ddpjob.controller.memory import job_record
from ddpjob.errors import InvalidJob
from ddpjob.plan.decide import decide
from ddpjob.plan.model import Observed
from tests.builders import NOW, UID, job_object

FINISHED = {
    "state": "Failed",
    "attempt": 3,
    "completionTime": "2027-01-15T07:59:00Z",
    "conditions": [
        {
            "type": "Failed",
            "status": "True",
            "reason": "DeadlineExceeded",
            "message": "x" * 4000,
            "lastTransitionTime": "2027-01-15T07:59:00Z",
        }
    ],
    "failure": {"attempt": 3, "reason": "Exception", "message": "y" * 1000},
    "nodes": {"desired": 2, "failed": 2},
    "goodput": {"since": "2027-01-15T07:59:00Z"},
}


def body(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    found = job_object(args=["train.py", "x" * 30_000], env=[{"name": "A", "value": "b"}], **spec)
    found["metadata"] |= {
        "namespace": "team",
        "uid": UID,
        "generation": 1,
        "resourceVersion": "10",
        "annotations": {"a": "z" * 10_000},
        "finalizers": ["example.com/" + "f" * 60] * 10,
        "managedFields": [{"manager": "m" * 60}] * 10,
    }
    return {**found, "status": status}


@pytest.mark.parametrize(
    ("status", "spec"),
    [
        (FINISHED, {}),
        ({**FINISHED, "state": "Succeeded"}, {"ttlSecondsAfterFinished": 30}),
        (FINISHED, {"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 3600}),
        ({"state": "Suspended"}, {"suspend": True, "nnodes": 7}),
        ({}, {"managedBy": "example.com/other"}),
    ],
)
def test_a_job_at_rest_is_planned_as_if_all_of_it_were_kept(
    status: dict[str, Any], spec: dict[str, Any]
) -> None:
    whole = DDPJob.parse(body(status, **spec))
    record = job_record(body(status, **spec))
    part = record.parse()
    assert record.is_part and len(record.body) < 1500
    steps = [decide(job, Observed(), NOW) for job in (whole, part)]
    assert steps[0].is_idle(whole.status) == steps[1].is_idle(part.status)
    assert steps[0].delete_job == steps[1].delete_job
    assert steps[0].requeue_after == steps[1].requeue_after


@pytest.mark.parametrize(
    ("status", "spec"),
    [
        ({}, {}),
        ({"state": "Running"}, {}),
        ({"state": "Suspended"}, {}),  # being resumed
        ({"state": "Running"}, {"suspend": True}),
        ({}, {"suspend": True}),
    ],
)
def test_a_job_that_something_is_done_about_is_kept_whole(
    status: dict[str, Any], spec: dict[str, Any]
) -> None:
    found = body(status, **spec)
    record = job_record(found)
    assert not record.is_part and record.parse().spec == DDPJob.parse(found).spec


def test_fields_of_a_newer_definition_are_no_fault_of_a_job() -> None:
    found = body({}, failurePolicy={"rules": [{"onReasons": ["Hang"], "action": "FailJob"}]})
    known = job_record(found).parse()
    found["spec"] |= {"later": 0, "shm": {"enabled": True, "later": {"a": 1}}}
    assert job_record(found).parse() == known
    with pytest.raises(InvalidJob, match="later: unknown field"):
        DDPJob.parse(found)


def test_a_rule_is_taken_whole_or_not_at_all() -> None:
    rule = {"onReasons": ["Hang"], "action": "FailJob", "later": []}
    record = job_record(body({}, failurePolicy={"rules": [rule]}, later=0))
    with pytest.raises(InvalidJob, match="rules.*later: unknown field"):
        record.parse()


@pytest.mark.parametrize("odd", [None, [], "x", {"state": 7}, {"state": ["Failed"]}])
def test_whatever_stands_there_makes_a_record(odd: Any) -> None:
    for found in ({**body({}), "status": odd}, {**body({}), "spec": odd}):
        assert job_record(found).uid == UID
