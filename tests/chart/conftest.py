"""The tier needs helm: the one on PATH, or one built from its Go module."""

import pytest

from tests.chart.rendering import Helm
from tests.cluster import binaries
from tests.cluster.tiers import skipping_where_unavailable


@pytest.fixture(scope="session")
def helm() -> Helm:
    with skipping_where_unavailable():
        return Helm(binaries.helm())
