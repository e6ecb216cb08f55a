"""A log whose stream is cut again and again: no line lost, none twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob.cluster import resume as module
from ddpjob.cluster.resume import Line, Resume
from tests.kubeletlog import BILLION, Chunk, lines, render, stamped

START = 1_700_000_000 * BILLION


class Reader:
    """Whoever reads a log: takes each stream apart, and keeps what is new."""

    def __init__(self) -> None:
        self.resume, self.lines = Resume(), list[bytes]()

    def read(self, stream: bytes, chunk: int = 7, *, ended: bool = False) -> None:
        self.resume.restart()
        for at in range(0, len(stream), chunk):
            self._keep(self.resume.feed(stream[at : at + chunk]))
        if ended:
            self._keep(self.resume.end())

    def _keep(self, lines: list[Line]) -> None:
        self.lines += [line.text for line in lines]


STEPS = st.sampled_from(
    [0, 0, 1, 1000, 400_000_000, 999_999_999, BILLION, 3 * BILLION, 60 * BILLION, -1, -300_000_000]
)
Steps = st.SearchStrategy[int]
TEXTS = st.sampled_from([b"", b".", b"a", b"loss 1", b"x" * 40])


@st.composite
def logs(
    draw: st.DrawFn, *, partial: bool = True, unique: bool = True, steps: Steps = STEPS
) -> list[Chunk]:
    """Chunks in the order of the log. Their times are a little out of order."""
    time, found = START, list[Chunk]()
    for number in range(draw(st.integers(1, 30))):
        step = draw(steps)
        # One thread of the runtime reads a line, so its parts are in order.
        time += step if not found or found[-1].ends else max(0, step)
        ends = not partial or draw(st.booleans()) or draw(st.booleans())
        name = b"%d " % number if unique else b""
        found.append(Chunk(time, name + draw(TEXTS), ends))
    return found


# Where lines are cut in two, or the log is, equal ones of one time cannot be told apart.
@settings(max_examples=1000)
@given(st.one_of(logs(), logs(partial=False, unique=False)), st.data())
def test_no_line_is_lost_and_none_is_read_twice(log: list[Chunk], data: st.DataObject) -> None:
    reader, grown = Reader(), 0
    for _ in range(data.draw(st.integers(0, 6))):
        grown = data.draw(st.integers(grown, len(log)))
        stream = render(log[:grown], reader.resume.since)
        reader.read(stream[: data.draw(st.integers(0, len(stream)))], data.draw(st.integers(1, 60)))
    reader.read(render(log, reader.resume.since), ended=True)
    assert reader.lines == lines(log)
    assert not reader.resume.has_gap


@settings(max_examples=400)
@given(logs(partial=False), st.data())
def test_the_last_lines_go_on_too(log: list[Chunk], data: st.DataObject) -> None:
    grown = data.draw(st.integers(1, len(log)))
    tail = data.draw(st.integers(1, grown))
    begin = grown - tail
    reader = Reader()
    first = render(log[:grown], tail=tail)
    reader.read(first[: data.draw(st.integers(first.index(b"\n") + 1, len(first)))])
    reader.read(render(log, reader.resume.since), ended=True)
    assert reader.lines == lines(log)[begin:]


@settings(max_examples=400)
@given(
    logs(partial=False, steps=st.sampled_from([1000, 400_000_000, BILLION, 9 * BILLION])), st.data()
)
def test_after_a_rotation_all_comes_that_the_kubelet_still_has(
    log: list[Chunk], data: st.DataObject
) -> None:
    reader, grown, begin = Reader(), 0, 0
    for last in [False] * data.draw(st.integers(0, 6)) + [True]:
        grown = len(log) if last else data.draw(st.integers(grown, len(log)))
        begin = data.draw(st.integers(begin, grown))
        stream = render(log[begin:grown], reader.resume.since)
        stream = stream if last else stream[: data.draw(st.integers(0, len(stream)))]
        reader.read(stream, ended=last)
    order = {line: number for number, line in enumerate(lines(log))}
    numbers = [order[line] for line in reader.lines]
    assert numbers == sorted(set(numbers)), "each once, in order"
    assert {order[line] for line in lines(log[begin:])} <= set(numbers)
    assert reader.resume.has_gap or numbers == list(range(min(numbers, default=len(log)), len(log)))


def test_a_clock_that_is_put_back_hides_no_line() -> None:
    times = [START, START + 10 * BILLION, START - 3600 * BILLION, START - 3599 * BILLION]
    log = [Chunk(time, b"%d" % number) for number, time in enumerate(times)]
    reader = Reader()
    for size in (3, 4):
        reader.read(render(log[:size], reader.resume.since))
    assert reader.lines == [b"0", b"1", b"2", b"3"] and not reader.resume.has_gap


def test_what_is_remembered_is_that_of_the_last_seconds() -> None:
    reader = Reader()
    log = [Chunk(START + number * BILLION // 10, b"%d" % number) for number in range(5000)]
    reader.read(render(log), 4096)
    assert len(reader.resume._given) <= 10 * (module.MARGIN + 2)


def test_a_line_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 1000)
    resume = Resume()
    assert resume.feed(stamped(START) + b" ") == []
    for _ in range(300):
        assert resume.feed(b"x" * 700) == [] and len(resume._rest) <= 1000
    (line, after) = resume.feed(b"\n" + stamped(START) + b" y\n")
    assert line.text == b"x" * (1000 - len(line.time) - 1) and after.text == b"y"


def test_the_kubelets_own_words_have_no_time() -> None:
    text = b'failed to watch file "/var/log/pods/x": no space left on device\nunable to\n'
    text += b"2026-13-01T00:00:00Z month 13\n"
    assert [line.time for line in Resume().feed(text)] == ["", "", ""]
