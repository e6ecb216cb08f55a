import pytest

from ddptrain.timing import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_may_be_paused_twice_over_and_after_an_error() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now += 3
    with pytest.raises(KeyError), watch.paused():
        clock.now += 10
        with watch.paused():
            clock.now += 10
        assert watch.seconds == 3
        clock.now += 10
        raise KeyError
    clock.now += 1
    assert watch.seconds == 4


def test_restarted_in_a_pause_it_counts_from_its_end() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now += 3
    with watch.paused():
        watch.restart()
        clock.now += 10
        assert watch.seconds == 0
    clock.now += 1
    assert watch.seconds == 1
