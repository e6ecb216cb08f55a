"""Tells the lines of a pod's ranks apart: each begins with `[rank N] `, N the global rank.

Where a pod runs several ranks, each has pipes of its own, FIFOs in the run folder. The hooks put
them in the place of the pod's streams as the rank begins (sitecustomize.py), and a thread of the
agent copies them, line by line. It reads no faster than the log takes the lines: a rank that writes
more waits, as it would without the agent.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from typing import Collection, Iterator  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import Config, say

# As much as a pipe holds.
PIPE_BYTES = 64 * 1024
# Longer lines are cut; the memory of the agent depends on it.
LINE_BYTES = 32 * 1024
# What is written at once is not torn by other processes: PIPE_BUF.
WHOLE_BYTES = 4096
# A line that is not ended is shown as it is so long after it was begun.
PARTIAL_SECONDS = 1.0
# Between two looks at a line that is written over and over: a progress bar.
BAR_SECONDS = 5.0
# Between two reads, unless there is more than one of them takes: Python writes a line in pieces.
PAUSE_SECONDS = 0.001
# A pipe may have been made larger; then it takes several reads to empty it.
READS = 32


class Lines:
    """Makes lines for the log of what one rank writes, in whatever pieces it comes."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rest = b""  # of a line that is not ended
        self.due = math.inf  # monotonic: then the rest is shown as it is
        self.shown_at = -math.inf
        self.is_begun = False  # a part of this line is in the log

    def take(self, data: bytes, now: float) -> bytes:
        """The lines for the log that `data` ends."""
        text, end, self.rest = (self.rest + data).rpartition(b"\n")
        lines = text.split(b"\n") if end else []
        if end:
            if self.is_begun and not lines[0].strip(b"\r"):
                del lines[0]  # nothing but its end is new
            self.is_begun, self.due = False, math.inf
        if b"\r" in text:
            lines = [seen(line) for line in lines]
        is_bar = b"\r" in self.rest
        if is_bar:
            self.rest = kept(self.rest)
        while len(self.rest) > LINE_BYTES:
            lines.append(self.cut())
        if self.rest and self.due == math.inf:
            self.due = now + PARTIAL_SECONDS
        if self.rest and is_bar:
            self.due = max(self.due, self.shown_at + BAR_SECONDS)
        return self.joined(lines)

    def cut(self) -> bytes:
        """Take from the rest as much as a line may have, and no half character."""
        at = LINE_BYTES
        while at > LINE_BYTES - 4 and self.rest[at] & 0xC0 == 0x80:
            at -= 1
        line, self.rest = seen(self.rest[:at]), self.rest[at:]
        self.is_begun = True
        return line

    def show(self, now: float) -> bytes:
        """The line that is not ended, as it is."""
        text, is_bar = seen(self.rest), b"\r" in self.rest
        self.rest, self.due, self.shown_at, self.is_begun = b"", math.inf, now, True
        return self.joined([text] if text.strip() or not is_bar else [])

    def joined(self, lines: list[bytes]) -> bytes:
        """These lines as the log has them."""
        prefix = b"[rank %d] " % self.rank
        between = b"\n" + prefix
        return prefix + between.join(lines) + b"\n" if lines else b""


def seen(line: bytes) -> bytes:
    """What a terminal shows of a line that is written over after carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def kept(line: bytes) -> bytes:
    """The part of such a line, not ended yet, on which it depends what will be seen of it."""
    text = line.rstrip(b"\r")
    return text[max(0, text.rfind(b"\r")) :] + b"\r" * (len(text) < len(line))


class Stream(Lines):
    """What one rank writes to one of the pod's streams, from its FIFO."""

    def __init__(self, path: str, rank: int, number: int) -> None:
        """`number` is the descriptor of the pod's stream. Raises OSError."""
        super().__init__(rank)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # It is a writer, too: without one a FIFO is at its end, again and again.
        self.file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.number = number

    def read(self) -> bytes:
        """What there is, as much as one read takes."""
        try:
            return os.read(self.file, PIPE_BYTES)
        except BlockingIOError:
            return b""


