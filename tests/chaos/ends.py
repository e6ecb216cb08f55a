"""How two runs are compared: what may differ between those that end alike."""

from collections.abc import Set
from typing import Any

CLOCKS = (
    *(
        "time",
        "since",
        "ratio",
        "queuedSeconds",
        "startingSeconds",
        "productiveSeconds",
        "lostSeconds",
        "idleSeconds",
    ),
    *("roots", "uids"),  # of the operator's own secret, and of uids
)


def without(value: Any, names: Set[str]) -> Any:
    """`value` without these fields and times, at every depth."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not k.endswith("Time") and k not in names}
        return {k: without(v, names) for k, v in kept.items()}
    return [without(item, names) for item in value] if isinstance(value, list) else value
