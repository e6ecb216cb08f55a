"""The environment that the operator sets, read and checked."""

from pathlib import Path

import pytest

from ddpjob_agent.config import ConfigError
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
