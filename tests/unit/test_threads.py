"""Iterators that threads read into one pipe."""

import threading
from collections.abc import Iterator

import pytest

from ddpjob.cluster.threads import WAITING, Pipe


def drain(pipe: Pipe[int]) -> list[int]:
    found: list[int] = []
    while (items := pipe.take(30)) is not None:
        found += items
    return found


def test_all_items_of_all_iterators_are_read_in_their_order() -> None:
    pipe = Pipe[int]()
    for start in (0, 100_000):
        pipe.read(lambda start=start: iter(range(start, start + 5 * WAITING)))  # type: ignore[misc]
    found = drain(pipe)
    for start in (0, 100_000):
        expected = list(range(start, start + 5 * WAITING))
        assert [item for item in found if start <= item < start + 50_000] == expected


def test_an_error_comes_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("x")

    pipe = Pipe[int]()
    pipe.read(source)
    found: list[int] = []
    with pytest.raises(KeyError):
        while True:
            found += pipe.take(30) or []
    assert found == [1]


def test_nobody_reads_ahead_for_ever_and_closing_ends_the_threads() -> None:
    made: list[int] = []
    ended = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                made.append(1)
                yield 1
        finally:
            ended.set()

    pipe, kept = Pipe[int](), endless()
    pipe.read(lambda: kept)
    assert pipe.take(30)
    pipe.close()
    assert ended.wait(30)
    assert len(made) <= 2 * WAITING + 2
    assert pipe.take(0) is None


def test_a_reader_that_is_told_of_news_and_of_the_end_needs_not_wait() -> None:
    told, held = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield from (1, 2, 3)
        held.wait(30)

    pipe = Pipe[int](told.set)
    pipe.read(source)
    found: list[int] = []
    while (items := pipe.take(0)) is not None:
        found += items
        if not items:
            if found == [1, 2, 3] and not held.is_set():
                told.clear()
                held.set()
            assert told.wait(30)
            told.clear()
    assert found == [1, 2, 3]
