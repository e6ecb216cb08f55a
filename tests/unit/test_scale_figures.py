"""The figures of scale: storms, which promises hold, and the page's part."""

from benchmarks.scale import inplace, start, storm
from benchmarks.scale.failing import Storm
from benchmarks.scale.result import Promise, Result, missed, section
from benchmarks.writes import Write

JOB = "bench-0/job-1"


def write(time: float, verb: str, resource: str, name: str) -> Write:
    return Write(time, verb, resource, "bench-0", name)


def a_storm(status_writes: int = 2, others: int = 0) -> Storm:
    writes = [write(10.5 + n, "update", "ddpjobs/status", "job-1") for n in range(status_writes)]
    more = [write(11, "update", "ddpjobs/status", "job-2") for _ in range(others)]
    return Storm({JOB: 10.0}, {JOB: 12.0}, {JOB: writes}, more, cpu=0.5)


def holds(result: Result) -> list[bool]:
    return [promise.holds for promise in result.promises]


def test_a_storm_counts_from_the_failure() -> None:
    found = a_storm()
    assert (found.seconds, found.decided, found.status_writes) == (2.0, [0.5], [2])
    assert found.writes_each == 2


def test_a_restart_in_place_may_take_two_status_writes() -> None:
    assert holds(storm.judge(1, a_storm(5), a_storm(2))) == [True]
    assert holds(storm.judge(1, a_storm(2), a_storm(3))) == [False]


def test_nothing_is_written_in_a_quiet_minute_and_for_no_other_job() -> None:
    quiet = inplace.Quiet(rss=2**20, cpu=0.1, writes=0)
    assert holds(inplace.judge(1000, 60, quiet, a_storm())) == [True, True]
    loud = inplace.Quiet(rss=2**20, cpu=0.1, writes=1)
    assert holds(inplace.judge(1000, 60, loud, a_storm(others=1))) == [False, False]


def test_a_start_is_correct_in_time_and_writes_nothing_without_need() -> None:
    assert holds(start.judge(1000, 2.0, 10.0, a_storm(), 2**20)) == [True, True]
    assert holds(start.judge(1000, 2.0, 10.1, a_storm(others=1), 2**20)) == [False, False]


def test_the_page_shows_what_was_missed() -> None:
    bad = Result("a", "b", [Promise("c", "3", False), Promise("d", "1", True)], [("e", "5")])
    assert missed([bad]) == ["a: c: 3"]
    assert "| c | 3 | **no** |\n| d | 1 | yes |" in section(bad)
