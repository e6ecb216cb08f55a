"""The plot of a training's curve, whatever its numbers are."""

import json
import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob.plot import ASCII, points_of, read_history, svg, text
from ddpjob.plot.axes import axis_of, words
from ddpjob.plot.curve import MAX_POINTS, thinned
from ddpjob.plot.svg import HEIGHT, MAX_TITLE, WIDTH
from ddpjob.plot.terminal import LEAST_HEIGHT, LEAST_WIDTH, RESTART
from ddpjob.text import printable

STEPS = st.integers(0, 2**53)
VALUES = st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, -1e308])
POINTS = st.dictionaries(STEPS, VALUES, max_size=40).map(lambda found: sorted(found.items()))
RESTARTS = st.lists(STEPS, max_size=5)
# Those of a training, and such that touch each border of a number.
FALLING = [(step, 2.5 * math.exp(-step / 900) + 0.1) for step in range(0, 4600, 20)]


@given(POINTS, RESTARTS, st.integers(-3, 200), st.integers(-3, 60), st.booleans())
def test_text_fits_its_width_and_height(
    points: list[tuple[int, float]], restarts: list[int], width: int, height: int, is_log: bool
) -> None:
    drawn = text(points, restarts, width, height, is_log=is_log)
    lines = drawn.split("\n")
    shown = [v for _, v in points if math.isfinite(v) and (v >= 1e-300 or not is_log)]
    if not shown:
        assert lines == ["no loss yet"]
        return
    assert len(lines) == max(height, LEAST_HEIGHT)
    assert all(len(line) <= max(width, LEAST_WIDTH) for line in lines), drawn
    assert any("\u2800" < character <= "\u28ff" for character in drawn)
    assert (RESTART in lines[0]) == bool(restarts)
    assert drawn.translate(ASCII).isascii()


@given(POINTS, RESTARTS, st.text(max_size=200), st.booleans())
def test_svg_is_whole_fetches_nothing_and_stays_within_its_frame(
    points: list[tuple[int, float]], restarts: list[int], title: str, is_log: bool
) -> None:
    drawn = svg(points, restarts, title, is_log=is_log)
    root = ElementTree.fromstring(drawn)
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= {"svg", "title", "text", "path"}
    assert all(element.text == printable(title, MAX_TITLE) for element in root[:2] if title)
    rest = drawn.replace("http://www.w3.org/2000/svg", "", 1).replace(root[0].text or "", "")
    assert not re.search(
        r"//|href|url|style|script|nan|inf\b", re.sub(r"<(title|text).*?</\1>", "", rest)
    )
    for path in root.findall("{*}path"):
        numbers = [float(n) for n in re.findall(r"-?[0-9.]+", path.attrib["d"])]
        assert all(-0.1 <= number <= max(WIDTH, HEIGHT) + 0.1 for number in numbers)


@given(st.lists(VALUES, min_size=1), st.integers(2, 12), st.booleans())
def test_ticks_are_round_numbers_within_the_axis(
    values: list[float], most: int, is_log: bool
) -> None:
    axis = axis_of(values, is_log=is_log)
    if axis is None:
        return
    ticks = axis.ticks(most)
    assert 2 <= len(ticks) <= max(most, 2) and ticks == sorted(set(ticks))
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    places = [axis.place(tick) for tick in ticks]
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places) and places == sorted(places)
    assert all(len(words(tick)) <= 9 for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, ["0", "5", "10"]),
        (0, 0.93, ["0", "0.2", "0.4", "0.6", "0.8"]),
        (1, 20_000, ["0", "5000", "10k", "15k", "20k"]),
        (-1.5, 1.5, ["-1", "0", "1"]),
    ],
)
def test_an_axis_has_the_ticks_that_a_reader_expects(
    low: float, high: float, ticks: list[str]
) -> None:
    axis = axis_of([low, high])
    assert axis is not None
    assert [words(tick) for tick in axis.ticks(5)] == [t for t in ticks if t != "0" or low <= 0]


