import pytest

from ddpjob.controller import reconcile
from tests.chaos.clock import Clocks


@pytest.fixture(autouse=True)
def _own_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator within this process lives by the clock of its run."""
    monkeypatch.setattr(reconcile, "time", Clocks())
