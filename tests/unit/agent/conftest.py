"""What tests of the agent as a process begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import agentpod
from tests.agentpod import Pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with agentpod.pods(tmp_path) as group:
        yield group
