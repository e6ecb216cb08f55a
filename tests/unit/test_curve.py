"""The curve of the loss, whatever is reported."""

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob.api import MAX_POINTS, Point, Progress, Status
from ddpjob.plan.model import Report
from ddpjob.plan.running import with_report
from ddpjob.plan.status import MAX_BYTES, with_point, with_progress
from tests.builders import NOW, decide, reports, running, see, started, write


def curve_of(steps: Callable[[int], int], count: int) -> list[Point]:
    """The curve after so many reports."""
    points: list[Point] = []
    for number in range(count):
        points = with_point(points, progress(steps(number), f"{3 / (1 + number / 100):.4g}"))
    return points


def progress(step: int, loss: str | None = "0.5", rate: str | None = "5500") -> Progress:
    return Progress(step=step, loss=loss, samples_per_second=rate)


@pytest.mark.parametrize("count", [64, 65, 5000])
@pytest.mark.parametrize(
    "steps",
    [lambda number: 7 * number, lambda number: 100 * number + Random(number).randrange(90)],
    ids=["even", "uneven"],
)
def test_many_reports_are_thinned_out_evenly(steps: Callable[[int], int], count: int) -> None:
    points = curve_of(steps, count)
    assert len(points) == MAX_POINTS
    assert (points[0][0], points[-1][0]) == (steps(0), steps(count - 1)), "both ends stay"
    gaps = [two[0] - one[0] for one, two in pairwise(points)]
    assert max(gaps) < 4 * sum(gaps) / len(gaps)


def test_the_points_that_a_restart_repeats_are_left_out() -> None:
    points = curve_of(lambda number: 10 * number, 20)
    points = with_point(points, progress(100, "9"))
    assert [point[0] for point in points] == [*range(0, 100, 10), 100]
    assert points[-1] == [100, 9, 5500]
    again = with_point(points, progress(0))
    assert again == [[0, 0.5, 5500]], "without a checkpoint all begins anew"


numbers = st.floats(allow_nan=True) | st.floats(-10, 10) | st.floats(0, 1e6)
reported = st.tuples(st.integers(0, 2**53 - 1) | st.integers(0, 5000), numbers, st.none() | numbers)


@settings(max_examples=200)
@given(st.lists(reported, max_size=150))
def test_whatever_is_reported_the_curve_stays_in_its_bounds(found: list[Any]) -> None:
    points: list[Point] = []
    for step, loss, rate in found:
        text = None if rate is None else f"{rate:.4g}"
        report = Progress(step=step, loss=f"{loss:.4g}", samples_per_second=text)
        points = with_point(points, report)
        assert len(points) <= MAX_POINTS and len(orjson.dumps(points)) <= MAX_BYTES
        assert all(one[0] < two[0] for one, two in pairwise(points)), "steps grow"
        if math.isfinite(float(f"{loss:.4g}")):
            assert points[-1][0] == step, "the last report stays"
    assert Status.model_validate({"curve": points}).curve == points


def test_a_report_is_in_the_curve_of_the_status() -> None:
    said = Report(attempt=0, step=7, source="file", loss=2.0, samples_per_second=123456.0)
    status = with_progress(Status(), said)
    assert status.curve == [[7, 2, 123500]]
    assert with_progress(status, said) is status, "the same report is no news"
    assert with_progress(status, reports(9, source="counted")).curve == status.curve


def test_the_curve_goes_with_a_report_and_by_itself_causes_no_write() -> None:
    ours = write(started(), running(0), running(1), report=reports(5))
    status = ours.status.model_copy(update={"curve": [[99, 1.0]]})
    ours = ours.model_copy(update={"status": status})
    pods = (running(0), running(1))
    assert decide(ours, see(*pods, report=reports(5)), NOW).status == status, "what is there stays"
    lossless = decide(ours, see(*pods, report=reports(6)), NOW).status
    assert lossless.curve == status.curve
    said = Report(attempt=0, step=7, source="file", loss=0.5)
    assert with_report(status, said).curve == [[7, 0.5]]
