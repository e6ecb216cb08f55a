"""What a job that was read shows of itself, whatever its status has."""

from typing import Any

import pytest

from ddpjob.client.connection import Connection
from ddpjob.client.job import Job
from ddpjob.client.snapshot import Snapshot
from ddpjob.errors import JobFailed
from tests.builders import job_object


def failed(**failure: Any) -> JobFailed:
    """What is raised for a job of two pods with eight ranks each that has failed so."""
    body = job_object("llama", nnodes=2, nprocPerNode=8)
    error = pytest.raises(
        JobFailed,
        Job(
            Connection("team"),
            {
                **body,
                "status": {
                    "state": "Failed",
                    "conditions": [
                        {"type": "Failed", "status": "True", "reason": "MaxRestartsExceeded"}
                    ],
                    "failure": {"attempt": 0, "pod": "llama-0-1", "node": "gpu-17", **failure},
                },
            },
        ).raise_if_failed,
    )
    return error.value


def test_an_error_names_a_rank_only_if_one_has_failed() -> None:
    one = failed(rank=9, reason="Exception", message="KeyError: 'x'")
    text = "llama failed: MaxRestartsExceeded; first cause: rank 9 on gpu-17: KeyError: 'x'"
    assert (one.rank, str(one)) == (9, text)
    for older in ({}, {"rank": 1}):
        whole = failed(reason="Evicted", message="evicted", **older)
        text = "llama failed: MaxRestartsExceeded; first cause: a pod on gpu-17: evicted"
        assert (whole.rank, str(whole)) == (None, text)


def with_curve(found: Any) -> Snapshot:
    return Snapshot({**job_object(), "status": {"curve": found}})


@pytest.mark.parametrize(
    ("found", "points"),
    [
        ([[1, 2.5], [3, 0.5, 100]], [(1, 2.5), (3, 0.5, 100)]),
        ([[1], [1, 2, 3, 4], [1, "2"], [True, 2], "12", None, [2, 1]], [(2, 1)]),
        ([[1, 10**400], [1, float("nan")], [1, float("inf")]], []),
        ({"1": 2}, []),
        ("12", []),
        (None, []),
    ],
)
def test_a_curve_has_the_points_that_are_points(found: Any, points: list[Any]) -> None:
    assert with_curve(found).curve() == points


def test_a_curve_is_bounded() -> None:
    assert len(with_curve([[1, 1]] * 100_000).curve()) < 2000
