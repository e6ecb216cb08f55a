"""The lines of a pod's ranks: told apart, whole, all of them, and at a bounded cost."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob_agent import output
from ddpjob_agent.output import BAR_SECONDS, LINE_BYTES, PARTIAL_SECONDS, Lines, Output, pieces
from tests import agentpod
from tests.agentpod import Pod, Pods
from tests.unit.agent.scripts import script, start

PREFIX = b"[rank 5] "


@pytest.fixture
def lines() -> Lines:
    return Lines(5)


# ---- Lines


def fed(lines: Lines, parts: Sequence[bytes]) -> bytes:
    """The log after a rank has written these parts at one moment, and has ended."""
    text = b"".join(lines.take(part, 0.0) for part in parts)
    return text + (lines.show(0.0) if lines.rest else b"")


def test_a_line_that_is_not_ended_is_shown_soon_and_its_end_is_no_line(lines: Lines) -> None:
    assert lines.take(b"password: ", 7.0) == b"" and lines.due == 7.0 + PARTIAL_SECONDS
    assert lines.take(b"(hidden) ", 7.1) == b"" and lines.due == 7.0 + PARTIAL_SECONDS
    assert lines.show(lines.due) == b"[rank 5] password: (hidden) \n"
    assert lines.take(b"\nnext ", 9.0) == b""
    assert lines.show(10.0) == b"[rank 5] next \n"
    assert lines.take(b"done\n\n", 11.0) == b"[rank 5] done\n[rank 5] \n"


def test_the_ranks_of_a_pod_can_get_other_numbers(tmp_path: Path) -> None:
    copied = Output(str(tmp_path), range(4, 6))
    copied.begin_at(0)
    assert [each.take(b"x\n", 0.0) for each in copied.streams][:2] == [
        b"[rank 0] x\n",
        b"[rank 1] x\n",
    ]


def bar(step: int) -> bytes:
    """What tqdm writes."""
    return b"\r%3d%%|" % step + b"#" * (step // 5)


def test_a_progress_bar_is_shown_now_and_then_and_as_it_ends(lines: Lines) -> None:
    shown = []
    for step in range(101):
        now = step / 5
        text = lines.take(bar(step), now)
        if lines.due <= now:
            text += lines.show(now)
        shown.append((now, text))
    shown.append((20.1, lines.take(b"\n", 20.1)))
    seen = [(now, int(text.split()[2].partition(b"%")[0])) for now, text in shown if text]
    assert [step for _, step in seen] == [5, 30, 55, 80, 100]
    times = [now for now, _ in seen]
    assert times[0] == PARTIAL_SECONDS and times[-1] == 20.1
    assert all(b - a >= BAR_SECONDS for a, b in zip(times[:-2], times[1:-1], strict=True))


def test_a_bar_that_is_wiped_out_leaves_no_line(lines: Lines) -> None:
    lines.take(b"\r 10%|##" + b"\r          \r", 0.0)
    assert lines.show(1.0) == b""
    assert lines.take(b"trained\n", 2.0) == b"[rank 5] trained\n"


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"a\rb\n", b"b"),
        (b"a\r\n", b"a"),
        (b"50%\r60%\r", b"60%"),
    ],
)
def test_of_a_line_that_is_written_over_the_last_is_left(
    lines: Lines, written: bytes, seen: bytes
) -> None:
    assert fed(lines, [written]).splitlines()[0] == PREFIX + seen


TEXTS = st.lists(st.sampled_from([b"a", b"bc ", b"\n", b"\r", b"\r\n", b"\xff", b""]), max_size=30)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_lines_do_not_depend_on_the_pieces(parts: list[bytes]) -> None:
    *ended, rest = b"".join(parts).split(b"\n")
    expected = b"".join(PREFIX + output.seen(line) + b"\n" for line in ended)
    shown = output.seen(rest)
    if shown.strip() or (rest and b"\r" not in rest):
        expected += PREFIX + shown + b"\n"
    assert fed(Lines(5), parts) == expected


@pytest.mark.parametrize("part", [b"x", b"\r50%"])
def test_a_line_without_an_end_takes_bounded_memory(lines: Lines, part: bytes) -> None:
    data, longest = part * (60_000 // len(part)), 0
    for _ in range(50):
        longest = max(longest, *map(len, lines.take(data, 0.0).splitlines()), 0)
        assert len(lines.rest) <= LINE_BYTES
    assert longest <= len(PREFIX) + LINE_BYTES


def test_a_line_that_is_too_long_is_cut_into_lines_and_loses_nothing(lines: Lines) -> None:
    text = b"x" + "é".encode() * LINE_BYTES
    log = fed(lines, [text[:40_000], text[40_000:], b"\nnext\n"]).splitlines()
    assert all(line.startswith(PREFIX) for line in log) and log[-1] == PREFIX + b"next"
    parts = [line.removeprefix(PREFIX) for line in log[:-1]]
    assert b"".join(parts) == text and len(parts) == 3
    assert all(part.decode() for part in parts), "no character is torn"


@given(st.lists(st.integers(0, 9000), max_size=12))
@settings(deadline=None)
def test_what_is_written_at_once_is_whole_lines(lengths: list[int]) -> None:
    text = b"".join(b"x" * length + b"\n" for length in lengths)
    found = list(pieces(text))
    assert b"".join(found) == text
    for piece in found:
        assert piece.endswith(b"\n") and (len(piece) <= select.PIPE_BUF or piece.count(b"\n") == 1)


# ---- Pods of two ranks, without torch


RANKS = """
    def ranks(text, count=2):
        head = "import os, signal, subprocess, sys, time\\nrank = int(os.environ['LOCAL_RANK'])\\n"
        env = [dict(os.environ, LOCAL_RANK=str(rank)) for rank in range(count)]
        words = [sys.executable, "-u", "-c", head + text]
        return [subprocess.Popen(words, env=each) for each in env]
