"""A reader of `status` that leaves out whatever breaks its rules."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ddpjob.api.status import Status

# A status is four levels deep, and each read may leave a level to be dropped.
_READS = 8


def read_status(status: Any) -> Status:
    """Return the parts of `status` that break no rule.

    Whoever may write a status in the namespace may write anything there, and an older schema let
    more in. An `attempt` that is left out is 0. Pods of other attempts are then deleted, because
    the job has not begun those attempts, and the job starts again.
    """
    if isinstance(status, Status):
        return status
    for _ in range(_READS):
        try:
            return Status.model_validate(status)
        except ValidationError as error:
            wrong = {
                detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
                for detail in error.errors(include_url=False, include_context=False)
            }
            status = _without(status, wrong)
    return Status()


def _without(
    value: Any, wrong: set[tuple[int | str, ...]], path: tuple[int | str, ...] = ()
) -> Any:
    """Return `value` without the parts at the paths `wrong`; {} if `value` itself is wrong."""
    if path in wrong:
        return {}
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    kept = {
        name: _without(part, wrong, (*path, name)) if isinstance(part, Mapping | list) else part
        for name, part in pairs
        if (*path, name) not in wrong
    }
    return kept if isinstance(value, Mapping) else list(kept.values())
