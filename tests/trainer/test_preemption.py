from typing import Any

import pytest
import torch.distributed as dist

from ddptrain.dist import World
from ddptrain.preemption import MOST_STEPS, StopVote


def votes(world: World, monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[int]:
    """In which steps there is a vote, where they take so many seconds."""
    now, step, voted = 0.0, 0, list[int]()
    all_reduce: Any = dist.all_reduce

    def count(*arguments: Any, **options: Any) -> Any:
        voted.append(step)
        return all_reduce(*arguments, **options)

    monkeypatch.setattr(dist, "all_reduce", count)
    stop = StopVote(lambda: now)
    for step, duration in enumerate(seconds, start=1):  # noqa: B007  # `count` reads it
        now += duration
        assert not stop.agreed(world)
    stop.close()
    return voted


def test_short_steps_have_a_vote_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    voted = votes(world, monkeypatch, [0.001] * 1000)
    assert voted[:6] == [1, 2, 4, 8, 16, 32]
    assert len(voted) < 30
    assert max(later - one for one, later in zip(voted, voted[1:], strict=False)) == MOST_STEPS


def test_long_steps_have_a_vote_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert votes(world, monkeypatch, [0.6] * 50) == list(range(1, 51))


def test_one_long_step_makes_votes_frequent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint or an evaluation between two steps, or steps that become slower for good."""
    voted = votes(world, monkeypatch, [0.001] * 200 + [2.0] * 100)
    slow = [step for step in voted if step > 200]
    assert slow[0] <= 200 + MOST_STEPS
    assert slow[1:] == list(range(slow[1], 301))
    assert slow[1] - slow[0] == 1
