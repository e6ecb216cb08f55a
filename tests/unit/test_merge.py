"""Lines of several logs in the order of their times."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob.client import merge as module
from ddpjob.client.merge import Merge


@settings(max_examples=300)
@given(st.lists(st.lists(st.integers(0, 20), max_size=12), min_size=1, max_size=5), st.data())
def test_nothing_is_lost_and_the_order_is_that_of_the_times(
    logs: list[list[int]], data: st.DataObject
) -> None:
    merge = Merge[str](quiet=math.inf)
    assert [merge.open(0.0) for _ in logs] == list(range(len(logs)))
    found: list[str] = []
    left = {log: sorted(times) for log, times in enumerate(logs)}
    while left:
        log = data.draw(st.sampled_from(sorted(left)))
        if not left[log]:
            merge.close(log)
            del left[log]
        else:
            count = data.draw(st.integers(1, len(left[log])))
            lines = [(float(time), f"{time} {log}") for time in left[log][:count]]
            merge.put(log, lines)
            left[log] = left[log][count:]
        found += merge.take(0.0)
    assert merge.is_empty
    times = [int(text.split()[0]) for text in found]
    assert times == sorted(times) and len(times) == sum(map(len, logs))
    for log, of_log in enumerate(logs):
        assert [t for t in found if t.endswith(f" {log}")] == [f"{t} {log}" for t in sorted(of_log)]


def test_the_order_of_a_log_is_kept_even_against_its_times() -> None:
    merge = Merge[str]()
    log = merge.open(0.0)
    merge.put(log, [(2, "first"), (1, "second")])
    assert merge.take(1.0) == ["first", "second"]


def test_a_quiet_log_is_waited_for_only_for_a_while() -> None:
    merge = Merge[str]()
    a, b = merge.open(0.0), merge.open(0.0)
    merge.put(a, [(5, "late")])
    assert merge.take(0.2) == [], "b may bring an earlier one"
    merge.put(b, [(4, "early")])
    assert merge.take(0.25) == ["early"], "b may bring one between them"
    assert merge.take(0.25 + module.QUIET) == ["late"]


def test_the_lines_of_a_log_that_has_ended_go_out() -> None:
    merge = Merge[str]()
    a, b = merge.open(0.0), merge.open(0.0)
    merge.put(a, [(1, "one")])
    merge.close(a)
    assert merge.take(0.1) == []
    merge.close(b)
    assert merge.take(0.1) == ["one"] and merge.is_empty


def test_a_log_of_which_many_lines_wait_is_full() -> None:
    merge = Merge[str]()
    a, b = merge.open(0.0), merge.open(0.0)
    merge.put(a, [(1, "x")] * module.FULL)
    assert merge.is_full(a) and not merge.is_full(b), "else none would ever go out"
    merge.close(b)
    assert len(merge.take(0.0)) == module.FULL and not merge.is_full(a)


def test_a_log_whose_lines_have_waited_long_is_not_taken_for_quiet() -> None:
    merge = Merge[str]()
    a, b = merge.open(0.0), merge.open(0.0)
    merge.put(a, [(1, "one")])
    merge.put(b, [(3, "three")])
    assert merge.take(100.0) == ["one"], "its reader may have waited for room"
    merge.put(a, [(2, "two")])
    assert merge.take(100.1) == ["two"] and merge.take(100.5) == ["three"]


def test_a_line_that_nobody_wants_says_how_far_the_log_is() -> None:
    merge = Merge[str]()
    a, b = merge.open(0.0), merge.open(0.0)
    merge.put(a, [(2, None)])
    merge.put(b, [(1, "one"), (3, "three")])
    assert merge.take(0.1) == ["one"]
    assert merge.take(0.1 + module.QUIET) == ["three"] and merge.is_empty
