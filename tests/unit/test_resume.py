"""A log whose stream is cut again and again: no line lost, none twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob.client import resume as module
from ddpjob.client.pieces import Piece, Splitter
from ddpjob.client.resume import Resume
from tests.kubeletlog import BILLION, Chunk, lines, render, stamped

START = 1_700_000_000 * BILLION
SIZE = 40  # of a piece, so that some lines have several


class Reader:
    """Whoever reads a log: takes each stream apart, and keeps what is new."""

    def __init__(self) -> None:
        self.resume, self.pieces = Resume(), list[Piece]()

    def read(self, stream: bytes, chunk: int = 7, *, ended: bool = False) -> None:
        splitter = Splitter(SIZE)
        self.resume.restart()
        found = [
            piece
            for at in range(0, len(stream), chunk)
            for piece in splitter.feed(stream[at : at + chunk])
        ]
        for piece in [*found, *(splitter.end() if ended else ())]:
            self.pieces += self.resume.take(piece)
        if ended:
            self.pieces += self.resume.settle()

    @property
    def lines(self) -> list[bytes]:
        found, begun = list[bytes](), b""
        for piece in self.pieces:
            begun = piece.text if piece.number == 0 else begun + piece.text
            if piece.is_last:
                found.append(begun)
        return found


STEPS = st.sampled_from(
    [0, 0, 1, 1000, 400_000_000, 999_999_999, BILLION, 3 * BILLION, 60 * BILLION, -1, -300_000_000]
)
Steps = st.SearchStrategy[int]
TEXTS = st.sampled_from([b"", b".", b"a", b"loss 1", b"x" * SIZE, b"y" * (SIZE + 1), b"z" * 95])


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
        text = name + draw(TEXTS) + name  # each piece of it is another one
        found.append(Chunk(time, text, ends))
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
    assert not reader.resume.gap


@settings(max_examples=400)
@given(logs(partial=False), st.data())
def test_the_last_lines_go_on_too(log: list[Chunk], data: st.DataObject) -> None:
    grown = data.draw(st.integers(1, len(log)))
    tail = data.draw(st.integers(1, grown))
    begin = grown - tail
    reader = Reader()
    first = render(log[:grown], tail=tail)
    reader.read(first[: data.draw(st.integers(first.index(b"\n") + 1, len(first)))])
    for _ in range(data.draw(st.integers(0, 4))):
        grown = data.draw(st.integers(grown, len(log)))
        stream = render(log[:grown], reader.resume.since)
        reader.read(stream[: data.draw(st.integers(0, len(stream)))])
    reader.read(render(log, reader.resume.since), ended=True)
    assert reader.lines == lines(log)[begin:]


@settings(max_examples=400)
@given(
    logs(partial=False, steps=st.sampled_from([1, 400_000_000, BILLION, 9 * BILLION])), st.data()
)
def test_after_a_rotation_all_comes_that_the_kubelet_still_has(
    log: list[Chunk], data: st.DataObject
) -> None:
    reader, grown, begin = Reader(), 0, 0
    delivered = set[bytes]()
    for last in [False] * data.draw(st.integers(0, 6)) + [True]:
        grown = len(log) if last else data.draw(st.integers(grown, len(log)))
        begin = data.draw(st.integers(begin, grown))
        stream = render(log[begin:grown], reader.resume.since)
        stream = stream if last else stream[: data.draw(st.integers(0, len(stream)))]
        delivered |= {line.partition(b" ")[2] for line in stream.split(b"\n")[:-1]}
        reader.read(stream, ended=last)
    order = {line: number for number, line in enumerate(lines(log))}
    numbers = [order[line] for line in reader.lines]
    assert numbers == sorted(set(numbers)), "each once, in order"
    assert set(reader.lines) == delivered


def test_equal_lines_of_one_time_are_all_read() -> None:
    log = [Chunk(START, b".")] * 5
    reader = Reader()
    reader.read(render(log[:3]))
    reader.read(render(log, reader.resume.since))
    assert reader.lines == [b"."] * 5
    reader.read(render([*log, Chunk(START, b"!")], reader.resume.since))
    assert reader.lines == [b"."] * 5 + [b"!"]


def test_the_rest_of_a_line_that_was_cut_in_two_is_no_line() -> None:
    times = [0, -1, 999, BILLION, 3 * BILLION, 3 * BILLION + 5]
    ends = [True, False, True, True, True, True]
    log = [
        Chunk(START + time, b"%d" % number, end)
        for number, (time, end) in enumerate(zip(times, ends, strict=True))
    ]
    reader = Reader()
    reader.read(render(log[:5]))
    assert reader.resume.since == START // BILLION + 3 - module.MARGIN
    reader.resume.since = START // BILLION  # in its second, the middle of a line is the first part
    reader.resume._taken = [key for key in reader.resume._taken if key[0] >= START // BILLION]
    again = render(log, reader.resume.since)
    assert again.split(b"\n")[1].endswith(b"Z 2")
    reader.read(again)
    assert reader.lines == [b"0", b"12", b"3", b"4", b"5"] and not reader.resume.gap


def test_equal_parts_of_a_long_line_are_told_apart() -> None:
    reader = Reader()
    stream = render([Chunk(START, b"x" * SIZE * 500)])
    reader.read(stream[:-30], 4096)
    reader.resume.restart()
    splitter = Splitter(SIZE)
    for piece in splitter.feed(stream[:-300]):
        reader.resume.take(piece)
        assert len(reader.resume._places) <= 1, "or each is compared with each"


def test_a_gap_is_told() -> None:
    log = [Chunk(START + number * BILLION, b"%d" % number) for number in range(20)]
    reader = Reader()
    reader.read(render(log[:10]))
    reader.read(render(log[15:], reader.resume.since), ended=True)
    assert reader.lines == [b"%d" % number for number in (*range(10), *range(15, 20))]
    assert reader.resume.gap


def test_a_clock_that_is_put_back_hides_no_line() -> None:
    times = [START, START + BILLION, START - 3600 * BILLION, START - 3599 * BILLION]
    log = [Chunk(time, b"%d" % number) for number, time in enumerate(times)]
    reader = Reader()
    for size in (3, 4):
        reader.read(render(log[:size], reader.resume.since))
    assert reader.lines == [b"0", b"1", b"2", b"3"]


def test_what_is_remembered_is_that_of_the_last_seconds() -> None:
    reader = Reader()
    log = [Chunk(START + number * BILLION // 10, b"%d" % number) for number in range(5000)]
    reader.read(render(log), 4096)
    assert len(reader.resume._taken) <= 10 * (module.MARGIN + 2)
    assert reader.resume.since == START // BILLION + 499 - module.MARGIN


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 1000)
    reader = Reader()
    reader.read(render([Chunk(START + 9, b"last")]))
    reader.read(render([Chunk(START, b"%03d" % number) for number in range(900)], None))
    assert reader.resume._size <= 2000 and len(reader.pieces) == 1


@pytest.mark.parametrize("zone", [b"Z", b"+02:00", b"-09:30"])
def test_a_kubelet_may_have_any_zone(zone: bytes) -> None:
    def told(second: int) -> bytes:
        return b"2026-11-24T20:00:%02d.5%s line %d\n" % (second, zone, second)

    reader = Reader()
    reader.read(told(1) + told(2))
    since = reader.resume.since
    reader.read(told(1) + told(2) + told(3))
    assert reader.lines == [b"line 1", b"line 2", b"line 3"]
    hours = {b"Z": 0, b"+02:00": -2, b"-09:30": 9.5}[zone]
    assert since == 1795550400 + hours * 3600 + 2 - module.MARGIN


def test_no_time_is_a_time_before_all_others() -> None:
    resume = Resume()
    for time in (b"", b"2026-13-01T00:00:00Z", b"garbage"):
        assert resume._clock.moment(time) == (0, b"")


# Splitter


@settings(max_examples=300)
@given(st.one_of(logs(), logs(unique=False)), st.integers(1, 60), st.integers(1, 300))
def test_pieces_are_the_same_however_the_stream_comes(
    log: list[Chunk], one: int, other: int
) -> None:
    def pieces(size: int) -> list[Piece]:
        splitter, text = Splitter(SIZE), render(log)
        found = [p for at in range(0, len(text), size) for p in splitter.feed(text[at : at + size])]
        return found + splitter.end()

    assert pieces(one) == pieces(other)
    assert all(len(piece.text) <= SIZE for piece in pieces(one))


def test_a_line_that_never_ends_is_not_kept() -> None:
    splitter = Splitter()
    pieces = splitter.feed(stamped(START) + b" ")
    for _ in range(300):
        pieces += [piece._replace(text=b"") for piece in splitter.feed(b"x" * 100_000)]
    assert len(splitter._buffer) <= module.MAX_HELD
    assert [piece.number for piece in pieces] == list(range(len(pieces))) and len(pieces) > 400


def test_the_kubelets_own_words_have_no_time() -> None:
    text = b'failed to watch file "/var/log/pods/x": no space left on device\nunable to\n'
    assert [(p.time, p.is_last) for p in Splitter().feed(text)] == [(b"", True)] * 2
