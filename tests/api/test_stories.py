"""The stories on a real API server, with the operator as a process."""

import pytest

from tests.api.jobs import Jobs
from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.operator import OperatorProcess
from tests.stage import Real
from tests.stories import STORIES, Story


@pytest.mark.parametrize("story", STORIES, ids=lambda story: str(story.__name__))
async def test_on_a_real_api_server(
    story: Story, operator: OperatorProcess, jobs: Jobs, nodes: list[str], client: Client
) -> None:
    async with ScriptedKubelet(client, nodes) as kubelet:
        await story(Real(jobs, kubelet))
