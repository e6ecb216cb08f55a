"""What a job that was read shows of itself, whatever its status has."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from ddpjob.api import Status
from ddpjob.api.base import Model
from ddpjob.client.connection import Connection
from ddpjob.client.job import Job
from ddpjob.client.snapshot import Snapshot
from ddpjob.errors import JobFailed
from tests.builders import job_object


def failed(**failure: Any) -> JobFailed:
    """What is raised for a job of two pods with eight ranks each that has failed so."""
    body = job_object("llama", nnodes=2, nprocPerNode=8)
    error = pytest.raises(
        JobFailed,
        Job(
            Connection("team"),
            {
                **body,
                "status": {
                    "state": "Failed",
                    "conditions": [
                        {"type": "Failed", "status": "True", "reason": "MaxRestartsExceeded"}
                    ],
                    "failure": {"attempt": 0, "pod": "llama-0-1", "node": "gpu-17", **failure},
                },
            },
        ).raise_if_failed,
    )
    return error.value


def test_an_error_names_a_rank_only_if_one_has_failed() -> None:
    one = failed(rank=9, reason="Exception", message="KeyError: 'x'")
    text = "llama failed: MaxRestartsExceeded; first cause: rank 9 on gpu-17: KeyError: 'x'"
    assert (one.rank, str(one)) == (9, text)
    for older in ({}, {"rank": 1}):
        whole = failed(reason="Evicted", message="evicted", **older)
        text = "llama failed: MaxRestartsExceeded; first cause: a pod on gpu-17: evicted"
        assert (whole.rank, str(whole)) == (None, text)


def with_curve(found: Any) -> Snapshot:
    return Snapshot({**job_object(), "status": {"curve": found}})


@pytest.mark.parametrize(
    ("found", "points"),
    [
        ([[1, 2.5], [3, 0.5, 100]], [(1, 2.5), (3, 0.5, 100)]),
        ([[1], [1, 2, 3, 4], [1, "2"], [True, 2], "12", None, [2, 1]], [(2, 1)]),
        ([[1, 10**400], [1, float("nan")], [1, float("inf")]], []),
        ({"1": 2}, []),
        ("12", []),
        (None, []),
    ],
)
def test_a_curve_has_the_points_that_are_points(found: Any, points: list[Any]) -> None:
    assert with_curve(found).curve() == points


def test_a_curve_is_bounded() -> None:
    assert len(with_curve([[1, 1]] * 100_000).curve()) < 2000


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


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, Model):
        for name in type(value).model_fields:
            if name != "traceback":
                yield from texts_in(getattr(value, name))


def test_what_a_status_says_is_printable_and_is_not_lost() -> None:
    escape = "\x1b]0;x\x07"
    condition = {"type": escape, "status": "True", "reason": escape, "message": escape}
    failure = {"attempt": 0, "reason": escape, "pod": escape, "node": escape, "signal": escape}
    time = "2026-01-01T00:00:00Z"
    status = {
        "state": "Failed",
        "conditions": [{**condition, "lastTransitionTime": time}],
        "summary": {"pod": escape, "node": escape, "reason": escape},
        "failure": {**failure, "exception": escape, "message": escape, "traceback": escape},
        "history": [{**failure, "endTime": time, "exception": escape, "message": escape}],
        "progress": {"step": 1, "metrics": [{"name": escape, "value": "1"}]},
    }
    job = Snapshot({**job_object(), "status": status})
    found = list(texts_in(job.status))
    assert all(text.isprintable() for text in found)
    assert sum(text == r"\x1b]0;x\x07" for text in found) == 19
    assert job.failure is not None and job.failure.traceback == r"\x1b]0;x\x07"
    assert job.body["status"] == status, "as it is stored"
