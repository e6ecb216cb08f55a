"""`ddpjob plot`: what it reads, where it draws, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from ddpjob.cli import app


def plot(*options: Path | str, stdin: str | bytes = "", columns: int = 60) -> Result:
    environment = {"COLUMNS": str(columns)}
    return CliRunner().invoke(app, ["plot", *map(str, options)], input=stdin, env=environment)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Of a training that restarted once, and was killed while it wrote a line."""
    lines = [
        {"attempt": 0, "round": life, "step": step, "loss": 100 / step, "samples_per_second": 400}
        for life, steps in enumerate((range(10, 200, 10), range(150, 400, 10)))
        for step in steps
    ]
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"attempt": 0, "ro')
    return path


def test_a_history_is_drawn_as_wide_as_the_terminal(history: Path) -> None:
    ended = plot("--file", history)
    assert ended.exit_code == 0
    lines = ended.stdout.splitlines()
    assert lines[0].split() == ["loss", "┊", "restart"]
    assert max(map(len, lines)) == 60
    assert max(map(len, plot("--file", history, columns=100).stdout.splitlines())) == 100
    assert ended.stderr == f"{history}: lines left out that are no JSON object with a step: 1\n"


def test_another_metric_has_its_name(history: Path) -> None:
    ended = plot("--file", history, "--metric", "samplesPerSecond")
    assert ended.stdout.startswith("samples/s") and "400" in ended.stdout
    assert plot("--file", history, "--metric", "speed").exit_code == 2


def test_a_logarithmic_axis_has_powers_of_ten(history: Path) -> None:
    drawn = plot("--file", history, "--log").stdout
    assert {"1", "10"} <= {line.split(" ┤")[0].strip() for line in drawn.splitlines()}


def test_an_svg_goes_to_a_file_or_to_standard_output(history: Path, tmp_path: Path) -> None:
    ended = plot("--file", history, "--svg", tmp_path / "loss.svg")
    assert ended.exit_code == 0 and ended.stdout == ""
    drawn = (tmp_path / "loss.svg").read_text()
    assert plot("--file", history, "--svg", "-").stdout == drawn
    assert "1 restart<" in drawn and ElementTree.fromstring(drawn) is not None


def test_standard_input_is_read_for_a_dash(history: Path) -> None:
    assert plot("--file", "-", stdin=history.read_text()).stdout == plot("--file", history).stdout
    shown = plot("--file", "-", stdin=b"\xff\n" + history.read_bytes()).stdout
    assert shown == plot("--file", history).stdout


def test_a_terminal_without_unicode_gets_ascii(history: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ddpjob", "plot", "--file", str(history)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=200,
    )
    assert ended.returncode == 0 and b"**" in ended.stdout and b": restart" in ended.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--file", "/none"), "/none: cannot be read: No such file or directory"),
        (
            ("--file", "/dev/null"),
            "/dev/null: has no loss yet; docs/progress.md has how to report it",
        ),
        (("a", "--file", "b"), "give the NAME of a job or --file, not both"),
    ],
)
def test_what_cannot_be_plotted_is_said_in_one_line(options: tuple[str, ...], problem: str) -> None:
    ended = plot(*options)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (2, "", f"{problem}\n")
