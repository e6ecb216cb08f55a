"""What rank 0 of a job has left, read from the status as it was stored. Pure."""

import json
from typing import Any

from ddpjob.client import why
from ddpjob.client.snapshot import Snapshot
from ddpjob.errors import NoResult, ResultTooLarge
from ddpjob.names import MAX_RESULT


def value_of(job: Snapshot) -> Any:
    """Return the value that rank 0 has left, which is JSON. Raises NoResult or ResultTooLarge."""
    left = why.part(job.body, "status", "result")
    if left is None:
        raise NoResult(
            job.name,
            f"it is {job.state}, and rank 0 has left nothing",
            "a script leaves a value in the file DDPJOB_RESULT_FILE (docs/progress.md)",
        )
    size, text = why.number(left, "sizeBytes") or 0, why.part(left, "value")
    if text is None and size > MAX_RESULT:
        raise ResultTooLarge(job.name, size, MAX_RESULT)
    try:
        if text is not None:
            return json.loads(text)
    except ValueError:
        pass
    raise NoResult(job.name, "it is no JSON", "the last lines of rank 0's log say why")
