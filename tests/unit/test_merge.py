"""Lines of several logs in the order of their times."""

import math
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob.cluster.merge import Merge

Batch = list[tuple[float, str]]


def taken(merge: Merge[str]) -> list[str]:
    """All lines, once all logs have ended."""
    found: list[str] = []
    while not merge.is_over:
        merge.has_news.clear()
        if lines := merge.take():
            found += lines
        else:
            merge.has_news.wait(0.01)
    return found


@settings(max_examples=50)
@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=20), max_size=4))
def test_nothing_is_lost_and_the_order_is_that_of_the_times(logs: list[list[list[int]]]) -> None:
    merge = Merge[str](quiet=math.inf)
    texts: list[list[str]] = []
    for number, log in enumerate(logs):
        times = iter(sorted(time for batch in log for time in batch))
        batches = [
            [(float(t), f"{t} {number}") for t, _ in zip(times, b, strict=False)] for b in log
        ]
        texts.append([text for batch in batches for _, text in batch])
        merge.read(lambda batches=batches: iter(batches))  # type: ignore[misc]
    found = taken(merge)
    assert sorted(found) == sorted(text for log in texts for text in log)
    assert found == sorted(found, key=lambda text: int(text.split()[0]))
    for number, lines in enumerate(texts):
        assert [text for text in found if text.endswith(f" {number}")] == lines


def test_the_order_of_a_log_is_kept_even_against_its_times() -> None:
    merge = Merge[str]()
    merge.read(lambda: iter([[(2.0, "first"), (1.0, "second")]]))
    assert taken(merge) == ["first", "second"]


@pytest.mark.parametrize("quiet", [0.0, math.inf])
def test_a_quiet_log_is_waited_for_only_for_a_while(quiet: float) -> None:
    held = threading.Event()

    def late() -> Iterator[Batch]:
        held.wait(60)
        yield [(1.0, "early")]

    merge = Merge[str](quiet)
    merge.read(late)
    merge.read(lambda: iter([[(2.0, "late")]]))
    while not merge.has_news.wait(60) or (quiet == 0.0 and not (lines := merge.take())):
        pass
    assert quiet or lines == ["late"]
    assert not merge.take()
    held.set()
    assert taken(merge) == (["early", "late"] if quiet else ["early"])
