"""The stories on a real API server, with the operator as a process."""

import pytest

from tests.api.jobs import Jobs
from tests.cluster.kubelet import Played
from tests.cluster.operator import OperatorProcess
from tests.stage import Real
from tests.stories import STORIES, Story


@pytest.mark.parametrize("story", STORIES, ids=lambda story: str(story.__name__))
async def test_on_a_real_api_server(
    story: Story, operator: OperatorProcess, jobs: Jobs, played: Played
) -> None:
    async with played() as kubelet:
        await story(Real(jobs, kubelet))
