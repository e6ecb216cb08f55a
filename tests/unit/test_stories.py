"""The stories on the embedded cluster."""

import pytest

from tests.localplay import Watched, operating
from tests.stage import Embedded
from tests.stories import STORIES, Story


@pytest.mark.parametrize("story", STORIES, ids=lambda story: str(story.__name__))
async def test_on_the_embedded_cluster(story: Story) -> None:
    cluster = Watched()
    async with operating(cluster, lambda attempt, rank: None):
        await story(Embedded(cluster))