@given(POINTS, st.integers(1, 30))
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(
    points: list[tuple[int, float]], columns: int
) -> None:
    shown = list(thinned(points, columns))
    assert {id(point) for point in shown} <= {id(point) for point in points}
    assert len(shown) <= 5 * columns
    assert [step for step, _ in shown] == sorted({step for step, _ in shown})
    finite, kept = ([v for _, v in p if math.isfinite(v)] for p in (points, shown))
    if points:
        assert (shown[0][0], shown[-1][0]) == (points[0][0], points[-1][0])
    if finite:
        assert (min(kept), max(kept)) == (min(finite), max(finite))
    assert any(not math.isfinite(v) for _, v in shown) == any(
        not math.isfinite(v) for _, v in points
    )


def test_the_line_goes_from_the_first_loss_down_to_the_last() -> None:
    rows = text(FALLING, [], 60, 12).split("\n")[1:-2]
    dots = [
        (row, column)
        for row, line in enumerate(rows)
        for column, c in enumerate(line)
        if c > "\u2800"
    ]
    assert min(dots)[1] == min(column for _, column in dots)  # the highest is the first
    assert max(dots)[1] == max(column for _, column in dots)  # the lowest is the last
    columns = {column for _, column in dots}
    assert columns == set(range(min(columns), max(columns) + 1))  # without a gap


def test_a_value_that_is_no_number_is_a_gap() -> None:
    points = [(0, 1.0), (1, math.nan), (2, 2.0), (3, 1.5), (4, math.inf), (5, 1.0)]
    paths = re.findall(r'd="([^"]*)" fill="none"', svg(points, [], "gaps"))
    assert [re.sub("[0-9. ]+", "", path) for path in paths] == ["ML", "MhMh"]


def line(step: int, loss: Any = 1.0, number: int = 0, **more: Any) -> str:
    return json.dumps({"attempt": 0, "round": number, "step": step, "loss": loss, **more})


def test_a_history_has_its_restarts_and_the_later_of_two_lines() -> None:
    lines = [line(10, 3.0), line(20, 2.0), line(30, 1.0), line(15, 2.5, 1), line(25, 1.5, 1)]
    curve, unread = read_history(lines)
    assert curve.points == ((10, 3.0), (15, 2.5), (25, 1.5))
    assert curve.restarts == (30,) and unread == 0
    curve, _ = read_history([line(1, samples_per_second=8.5), line(2)], "samplesPerSecond")
    assert curve.points == ((1, 8.5),)


def test_lines_that_say_nothing_are_counted() -> None:
    lines = [
        "",
        "{",
        "[]",
        line(1),
        '{"step": "2"}',
        line(2, "low"),
        line(3, None),
        line(4, math.nan),
    ]
    curve, unread = read_history(lines)
    assert unread == 3
    assert [step for step, _ in curve.points] == [1, 4] and math.isnan(curve.points[1][1])


def test_a_long_history_is_thinned_out_and_keeps_its_last_point() -> None:
    count = 5 * MAX_POINTS + 3
    curve, _ = read_history(line(step, float(step)) for step in range(count))
    assert MAX_POINTS / 2 <= len(curve.points) <= MAX_POINTS + 1
    assert curve.points[0] == (0, 0.0) and curve.points[-1] == (count - 1, count - 1.0)


def test_a_status_has_a_curve_and_its_restarts() -> None:
    status = {
        "state": "Running",
        "curve": [[10, 2.5], [20, 2.0, 410.5], [30, 1.5, 400]],
        "history": [{"attempt": 0, "round": 0, "step": 12}, {"attempt": 0, "round": 1}],
    }
    assert points_of(status).points == ((10, 2.5), (20, 2.0), (30, 1.5))
    assert points_of(status).restarts == (12,)
    assert points_of({}).points == ()
    assert points_of(status, "samplesPerSecond").points == ((20, 410.5), (30, 400.0))
    ended = status | {"state": "Failed", "history": [{"step": 12}, {"step": 31}]}
    assert points_of(ended).restarts == (12,)