"""


def start_ranks(
    pods: Pods, text: str, then: str = "sys.exit(max(each.wait() for each in started))", **more: str
) -> Pod:
    """A pod whose two ranks run `text`; `then` is what their launcher does."""
    launcher = RANKS + f"    started = ranks({text!r})\n    {then}\n"
    words = ["command", "--", sys.executable, script(pods, launcher)]
    return pods.start(
        *words, nproc=2, rank=1, nnodes=2, changes={"MASTER_ADDR": "localhost", **more}
    )


def said(log: str, rank: int) -> list[str]:
    """The lines of a rank."""
    prefix = f"[rank {rank}] "
    lines = (line for line in log.splitlines() if line.startswith(prefix))
    return [line.removeprefix(prefix) for line in lines]


def test_lines_of_ranks_that_print_at_once_are_not_mixed(pods: Pods) -> None:
    text = "for n in range(3000):\n    to = (sys.stdout, sys.stderr)[n % 2]\n"
    pod = start_ranks(pods, text + "    print('step', n, 'loss', 0.5, file=to)")
    assert pod.wait() == 0
    for rank in (2, 3):
        assert said(pod.log, rank) == [f"step {n} loss 0.5" for n in range(3000)]
    assert pod.log.count("step") == 6000


def test_a_pod_with_one_rank_is_left_as_it_is(pods: Pods) -> None:
    text = "assert not {'DDPJOB_OUTPUT'} & {*os.environ}\nprint('plain', os.fstat(1).st_ino)"
    pod = start(pods, text)
    assert pod.wait() == 0 and pod.log.splitlines() == [f"plain {os.stat(pod.log_path).st_ino}"]
    assert not (pod.folder / "run/output").exists()


def test_what_a_killed_rank_has_written_is_there_before_the_agents_words(pods: Pods) -> None:
    text = "print('x' * 30000); print('last words', end=''); os.kill(os.getpid(), 9)"
    pod = start_ranks(pods, text, "sys.exit(3 + sum(each.wait() for each in started))")
    assert pod.wait() == 1
    for rank in (2, 3):
        assert said(pod.log, rank) == ["x" * 30000, "last words"]
    assert pod.log.splitlines()[-1].startswith("ddpjob-agent: ExitCode")


def test_nobody_who_keeps_a_pipe_open_keeps_the_pod(pods: Pods) -> None:
    text = """subprocess.Popen(["sleep", "1000"], start_new_session=True); print("done")"""
    pod = start_ranks(pods, text)
    assert pod.wait() == 0
    assert said(pod.log, 2) == said(pod.log, 3) == ["done"]


def test_files_and_pipes_of_the_script_stay_what_they_are(pods: Pods) -> None:
    text = (
        "helper = [sys.executable, '-c', 'import os; os.write(1, b\"own\")']\n"
        "assert subprocess.check_output(helper) == b'own'\n"
        "with open(f'file-{rank}', 'wb') as file:\n"
        "    subprocess.check_call(helper, stdout=file)\n"
        "print(sys.stdout.isatty(), os.stat('/dev/stdout').st_ino == os.fstat(1).st_ino)\n"
        "subprocess.check_call(helper, stdout=2)"
    )
    pod = start_ranks(pods, text)
    assert pod.wait() == 0, pod.log
    assert [(pod.folder / f"file-{rank}").read_bytes() for rank in (0, 1)] == [b"own"] * 2
    assert said(pod.log, 2) == said(pod.log, 3) == ["False True", "own"]


def test_without_pipes_ranks_write_as_they_did(pods: Pods) -> None:
    pod = start_ranks(pods, "print('plain')", DDPJOB_RUN_DIR="/proc/nowhere")
    assert pod.wait() == 0
    assert "ddpjob-agent: lines of ranks are not told apart: " in pod.log
    assert pod.log.count("plain") == 2 and "[rank" not in pod.log


# ---- The agent with pipes of our own


def start_apart(pods: Pods, text: str, stdout: int, stderr: int) -> Pod:
    """An agent with these streams, around two ranks that run `text`."""
    launcher = RANKS + f"    started = ranks({text!r})\n    for each in started: each.wait()\n"
    words = ["command", "--", sys.executable, script(pods, launcher)]
    return pods.start(*words, nproc=2, streams=(stdout, stderr))


def test_streams_stay_apart_where_the_pods_are_and_else_keep_their_order(pods: Pods) -> None:
    text = "for n in range(500): print('out', n); print('err', n, file=sys.stderr)"
    process = start_apart(pods, text, subprocess.PIPE, subprocess.PIPE).process
    out, err = process.communicate(timeout=agentpod.DEADLINE)
    for rank in (0, 1):
        assert said(out.decode(), rank) == [f"out {n}" for n in range(500)]
        assert said(err.decode(), rank) == [f"err {n}" for n in range(500)]
    process = start_apart(pods, text, subprocess.PIPE, subprocess.STDOUT).process
    out, _ = process.communicate(timeout=agentpod.DEADLINE)
    for rank in (0, 1):
        lines = [f"{name} {n}" for n in range(500) for name in ("out", "err")]
        assert said(out.decode(), rank) == lines


def test_a_terminal_stays_one(pods: Pods) -> None:
    ours, theirs = os.openpty()
    text = "os.write(1, b'%d\\n' % sys.stdout.isatty())"  # in one piece: nobody parts their lines
    process = start_apart(pods, text, theirs, theirs).process
    os.close(theirs)
    told = b""
    with contextlib.suppress(OSError):  # EIO: nobody has it open any more
        while data := os.read(ours, 1000):
            told += data
    os.close(ours)
    assert process.wait(agentpod.DEADLINE) == 0 and told.split() == [b"1", b"1"]


def test_a_log_that_nobody_takes_holds_the_ranks_up_and_not_the_agents_memory(pods: Pods) -> None:
    text = "os.write(1, b'up\\n'); data = (b'z' * 99 + b'\\n') * 600\n"
    text += "for _ in range(1000):\n    os.write(1, data)\n"
    read, written = os.pipe()
    process = start_apart(pods, text, written, written).process
    agent = psutil.Process(process.pid)
    os.close(written)
    try:
        told = b""
        while told.count(b"up") < 2:
            told += os.read(read, 100)
        before, deadline = agent.memory_info().rss, time.monotonic() + 2
        while time.monotonic() < deadline:
            assert agent.memory_info().rss - before < 15 * 2**20
            time.sleep(0.05)
        assert process.poll() is None, "its ranks wait"
        size = told.count(b"z")
        while data := os.read(read, 2**20):
            size += data.count(b"z")
        assert process.wait(agentpod.DEADLINE) == 0
        assert size == 2 * 1000 * 59_400
    finally:
        os.close(read)
        process.kill()
        process.wait()
