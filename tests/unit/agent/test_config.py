"""The environment that the operator sets, read and checked."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_agent.config import ConfigError
from tests.agentpod import DEADLINE
from tests.unit.agent.samples import config


def test_every_broken_variable_is_named_with_its_value(tmp_path: Path) -> None:
    broken = {"DDPJOB_NNODES": "two", "MASTER_PORT": "70000", "DDPJOB_JOB": ""}
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, **broken)
    assert "DDPJOB_NNODES must be an integer from 1" in str(caught.value)
    assert "got 'two'" in str(caught.value)
    assert "MASTER_PORT must be an integer from 1 to 65535, got '70000'" in str(caught.value)
    assert "DDPJOB_JOB is not set" in str(caught.value)


def test_a_node_rank_beyond_the_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DDPJOB_NODE_RANK .* from 0 to 1, got '2'"):
        config(tmp_path, DDPJOB_NNODES="2", DDPJOB_NODE_RANK="2")


PARTS = """
import os, sys
from ddpjob_agent import config
config.TAKE_SECONDS = float(sys.argv[1])
os.write(1, b"half a line")
config.end_lines()
config.say("next")
"""


def parts(stderr: int, seconds: float) -> "subprocess.Popen[bytes]":
    """A process that ends a line and says something; it waits so long for its log."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-u", "-c", PARTS, str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, env=env)


def test_what_a_killed_process_has_begun_is_ended_first() -> None:
    told, _ = parts(subprocess.STDOUT, 60).communicate(timeout=DEADLINE)
    assert told == b"half a line\nddpjob-agent: next\n"


def test_the_log_has_taken_one_stream_before_the_other_goes_on() -> None:
    with parts(subprocess.PIPE, 60) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.read(1) == b"\n"
        assert not select.select([process.stderr], [], [], 0.3)[0]
        assert process.stdout.read() == b"half a line\n"
        assert process.stderr.read() == b"ddpjob-agent: next\n"
