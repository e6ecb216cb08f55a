import pytest

from ddpjob.controller import groups, reconcile
from tests.chaos.clock import Clocks


@pytest.fixture(autouse=True)
def _own_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator within this process lives by the clock of its run."""
    monkeypatch.setattr(reconcile, "time", Clocks())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for agents to ask as often as these tests' settings have it look at all."""
    for name in ("LOOK_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(groups, name, 0.02)
