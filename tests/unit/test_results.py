"""The result of a job, whatever its status has for one."""

from typing import Any

import pytest

from ddpjob.client.job import value_of
from ddpjob.client.snapshot import Snapshot
from ddpjob.errors import DDPJobError, NoResult, ResultTooLarge
from tests.builders import job_object


def job(left: Any) -> Snapshot:
    return Snapshot({**job_object(), "status": {"state": "Succeeded", "result": left}})


@pytest.mark.parametrize("text", ['{"loss":0.5}', "null", "[1,NaN]"])
def test_a_result_is_the_value_that_was_left(text: str) -> None:
    assert repr(value_of(job({"value": text, "sizeBytes": 9}))) == repr(
        {"null": None, '{"loss":0.5}': {"loss": 0.5}}.get(text, [1, float("nan")])
    )


def test_one_that_is_too_large_names_size_limit_and_what_to_do() -> None:
    with pytest.raises(ResultTooLarge, match="51,234 bytes as JSON, and 2,048") as raised:
        value_of(job({"sizeBytes": 51234}))
    error = raised.value
    assert (error.size, error.limit, error.name) == (51234, 2048, "digits")
    assert "checkpoint folder" in error.advice and isinstance(error, NoResult | DDPJobError)


@pytest.mark.parametrize(
    "left",
    [None, {"sizeBytes": 9}, {"value": "{"}],
)
def test_whatever_else_stands_there_is_no_result(left: Any) -> None:
    with pytest.raises(NoResult) as raised:
        value_of(job(left))
    assert raised.value.advice and not isinstance(raised.value, ResultTooLarge)
