"""`ddpjob plot`: what it reads and how it ends; its pictures, whatever the numbers are."""

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from ddpjob.cli import app
from ddpjob.plot import (
    HEIGHT,
    LEAST_WIDTH,
    MAX_TITLE,
    RESTART,
    ROWS,
    WIDTH,
    Axis,
    Curve,
    points_of,
    read_history,
    svg,
    text,
    words,
)
from ddpjob.text import printable
from tests.terminal import ddpjob, environment

STEPS = st.integers(0, 2**53)
VALUES = st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, -1e308])
POINTS = st.dictionaries(STEPS, VALUES, max_size=40).map(lambda found: tuple(sorted(found.items())))
CURVES = st.builds(Curve, POINTS, st.lists(STEPS, max_size=5).map(tuple))


@given(CURVES, st.integers(-3, 200), st.booleans())
def test_text_fits_its_width(curve: Curve, width: int, is_log: bool) -> None:
    lines = text(curve, width, is_log=is_log)
    if curve.axes(is_log=is_log) is None:
        assert lines == ["no loss yet"]
        return
    assert len(lines) == ROWS and all(len(line) <= max(width, LEAST_WIDTH) for line in lines)
    assert any("\u2800" < character <= "\u28ff" for character in "".join(lines))
    assert (RESTART in lines[0]) == bool(curve.restarts)


@given(CURVES, st.text(max_size=200), st.booleans())
def test_svg_is_whole_fetches_nothing_and_stays_within_its_frame(
    curve: Curve, title: str, is_log: bool
) -> None:
    drawn = svg(curve, title, is_log=is_log)
    root = ElementTree.fromstring(drawn)
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= {"svg", "title", "text", "path"}
    assert all(element.text == printable(title, MAX_TITLE) for element in root[:2] if title)
    rest = re.sub(r"<(title|text).*?</\1>", "", drawn.replace("http://www.w3.org/2000/svg", "", 1))
    assert not re.search(r"//|href|url|style|script|nan|inf\b", rest)
    for path in root.findall("{*}path"):
        numbers = [float(n) for n in re.findall(r"-?[0-9.]+", path.attrib["d"])]
        assert all(-0.1 <= number <= max(WIDTH, HEIGHT) + 0.1 for number in numbers)


@pytest.mark.parametrize(
    ("low", "high", "is_log", "ticks"),
    [
        (0, 10, False, ["0", "5", "10"]),
        (0, 0.93, False, ["0", "0.2", "0.4", "0.6", "0.8"]),
        (1, 20_000, False, ["5000", "10k", "15k", "20k"]),
        (-1.5, 1.5, False, ["-1", "0", "1"]),
        (0.3, 12, True, ["0.5", "1", "2", "5", "10"]),
        (1e-4, 1, True, ["0.0001", "0.001", "0.01", "0.1", "1"]),
    ],
)
def test_an_axis_has_the_ticks_that_a_reader_expects(
    low: float, high: float, is_log: bool, ticks: list[str]
) -> None:
    axis = Axis.of([low, high], is_log=is_log)
    assert axis and [words(tick) for tick in axis.ticks(5)] == ticks


def test_a_value_that_is_no_number_is_a_gap() -> None:
    points = ((0, 1.0), (1, math.nan), (2, 2.0), (3, 1.5), (4, math.inf), (5, 1.0))
    [path] = re.findall(r'd="([^"]*)" fill="none"', svg(Curve(points), "gaps"))
    assert re.sub("[0-9. ]+", "", path) == "MhMhLMh"


def line(step: int, loss: Any = 1.0, number: int = 0, **more: Any) -> str:
    return json.dumps({"attempt": 0, "round": number, "step": step, "loss": loss, **more})


def test_a_history_has_its_restarts_and_the_later_of_two_lines() -> None:
    lines = [line(10, 3.0), line(20, 2.0), line(30, 1.0), line(15, 2.5, 1), line(25, 1.5, 1)]
    curve, unread = read_history(lines)
    assert curve.points == ((10, 3.0), (15, 2.5), (25, 1.5))
    assert curve.restarts == (30,) and unread == 0
    lines = ["", "{", "[]", line(1), '{"loss": 2}', line(2, "low"), line(3, None), line(4)]
    curve, unread = read_history(lines)
    assert unread == 3 and [step for step, _ in curve.points] == [1, 4]


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


def plot(*options: Path | str, columns: int = 60) -> Result:
    words = ["plot", *map(str, options)]
    return CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Of a training that restarted once, and was killed while it wrote a line."""
    steps = ((life, step) for life in (0, 1) for step in range(10 + 140 * life, 200, 10))
    lines = [line(step, 100 / step, life, samples_per_second=400) for life, step in steps]
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(lines) + '\n{"attempt": 0, "ro')
    return path


def test_a_history_is_drawn_as_wide_as_the_terminal(history: Path) -> None:
    ended = plot("--file", history)
    lines = ended.stdout.splitlines()
    assert lines[0].split() == ["loss", "┊", "restart"] and max(map(len, lines)) == 60
    assert max(map(len, plot("--file", history, columns=100).stdout.splitlines())) == 100
    assert ended.stderr == f"{history}: lines left out that are no JSON object with a step: 1\n"
    env = environment(COLUMNS="60")
    assert ddpjob("plot", "--file", "-", env=env, stdin=history.read_text()).out == ended.stdout
    other = plot("--file", history, "--metric", "samplesPerSecond")
    assert other.stdout.startswith("samples/s") and "400" in other.stdout


def test_an_svg_goes_to_a_file_or_to_standard_output(history: Path, tmp_path: Path) -> None:
    ended = plot("--file", history, "--svg", tmp_path / "loss.svg")
    assert ended.exit_code == 0 and ended.stdout == ""
    drawn = (tmp_path / "loss.svg").read_text()
    assert plot("--file", history, "--svg", "-").stdout == drawn
    assert "1 restart<" in drawn and ElementTree.fromstring(drawn) is not None
    assert plot("--file", history, "--svg", "/none/a").exit_code == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--file", "/none"), "'/none': No such file or directory"),
        (("--file", "/dev/null"), "/dev/null: has no loss yet; docs/progress.md has how"),
        (("a", "--file", "/dev/null"), "give the NAME of a job or --file, not both"),
    ],
)
def test_what_cannot_be_plotted_is_named(options: tuple[str, ...], problem: str) -> None:
    ended = plot(*options)
    assert (ended.exit_code, ended.stdout) == (2, "") and problem in ended.stderr
