"""A job file: one job, and beside it perhaps the ConfigMaps with its code.

That is what `ddpjob submit --dry-run` prints. A file with another ConfigMap than these is refused:
what is in a file is used, or named.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddpjob import why
from ddpjob.code.code_maps import code_names
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body


@dataclass(frozen=True)
class JobFile:
    """The content of a job file."""

    job: Any
    """The object, which nothing has checked: it need not even be a mapping."""
    config_maps: tuple[Body, ...] = ()
    """Those of its code's ConfigMaps that are in the file, in the order of their parts."""


def read_job(path: str) -> JobFile:
    """Return the job in a file, YAML or JSON; `-` is standard input.

    Raises InvalidJob, whose path begins with that of the file.
    """
    from ddpjob.documents import documents  # YAML is slow to import

    try:
        jobs, config_maps = parted(documents(path))
        if len(jobs) != 1:
            rule = "must have exactly one job, and nothing beside it but the ConfigMaps of its code"
            raise InvalidJob("(file)", f"{rule}, got {len(jobs)}")
        if others := unnamed(jobs, config_maps):
            raise others[0]
        return with_code_of(jobs[0], config_maps)
    except InvalidJob as error:
        where = path if error.path == "(file)" else f"{path}: {error.path}"
        raise InvalidJob(where, error.rule, error.value) from None


def parted(objects: Iterable[Any]) -> tuple[list[Any], list[Body]]:
    """Return the jobs, or whatever is no ConfigMap, and the ConfigMaps among a file's objects."""
    jobs, config_maps = list[Any](), list[Body]()
    for each in objects:
        head = (why.part(each, "apiVersion"), why.part(each, "kind"))
        (config_maps if head == ("v1", "ConfigMap") else jobs).append(each)
    return jobs, config_maps


def unnamed(jobs: Sequence[Any], config_maps: Sequence[Body]) -> list[InvalidJob]:
    """Return an InvalidJob for each ConfigMap that is no part of the code of one of these jobs."""
    used = {name for job in jobs for name in code_names(job)}
    names = [str(why.part(each, "metadata", "name") or "") for each in config_maps]
    rule = "is not in spec.code.configMaps of a job here"
    return [
        InvalidJob("(file)", f"ConfigMap {name!r} {rule}") for name in names if name not in used
    ]


def with_code_of(job: Any, config_maps: Sequence[Body]) -> JobFile:
    """Return a job with those of the ConfigMaps that have its code."""
    given = {why.part(each, "metadata", "name"): each for each in config_maps}
    return JobFile(job, tuple(given[name] for name in code_names(job) if name in given))


# What is appended: so many letters, of which no words are made.
LETTERS, GENERATED = "bcdfghjklmnpqrstvwxz2456789", 5


def named(job: Body) -> Body:
    """Return the job with a name: its own, or one that is made of `generateName`."""
    metadata = dict(job["metadata"])
    start = metadata.pop("generateName", None)
    if start and not metadata.get("name"):
        metadata["name"] = start + "".join(secrets.choice(LETTERS) for _ in range(GENERATED))
    return {**job, "metadata": metadata}
