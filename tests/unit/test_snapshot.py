"""What a job that was read shows of itself, whatever its status has."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from ddpjob.api import Status
from ddpjob.api.base import Model
from ddpjob.client.job import Job
from ddpjob.cluster.connection import Connection
from ddpjob.errors import JobFailed
from tests.builders import job_object


def failed(**failure: Any) -> JobFailed:
    """What is raised for a job of two pods with eight ranks each that has failed so."""
    body = job_object("llama", nnodes=2, nprocPerNode=8)
    over = {"type": "Failed", "status": "True", "reason": "MaxRestartsExceeded"}
    failure = {"attempt": 0, "pod": "llama-0-1", "node": "gpu-17", **failure}
    body["status"] = {"state": "Failed", "conditions": [over], "failure": failure}
    with pytest.raises(JobFailed) as error:
        Job(Connection("team"), body).raise_if_failed()
    return error.value


def test_an_error_names_a_rank_only_if_one_has_failed() -> None:
    one = failed(rank=9, reason="Exception", message="KeyError: 'x'")
    text = "llama failed: MaxRestartsExceeded; first cause: rank 9 on gpu-17: KeyError: 'x'"
    assert (one.rank, str(one)) == (9, text)
    whole = failed(reason="Evicted", message="evicted")
    text = "llama failed: MaxRestartsExceeded; first cause: a pod on gpu-17: evicted"
    assert (whole.rank, str(whole)) == (None, text)


HOSTILE = "\x1b]0;x\x07\u202e\nforged\x9b2J" + "x" * 5000
# A traceback has lines and tabs.
OF_LINES = ("failure.traceback",)


def texts(model: type[Model], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every text that a model may have, with its type."""
    for name, field in model.model_fields.items():
        annotated: Any = Annotated[field.annotation, *field.metadata] if field.metadata else None
        yield from _texts(annotated or field.annotation, f"{path}.{name}".lstrip("."))


def _texts(found: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = found.__origin__ if get_origin(found) is Annotated else found
    if isinstance(inner, type) and issubclass(inner, Model):
        yield from texts(inner, path)
    elif get_origin(inner) is Literal or inner is str:
        yield path, found
    else:
        for part in get_args(inner):
            yield from _texts(part, path)


def test_every_text_of_a_status_is_printable() -> None:
    found = dict(texts(Status))
    assert {
        *("conditions.type", "failure.pod", "history.node", "progress.metrics.name"),
        *("summary.reason", "failure.exception", "failure.traceback", "result.value"),
    } <= found.keys()
    assert len(found) > 45
    for path, kind in found.items():
        for hostile in (HOSTILE, HOSTILE[:40], "\x1b", "a\nb"):
            try:
                shown = TypeAdapter(kind).validate_python(hostile)
            except ValidationError:
                continue  # a pattern or a list of words, so this part is left out
            rest = re.sub(r"[\n\t]", "", shown) if path in OF_LINES else shown
            assert rest.isprintable(), path
