"""A job file: the one job that is in it."""

from dataclasses import dataclass
from typing import Any

from ddpjob.client.documents import documents
from ddpjob.errors import InvalidJob


@dataclass(frozen=True)
class JobFile:
    """The content of a job file."""

    job: Any
    """The object, which nothing has checked: it need not even be a mapping."""


def read_job(path: str) -> JobFile:
    """Return the job in a file, YAML or JSON; `-` is standard input. Raises InvalidJob."""
    found = list(documents(path))
    if len(found) != 1:
        raise InvalidJob("(file)", f"must have exactly one object, got {len(found)}")
    return JobFile(found[0])
