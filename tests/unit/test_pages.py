"""Lists are read object by object, however their bytes arrive."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ddpjob import json_depth
from ddpjob.cluster import pages
from ddpjob.cluster.pages import MAX_CHARS, read_page

ITEMS = [{"a": 'é"}{]['}, {"b": [1, 2, {"c": None}]}, {}, {"n": -12.5e3, "t": "\\"}]


async def arrive(text: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


async def read(text: bytes, size: int = 7) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    items = list[dict[str, Any]]()
    return await read_page(arrive(text, size), items.append), items


@pytest.mark.parametrize("size", [1, 2, 3, 64, 10**6])
@pytest.mark.parametrize("indent", [None, 2])
async def test_a_page_is_the_same_in_whatever_pieces_it_comes(
    size: int, indent: int | None
) -> None:
    every: list[dict[str, Any]] = [
        {"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": ITEMS},
        {"items": ITEMS, "kind": "DDPJobList", "metadata": {"continue": "x"}},
        {"metadata": {}, "items": []},
        {"items": None, "n": 12345},
        {"groups": ITEMS},
        {},
    ]
    for page in every:
        found, items = await read(json.dumps(page, indent=indent).encode(), size)
        taken = page.get("items") or []
        assert items == taken and found == ({**page, "items": []} if taken else page)


NO_PAGES = [
    *(b"", b"[]", b"null", b"{", b"<html>", b'{"a":1,}', b'{"a" 1}', b'{"items":[1]}'),
    *(b'{"items":[{}', b'{"items":[{}{}]}', b'{"items":[{},]}', b'{"items":[{}]', b'{"a":"'),
]


@pytest.mark.parametrize("text", NO_PAGES)
@pytest.mark.parametrize("size", [1, 100])
async def test_what_is_no_page_is_refused(text: bytes, size: int) -> None:
    with pytest.raises(ValueError, match=r"expected|no JSON|cut|no object"):
        await read(text, size)


async def test_an_item_that_is_too_deep_for_python_loses_its_depths() -> None:
    deep = b'{"x": ' * 5000 + b"1" + b"}" * 5000
    found, items = await read(b'{"items": [{"a": 1}, ' + deep + b', {"b": 2}]}', 1000)
    assert found == {"items": []} and len(items) == 3 and items[2] == {"b": 2}


async def test_a_value_without_end_is_given_up() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"items": [{"a": "'
        while True:
            yield b"x" * 2**20

    taken = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal taken
        async for chunk in endless():
            taken += len(chunk)
            yield chunk

    with pytest.raises(ValueError, match="no JSON"):
        await read_page(counted(), lambda item: None)
    assert taken <= 4 * MAX_CHARS


async def test_no_more_than_one_item_is_held_at_a_time() -> None:
    """What is read ahead is bounded by the size of an item, not of the page."""
    sent, taken, ahead = 0, 0, 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"items": ['
        for number in range(100):
            sent += 1
            yield (b"," if number else b"") + b'{"a": "' + b"x" * 200_000 + b'"}'
        yield b"]}"

    def take(item: dict[str, Any]) -> None:
        nonlocal taken, ahead
        ahead = max(ahead, sent - taken)
        taken += 1

    await read_page(parts(), take)
    assert taken == 100 and ahead <= 4


def test_a_string_without_an_end_is_looked_through_once() -> None:
    """With a quote at each other place, one try after another took 18 s for 20,000 of them."""
    text = '{"a": "' + '\\"' * 500_000
    assert [token.group()[:4] for token in pages._TOKEN.finditer(text)] == ["{", '"a"', '"\\"\\']
    assert len(json_depth._TOKEN.findall(text.encode())) == 3


async def test_large_numbers_are_those_of_the_other_reader() -> None:
    text = b'{"items": [{"a": 100000000000000000000, "b": 9007199254740993, "c": -1}]}'
    _, items = await read(text)
    assert items == json_depth.read_json(text)["items"]
    assert [type(value) for value in items[0].values()] == [float, int, int]
