"""What `Client.submit` refuses before it asks a cluster for anything."""

from pathlib import Path
from typing import Any

import pytest

from ddpjob import Client
from ddpjob.code.archive import CodeArchive
from ddpjob.errors import InvalidJob, LoginFailed
from tests.builders import job_object

ARCHIVE = CodeArchive(b"", (), 0)


def submit(job: Any, code: Any = None) -> None:
    Client(kubeconfig="/no/such/kubeconfig").submit(job, code=code)


def job(**fields: Any) -> dict[str, Any]:
    """A job with other parts; a part that is None is missing."""
    whole = {**job_object("digits"), **fields}
    return {name: part for name, part in whole.items() if part is not None}


@pytest.mark.parametrize("code", [None, ARCHIVE])
def test_what_is_right_is_sent(code: CodeArchive | None) -> None:
    with pytest.raises(LoginFailed):
        submit(job(metadata={"name": None, "annotations": {"a": "b"}}), code)


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (job(spec=None), ARCHIVE, "spec: is required"),
        (job(spec=[1]), ARCHIVE, "spec: must be an object, got [1]"),
        (job(metadata=[1]), None, "metadata: must be an object, got [1]"),
        (job(metadata={"name": 5}), None, "metadata.name: must be a string, got 5"),
        (job(spec={"nnodes": {1}}), None, "job: must have nothing but JSON in it: Object of type"),
        ("job.yaml", None, "job: must be a DDPJob, a mapping or a Path, got 'job.yaml'"),
        (job(), "p1", "code: must be a Path or a CodeArchive, got 'p1'"),
        (Path("a\0b"), None, r"job: is no path, got 'a\x00b': embedded null byte"),
    ],
)
def test_what_is_of_another_type_is_named(given: Any, code: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        submit(given, code)
    assert str(refused.value).startswith(words)
