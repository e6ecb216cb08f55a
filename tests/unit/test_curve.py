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
from ddpjob.api.values import NUMBER
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


def test_few_reports_are_all_in_the_curve() -> None:
    points = curve_of(lambda number: 10 * number, MAX_POINTS)
    assert [point[0] for point in points] == list(range(0, 640, 10))
    assert points[1] == [10, 2.97, 5500]


@pytest.mark.parametrize("count", [65, 100, 1000, 5000])
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


@pytest.mark.parametrize("loss", [None, "nan", "inf", "-inf", "1e+999", "-1e+400"])
def test_a_loss_that_is_no_finite_number_makes_no_point(loss: str | None) -> None:
    points = [[1, 0.5]]
    assert with_point(points, progress(2, loss)) == points
    assert with_point([[5, 0.5]], progress(2, loss)) == [[5, 0.5]], "nor is one left out for it"


@pytest.mark.parametrize("rate", [None, "nan", "inf", "1e+999"])
def test_without_samples_per_second_a_point_has_two_numbers(rate: str | None) -> None:
    assert with_point([], progress(2, "0.25", rate)) == [[2, 0.25]]


def test_numbers_of_many_digits_leave_room_for_fewer_points() -> None:
    points: list[Point] = []
    for number in range(200):
        points = with_point(points, progress(2**53 - 300 + number, "-1.234e-300", "1.234e+300"))
        assert len(orjson.dumps(points)) <= MAX_BYTES
    assert 30 < len(points) < MAX_POINTS and points[-1][0] == 2**53 - 101


numbers = st.floats(allow_nan=True) | st.floats(-10, 10) | st.floats(0, 1e6)
written_numbers = st.from_regex(NUMBER, fullmatch=True).filter(lambda text: len(text) <= 32)
reported = st.tuples(st.integers(0, 2**53 - 1) | st.integers(0, 5000), numbers, st.none() | numbers)


@settings(max_examples=200)
@given(st.lists(reported, max_size=150))
def test_whatever_is_reported_the_curve_stays_in_its_bounds(found: list[Any]) -> None:
    points: list[Point] = []
    for step, loss, rate in found:
        text = None if rate is None else f"{rate:.4g}"
        points = with_point(
            points, Progress(step=step, loss=f"{loss:.4g}", samples_per_second=text)
        )
        assert len(points) <= MAX_POINTS and len(orjson.dumps(points)) <= MAX_BYTES
        assert all(one[0] < two[0] for one, two in pairwise(points)), "steps grow"
        if math.isfinite(float(f"{loss:.4g}")):
            assert points[-1][0] == step, "the last report stays"
    assert Status.model_validate({"curve": points}).curve == points


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2**53 - 1), written_numbers)))
def test_whatever_somebody_wrote_there_the_next_report_brings_it_into_its_bounds(
    found: list[Any],
) -> None:
    written = [[step, 1.2345678901234567e-300, 1.2345678901234567e300] for step, _ in found[:64]]
    points = Status.model_validate({"curve": written}).curve
    for step, loss in [*found, (7, "0.5")]:
        points = with_point(points, progress(step, loss))
    assert len(orjson.dumps(points)) <= MAX_BYTES and points[-1] == [7, 0.5, 5500]


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