class Output(threading.Thread):
    """Copies what the ranks write to the pod's streams."""

    def __init__(self, folder: str, ranks: Collection[int]) -> None:
        """Raises OSError. `ranks` are those of the pod, by their local ranks."""
        super().__init__(daemon=True, name="output")
        files = [os.fstat(number) for number in (1, 2)]
        # By these the hooks know the pod's streams, of which there may be but one.
        self.identity = [f"{file.st_dev}:{file.st_ino}" for file in files]
        os.makedirs(folder, mode=0o700, exist_ok=True)
        numbers = (1,) if self.identity[0] == self.identity[1] else (1, 2)
        # First all that is for standard output: an error comes after what led to it.
        self.streams = [
            Stream(os.path.join(folder, f"{local_rank}.{number}"), rank, number)
            for number in numbers
            for local_rank, rank in enumerate(ranks)
        ]
        self.nproc = len(ranks)
        self.wake, self.waker = os.pipe()
        self.is_drained = threading.Event()

    def begin_at(self, first: int) -> None:
        """Call the ranks by the numbers from `first` on."""
        for place, stream in enumerate(self.streams):
            stream.rank = first + place % self.nproc

    def run(self) -> None:
        """Copy for as long as the agent lives."""
        files = select.poll()
        for file in [self.wake, *(stream.file for stream in self.streams)]:
            files.register(file, select.POLLIN)
        while True:
            try:
                due = min(stream.due for stream in self.streams) - time.monotonic()
                ready = files.poll(None if due == math.inf else max(0.0, due * 1000))
                found = {file for file, _ in ready}
                if self.wake in found:
                    self.empty()
                elif not self.copy(found):
                    time.sleep(PAUSE_SECONDS)
            except Exception as problem:  # no rank may wait for ever for its pipe
                say(f"the output of the ranks: {problem!r}")
                time.sleep(1.0)

    def empty(self) -> None:
        """Copy all that there is, as `drain` asks."""
        os.read(self.wake, 1)
        everything = {stream.file for stream in self.streams}
        for _ in range(READS):
            if not self.copy(everything):
                break
        for stream in self.streams:
            if stream.rest:
                write(stream.number, stream.show(time.monotonic()))
        self.is_drained.set()

    def copy(self, ready: Collection[int]) -> bool:
        """Copy what these files have, and what is due; whether one of them may have more."""
        now, is_more = time.monotonic(), False
        texts: dict[int, list[bytes]] = {}
        for stream in self.streams:
            parts = texts.setdefault(stream.number, [])
            if stream.file in ready:
                data = stream.read()
                is_more = is_more or 2 * len(data) >= PIPE_BYTES
                parts.append(stream.take(data, now))
            if stream.due <= now:
                parts.append(stream.show(now))
        for number, parts in texts.items():
            write(number, b"".join(parts))
        return is_more

    def drain(self, seconds: float) -> None:
        """Wait until all that was written is in the log; for so long at most."""
        self.is_drained.clear()
        os.write(self.waker, b"\0")
        self.is_drained.wait(seconds)


def pieces(text: bytes) -> Iterator[bytes]:
    """Whole lines of `text`: as many as are written at once, and a longer one by itself."""
    begin = 0
    while begin < len(text):
        end = text.rfind(b"\n", begin, begin + WHOLE_BYTES) + 1 or text.find(b"\n", begin) + 1
        yield text[begin:end]
        begin = end


def write(number: int, text: bytes) -> None:
    """Write lines to a stream of the pod. Those that nobody takes are gone."""
    for piece in pieces(text):
        left = piece
        while left:
            try:
                left = left[os.write(number, left) :]
            except OSError:
                return


def make_output(config: Config) -> Output | None:
    """The output of this pod's ranks, which is copied from now on; None where it cannot be.

    The hooks find it by DDPJOB_OUTPUT. Without it the ranks write to the pod's streams. To a
    terminal they always do, as scripts write to one in other ways than to a pipe.
    """
    if os.isatty(1) or os.isatty(2):
        return None
    nproc = config.nproc_per_node
    first = config.node_rank * nproc
    try:
        output = Output(os.path.join(config.run_dir, "output"), range(first, first + nproc))
    except OSError as problem:
        say(f"lines of ranks are not told apart: {problem}")
        return None
    os.environ["DDPJOB_OUTPUT"] = ",".join(output.identity)
    output.start()
    return output
