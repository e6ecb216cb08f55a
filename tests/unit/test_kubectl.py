"""Completions for kubectl: one a line, then the directive."""

import pytest

from tests.terminal import environment, python

PROGRAM = "from ddpjob.cli.completion import complete; complete()"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["stac"], ["stacks"]),
        (["logs", "--output", ""], ["text", "json", "raw"]),
        (["run", "it's a file", "--qui"], ["--quiet"]),
        (["get", "$(touch x)", ""], []),
    ],
)
def test_the_last_word_is_completed(words: list[str], lines: list[str]) -> None:
    ended = python("-c", PROGRAM, *words, env=environment())
    printed = ended.out.splitlines()
    assert printed[-1] == ":0" and ended.err == ""
    assert [line for line in printed[:-1] if line] == lines  # kubectl leaves empty lines out
