"""Waiting for what must come, whoever makes it come."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Seconds for what a busy machine does late. A mutant's operator never does it: there it is less.
PATIENCE = float(os.environ.get("DDPJOB_TEST_PATIENCE", "300"))


def wait_for(
    look: Callable[[], T],
    what: Callable[[], object] = lambda: "what was waited for",
    *,
    seconds: float = 200.0,
    every: float = 0.05,
) -> T:
    """The first true value of `look`. Raises TimeoutError that says `what` never came."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what()} after {seconds:.0f} s")
        time.sleep(every)
    return found
