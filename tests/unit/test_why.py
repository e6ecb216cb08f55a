"""What one line says of a job, read from the status as it was stored."""

from typing import Any

import pytest

from ddpjob import why
from ddpjob.times import timestamp

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("progress", "part"),
    [
        (None, 0.5),
        ({"updatedAt": timestamp(NOW - 20)}, 0.8),
        ({"updatedAt": timestamp(NOW - 900)}, 0.5),
        ({"updatedAt": timestamp(NOW - 20), "attempt": 1}, 0.5),
    ],
)
def test_what_runs_without_a_step_is_not_useful(progress: Any, part: float) -> None:
    spent = {"startingSeconds": 20, "productiveSeconds": 100, "since": timestamp(NOW - 80)}
    found = why.useful({"state": "Running", "goodput": spent, "progress": progress}, NOW)
    assert found == pytest.approx(part)


@pytest.mark.parametrize(
    ("state", "booked", "seconds_ago", "part"),
    [
        ("Running", (5, 0, 0), 95, 0.95),  # a first attempt that has not ended
        ("Restarting", (5, 85, 0), 10, 0.85),
        ("Suspended", (10, 90, 0), 10**6, 0.9),
        ("Succeeded", (10, 60, 30), 0, 0.6),
        ("Running", (5, 5, 0), -60, 0.5),  # by a clock that is behind
        ("Starting", (0, 0, 0), 60, None),
        ("Running", (-5, "7", None), 0, None),
    ],
)
def test_the_useful_part_of_the_time_has_the_present_state(
    state: str, booked: tuple[Any, ...], seconds_ago: float, part: float | None
) -> None:
    names = ("startingSeconds", "productiveSeconds", "lostSeconds")
    spent = {**dict(zip(names, booked, strict=True)), "since": timestamp(NOW - seconds_ago)}
    found = why.useful({"state": state, "goodput": spent, "progress": {"step": 7}}, NOW)
    assert found == (part if part is None else pytest.approx(part))


def test_a_failure_is_of_the_rank_that_its_pod_had_got() -> None:
    failure = {"attempt": 1, "rank": 1, "pod": "digits-1-2"}
    moved = {"attempt": 1, "moved": [{"rank": 1, "of": 2}]}
    assert why.place({"pods": [moved]}, failure, 1) == (1, 1)
    assert why.place({"pods": [{**moved, "attempt": 2}]}, failure, 1) == (1, 2)
    later = {**failure, "pod": "digits-1-2-r3"}
    assert why.place({"pods": [moved]}, later, 1) == (1, 2), "made for its rank after that"
    spare = {"attempt": 1, "spares": [{"number": 1, "rank": 3, "round": 2}]}
    assert why.place({"pods": [spare]}, {**failure, "pod": "digits-1-s1"}, 1) == (1, 3)
    assert why.place({}, failure, 1) == (1, 2)
