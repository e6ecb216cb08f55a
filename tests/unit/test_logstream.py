"""How lines are shown, and values of options."""

import pytest
import typer

from ddpjob.cli.logs import SHOWN, record
from ddpjob.cli.options import seconds
from ddpjob.cluster.logs import LogLine


def line(content: bytes) -> LogLine:
    return LogLine("t", 0, 0, 0, 0, "n", "p", content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"plain", "plain"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"a\r\rb\r", "b"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"windows\r", "windows"),
    ],
)
def test_a_line_is_shown_as_a_terminal_would_be_left_by_it(content: bytes, text: str) -> None:
    assert line(content).shown(SHOWN) == text


def test_a_long_line_is_cut_and_says_so() -> None:
    whole = line(b"x" * SHOWN).shown(SHOWN)
    assert len(whole) == SHOWN
    assert line(b"x" * (SHOWN + 1)).shown(SHOWN).endswith("x … (the line goes on)")
    assert record(line(b"x" * (SHOWN + 1)))["cut"] is True and "cut" not in record(line(b"x"))


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("1.5", 1.5), ("8h", 28800), ("1h30m", 5400), ("1d2s", 86402)]
)
def test_times_are_read(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "1x", "-5", "1h30"])
def test_another_text_is_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="must be a time such as"):
        seconds(text)
