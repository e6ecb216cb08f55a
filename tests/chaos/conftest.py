from collections.abc import Iterator
from typing import Any

import pytest

from ddpjob.controller import children, groups, memory, reconcile, silence
from ddpjob.controller.queue import KeyedQueue
from tests.chaos.clock import Clocks, Pauses, this_run


@pytest.fixture(autouse=True, scope="module")
def _own_clocks() -> Iterator[None]:
    """An operator within this process lives by the clock of its run."""
    add_after = KeyedQueue.add_after

    def add(queue: KeyedQueue[Any], key: Any, delay: float) -> None:
        add_after(queue, key, this_run().real(delay))

    with pytest.MonkeyPatch.context() as patch:
        for module in (reconcile, memory, children, groups, silence):
            patch.setattr(module, "time", Clocks())
        for module in (groups, silence):
            patch.setattr(module, "asyncio", Pauses())
        patch.setattr(KeyedQueue, "add_after", add)
        yield


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for agents to ask as often as these tests' settings have it look at all.

    And it makes spares again as soon.
    """
    monkeypatch.setattr(reconcile, "AGAIN_SECONDS", 0.1)
    for name in ("LOOK_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(groups, name, 0.02)
