import pytest
import torch

from ddptrain.timing import AHEAD, Pace, Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stopwatch_leaves_out_what_it_is_paused_for() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now += 3
    with watch.paused():
        clock.now += 10
        assert watch.seconds == 3
    clock.now += 1
    assert watch.seconds == 4


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


class Event:
    """What torch.cuda.Event is where there is a GPU."""

    waited_for: list[int]
    recorded: int

    def __init__(self, *, blocking: bool) -> None:
        assert blocking

    def record(self) -> None:
        self.number = Event.recorded
        Event.recorded += 1

    def synchronize(self) -> None:
        Event.waited_for.append(self.number)


def test_the_host_waits_for_the_step_before_the_last_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.Event", Event)
    Event.waited_for, Event.recorded = [], 0
    pace = Pace(torch.device("cuda", 0))
    for step in range(10):
        pace.step()
        assert Event.waited_for == list(range(step + 1 - AHEAD))


def test_on_cpus_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.cuda.Event")
    pace = Pace(torch.device("cpu"))
    pace.step()
    pace.catch_up()
