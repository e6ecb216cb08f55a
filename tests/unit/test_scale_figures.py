"""The figures of scale: percentiles, storms, which promises hold, the page's part."""

from benchmarks import page
from benchmarks.scale import beside, burst, inplace, start, storm, width
from benchmarks.scale.failing import Storm, job_of
from benchmarks.scale.result import Promise, Result, missed, percentile, section, sections
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


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.99) == 99
    assert percentile(values, 0.5) == 50
    assert percentile([3.0], 0.99) == 3


def test_a_write_is_of_a_job_by_its_name_or_its_pods() -> None:
    assert job_of(write(1, "create", "pods", "job-1-0-7")) == "job-1"
    assert job_of(write(1, "update", "ddpjobs/status", "job-1")) == "job-1"


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


def test_ratios_are_held_against_their_bars() -> None:
    assert holds(width.judge(1000, 5000, 2.0, 12.0)) == [True]
    assert holds(width.judge(1000, 5000, 2.0, 12.1)) == [False]
    one, two, more = (
        beside.Small([0.1, 0.1], [1.0, last], [0.1], 0.2, 1.0) for last in (1.0, 2.0, 2.1)
    )
    assert holds(beside.judge(1000, one, two, 3)) == [True]
    assert holds(beside.judge(1000, one, more, 3)) == [False]


def bursts(pods_alone: list[float], ours: list[float]) -> burst.Bursts:
    rates = {burst.PODS_ALONE: pods_alone, burst.OURS: ours, burst.ALL: ours}
    return {side: [burst.Burst(rate, 1.0) for rate in found] for side, found in rates.items()}


def test_a_burst_is_held_against_the_pods_alone() -> None:
    alone = bursts([100.0, 100.0], [70.0, 71.0])
    beside = bursts([100.0, 50.0], [49.0, 24.0])
    assert holds(burst.judge(100, alone, beside)) == [True, False]


def test_the_page_shows_what_was_missed() -> None:
    bad = Result("a", "b", [Promise("c", "3", False), Promise("d", "1", True)], [("e", "5")])
    assert missed([bad]) == ["a: c: 3"]
    assert "| c | 3 | **no** |\n| d | 1 | yes |" in section(bad)


def test_the_part_about_scale_is_replaced_and_the_rest_stays() -> None:
    bare = "# Benchmarks\n\nrest\n"
    first = page.with_scale(bare, sections([Result("a", "b", [])]))
    second = page.with_scale(first, sections([Result("x", "y", [])]))
    assert second.startswith("# Benchmarks\n\nrest\n\n## Scale\n")
    assert "### x" in second and "### a" not in second
