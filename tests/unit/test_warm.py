"""What the tests fork does what a fresh process does."""

from pathlib import Path

import pytest

from ddpjob_agent.warm.popen import Popen
from tests.terminal import ddpjob, environment
from tests.warm import forking

COMMANDS = (
    ("version",),
    ("get",),  # there is no kubeconfig
    ("get", "--help"),
    ("submit", "--no-such-option"),
    ("validate", "-f", "job.yaml"),
    ("validate", "-f", "-"),
)


def test_a_forked_command_says_and_returns_what_a_fresh_one_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("kind: DDPJob\nspec: {nnodes: 0}")

    def told() -> list[object]:
        env = environment(NO_COLOR="1")
        return [ddpjob(*words, env=env, cwd=tmp_path, stdin="kind: é") for words in COMMANDS]

    with forking():
        forked = told()
        assert Popen.server is not None and not Popen.refusals
    assert forked == told()
    assert "cold start" not in capfd.readouterr().err
