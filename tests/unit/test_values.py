"""The kinds of values in a status, as whoever may write a status may write them."""

from typing import Any

import pytest

from ddpjob.api import read_status
from ddpjob.api.values import MAX_ENTRY, MAX_TRACEBACK
from tests.builders import job

WRONG: tuple[Any, ...] = (
    *(None, 7, "x", {}, [], [1], [1, 2, 3, 4], ["1", 2], [1, None], [1, [2]], [1, "2"]),
    *([True, 2], [1, False], [-1, 2], [1.5, 2], [2**53, 2], [10**400, 2], [1, 10**400]),
    *([1, float("nan")], [float("inf"), 2], [1, 2, -float("inf")]),
)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_point_that_is_none_is_lost_and_nothing_else(wrong: Any) -> None:
    status = {"state": "Running", "attempt": 3, "curve": [[1, 2.5], wrong, [7, 1, 5500]]}
    found = read_status(status)
    assert found.curve == [[1, 2.5], [7, 1, 5500]]
    assert (found.state, found.attempt) == ("Running", 3)


def test_a_curve_of_too_many_points_is_lost_and_nothing_else() -> None:
    found = read_status({"state": "Running", "curve": [[n, 1.0] for n in range(65)]})
    assert (found.curve, found.state) == ([], "Running")


def test_a_point_is_as_it_was_after_the_api_server_has_stored_it() -> None:
    """Go writes 2.0 as 2, and 1e20 as an integer that Python reads as one."""
    stored = [[7, 2, 100000000000000000000]]
    found = job(status={"curve": stored}).status
    assert found.curve == [[7.0, 2.0, 1e20]] and found.to_json()["curve"] == stored
    assert isinstance(read_status({"curve": [[7.0, 2.0]]}).curve[0][0], int)


def test_a_long_text_of_a_status_is_cut_and_not_lost() -> None:
    ended = {"attempt": 0, "endTime": "2027-01-15T08:00:00Z", "reason": "Exception"}
    status = {
        "summary": {"reason": "r" * 5000, "pod": "p" * 5000},
        "failure": {"attempt": 0, "reason": "Exception", "traceback": "line\n" * 5000},
        "history": [{**ended, "message": "\U0001f525" * 5000}],
    }
    found = read_status(status)
    assert found.summary.reason == "r" * 127 + "…" and len(found.summary.pod or "") == 253
    assert found.failure and len(found.failure.traceback or "") <= MAX_TRACEBACK
    message = found.history[0].message or ""
    assert 500 < len(message.encode()) <= MAX_ENTRY
    assert read_status(found.to_json()) == found
