"""What is nested deeply is read, written and refused, and nothing ends in an exception."""

import json
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob.api import DDPJob, validate
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import CUT_LEVELS, MAX_LEVELS, is_deep, read_json, write_json
from tests.builders import job_object

DEPTHS = (MAX_LEVELS, 254, 300, 1023, 1024, 1100, 9990)  # 10,000 are too many for the API server


def nested(depth: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    return (opening * depth + '"]{"' + closing * depth).encode()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_job_of_any_depth_is_refused_or_read(depth: int) -> None:
    body = orjson.dumps(job_object(template={"spec": {"x": "@"}})).replace(b'"@"', nested(depth))
    found = read_json(body)
    again = read_json(write_json(found))
    with pytest.raises(InvalidJob, match="^spec.template: must have at most 100 objects within"):
        DDPJob.parse(again)


@pytest.mark.parametrize("depth", [250, 600])
@pytest.mark.parametrize("place", ["spec", "status", "unknown"])
def test_validate_says_so_wherever_it_is(depth: int, place: str) -> None:
    deep = json.loads(nested(depth))
    (problem,) = validate(job_object() | {place: {"x": deep}})
    assert str(problem).endswith("must have at most 100 objects within each other")


def test_ninety_levels_are_no_fault() -> None:
    assert validate(job_object(template={"spec": {"x": json.loads(nested(90))}})) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(values, st.sampled_from(["[", '{"a":', '{"\\"]}":', '[{"":']))
def test_all_but_the_depths_is_read_as_it_stands(value: Any, opening: str) -> None:
    closing = opening.replace('{"a":', "}").replace('{"\\"]}":', "}")
    closing = {"[": "]", "}": "}", '[{"":': "}]"}[closing]
    text = orjson.dumps(value)
    whole = b"[" + text + b"," + nested(1200, opening, closing) + b"," + text + b"]"
    first, deep, last = read_json(whole)
    assert first == value and last == value
    assert is_deep(deep) and not is_deep(deep, CUT_LEVELS)


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": }', b"[" * 2000, b'"' + b"[" * 2000])
def test_what_is_no_json_stays_none(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        read_json(text)


def test_depth_is_counted_without_recursion() -> None:
    value: Any = "x"
    for _ in range(sys.getrecursionlimit() * 2):
        value = [value]
    assert is_deep(value) and not is_deep([[["x"]]], 3) and is_deep([[[["x"]]]], 3)
