"""What a job that was read shows of itself, whatever its status has."""

from typing import Any

import pytest

from ddpjob.client.snapshot import Snapshot
from tests.builders import job_object


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
