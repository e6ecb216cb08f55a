"""What an HTTP answer of the API server means."""

import io

import pytest

from ddpjob.client.answers import read_list, read_object
from ddpjob.errors import Unavailable


def test_of_a_list_is_kept_what_is_asked_for() -> None:
    answer = io.BytesIO(b'{"items": [{"a": 1}, {"a": 2}], "metadata": {"continue": "x"}}')
    page = read_list(answer, "LIST x", lambda body: None if body["a"] == 1 else body["a"])
    assert (page.items, page.metadata) == ([2], {"continue": "x"})


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]"])
def test_an_answer_that_cannot_be_read_is_one_error(text: bytes) -> None:
    for read in (lambda body: read_list(body, "x", None), lambda body: read_object(body, "x")):
        with pytest.raises(Unavailable, match="x: the answer is no"):
            read(io.BytesIO(text))
