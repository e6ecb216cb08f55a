"""The environment that the operator sets, read and checked."""

from pathlib import Path

import pytest

from ddpjob_agent.config import ConfigError
from tests.unit.agent.samples import config


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("DDPJOB_NNODES", "two", "must be an integer from 1 to 2147483647, got 'two'"),
        ("MASTER_PORT", "70000", "must be an integer from 1 to 65535, got '70000'"),
        ("DDPJOB_NODE_RANK", "1", "must be an integer from 0 to 0, got '1'"),
        ("DDPJOB_JOB", "", "is not set"),
    ],
)
def test_a_broken_variable_is_named_with_its_value(
    tmp_path: Path, name: str, value: str, rule: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, **{name: value})
    assert str(caught.value) == f"{name} {rule}"
