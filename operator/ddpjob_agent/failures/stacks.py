"""Python stacks of the processes in a pod, and which of them the others wait for.

Every Python process that ran our hooks answers a signal of its own: `faulthandler` writes the
stacks of its threads into a memory file (memfd) that the process holds, at once, whatever it is
doing in C. A process that does not answer is described by what /proc says of it.

Loaded when stacks are wanted. Linux only.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Iterable  # noqa: UP035 - Python 3.8

from ddpjob_agent.processes import is_alive, stat_words
from ddpjob_agent.records import read_text

# The same as in sitecustomize.py.
MEMORY_FILE = "ddpjob-stacks"
ANSWER_SECONDS = 4.0
LOOK_SECONDS = 0.05
# So much is read of one process; faulthandler stops after 100 threads of 100 frames.
STACK_BYTES = 64 * 1024
# So much is shown of all processes together.
SHOWN_BYTES = 256 * 1024
# The higher, the less likely the others wait for this process.
OWN, DEVICE, WAITS = 0, 1, 2


@dataclass(frozen=True)
class Frame:
    """The place of a thread."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        file = re.sub(r"\A.*/(site|dist)-packages/", "", self.file)
        return f"{self.function} ({file}:{self.line})"


@dataclass(frozen=True)
class Process:
    """One process of the pod, at one moment."""

    pid: int
    rank: int | None
    local_rank: int | None
    command: str
    trains: bool
    """It is a rank, and no helper of one."""
    stacks: str
    """The text that faulthandler wrote; empty where there was no answer."""
    threads: list[str] = field(default_factory=list)
    """Each thread's name, state and kernel function, of a process that does not answer."""

    @property
    def title(self) -> str:
        """`rank 1 (pid 42)`."""
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"

    @property
    def frame(self) -> Frame | None:
        """The place of the main thread."""
        return innermost(self.stacks)

    @property
    def place(self) -> str:
        """The main thread's place in words; in torch also the line of the script that called it."""
        found = frames(self.stacks)
        callers = [frame for frame in found if "/torch/" not in frame.file]
        called = f", called by {callers[0]}" if callers and callers[0] != found[0] else ""
        return f"{found[0]}{called}" if found else "no Python code"

    @property
    def kind(self) -> int:
        """OWN, DEVICE or WAITS."""
        return OWN if self.frame is None else classify(self.frame)

    def text(self) -> str:
        """All that is known, in lines."""
        lines = [f"--- {self.title}: {self.command}"]
        if self.stacks:
            lines.append(self.stacks.rstrip())
        else:
            lines += ["does not answer; by /proc:", *(f"  {thread}" for thread in self.threads)]
        return "\n".join(lines) + "\n"


def frames(stacks: str) -> list[Frame]:
    """The frames, innermost first, of the thread that was asked: the main one, as Linux prefers it.

    Where the signal came to no Python thread: of the last, which began the process.
    """
    blocks = re.split(r"^(?=Current thread |Thread )", stacks, flags=re.MULTILINE)
    found = [block for block in blocks if block.startswith(("Current thread ", "Thread "))]
    asked = [block for block in found if block.startswith("Current thread ")]
    for block in (asked or found)[-1:]:
        # A pod may write any number, and Python refuses to read one of 5000 digits.
        lines = re.findall(r'^  File "(.*)", line ([0-9]{1,9}) in (.*)$', block, re.MULTILINE)
        return [Frame(file, int(line), function) for file, line, function in lines]
    return []


def innermost(stacks: str) -> Frame | None:
    """The frame in which that thread is."""
    return next(iter(frames(stacks)), None)


COLLECTIVES = (
    r"\.wait\(|\b(all_reduce|all_gather\w*|all_to_all\w*|broadcast\w*|reduce|reduce_scatter\w*"
    r"|gather\w*|scatter\w*|(monitored_)?barrier|irecv|recv|send|isend)\("
)
READS_DEVICE = r"\.(item|cpu|tolist|numpy|synchronize)\(|\b(float|int)\("


def classify(frame: Frame) -> int:
    """Whether a thread in `frame` waits for other ranks, or perhaps for its device, or neither.

    In the backward pass DDP waits within C++, below `_engine_run_backward`. NCCL's collectives run
    on the GPU, so what is seen of them is the line that reads a result.
    """
    if "/torch/distributed/" in frame.file or frame.file.endswith(
        "torch/nn/parallel/distributed.py"
    ):
        return WAITS
    if frame.function == "_engine_run_backward" and "/torch/autograd/" in frame.file:
        return WAITS
    line = linecache.getline(frame.file, frame.line)
    if re.search(COLLECTIVES, line):
        return WAITS
    return DEVICE if re.search(READS_DEVICE, line) else OWN


def culprit(processes: list[Process]) -> Process | None:
    """The rank that the others most likely wait for.

    One that does not answer comes first, then one that is in no collective; of those that all wait
    one whose place it shares with the fewest; the lowest of these.
    """
    ranks = [process for process in processes if process.trains] or processes
    shared = Counter(process.place for process in ranks if process.kind == WAITS)

    def order(process: Process) -> tuple[int, bool, int, float]:
        rank = float("inf") if process.rank is None else process.rank
        return process.kind, bool(process.stacks), shared[process.place], rank

    return min(ranks, key=order, default=None)


def explain(process: Process, processes: list[Process]) -> str:
    """A few words on why `process` does not go on; and where the others wait, if not there."""
    if not process.stacks:
        stopped = "state T" in "".join(process.threads[:1])
        return f"{process.title} {'is stopped (SIGSTOP)' if stopped else 'does not answer'}"
    words = {
        OWN: "waits for no other rank: it is in",
        DEVICE: "waits for its device, in",
        WAITS: "waits for other ranks, in",
    }
    text = f"{process.title} {words[process.kind]} {process.frame or 'no Python code'}"
    if process.kind != WAITS:
        return text
    text = f"{process.title} {words[WAITS]} {process.place}"
    others = [p for p in processes if p.trains and p.kind == WAITS and p.place != process.place]
    return f"{text}; {others[0].title} in {others[0].place}" if others else text


def show(processes: list[Process]) -> str:
    """All stacks as text, at most SHOWN_BYTES long."""
    text = "".join(process.text() for process in processes) or "no Python process with our hooks\n"
    return text if len(text) <= SHOWN_BYTES else text[:SHOWN_BYTES] + "\n… cut here\n"


# ---- /proc


def descendants(root: int) -> list[int]:
    """Pids of all processes below `root`, oldest first."""
    parents: dict[int, int] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        words = stat_words(pid)
        if is_alive(words):
            parents[pid] = int(words[1])
    family = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            return sorted(family - {root})
        family |= more


def memory_file(pid: int) -> str | None:
    """Path of the file into which `pid` writes its stacks; None where it has none."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if is_ours(f"{folder}/{name}"):
                    return f"{folder}/{name}"
    return None


def is_ours(path: str) -> bool:
    """Whether an open file is one into which a process writes its stacks. Raises OSError."""
    return os.readlink(path).startswith(f"/memfd:{MEMORY_FILE} ")


def read_from(path: str, start: int) -> str:
    """The text in a memory file from there on; nothing of it is kept, or it would grow for ever.

    By now the path may lead to a file of the script, which stays as it is. Raises OSError.
    """
    file = os.open(path, os.O_RDWR)
    try:
        if not is_ours(f"/proc/self/fd/{file}"):
            return ""
        text = os.pread(file, STACK_BYTES, start)
        os.ftruncate(file, 0)
        return text.decode("utf-8", "replace")
    finally:
        os.close(file)


def catches(pid: int, signal_number: int) -> bool:
    """Whether `pid` has a handler for this signal, which would end it otherwise."""
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)$", read_text(f"/proc/{pid}/status"), re.MULTILINE)
    caught = int(match.group(1), 16) if match else 0
    return bool(caught >> (signal_number - 1) & 1)


def is_stopped(pid: int) -> bool:
    """Whether `pid` cannot answer before somebody lets it go on."""
    return stat_words(pid)[:1] in (["T"], ["t"])


def threads(pid: int) -> list[str]:
    """Name, state and kernel function of every thread, the main one first."""
    found = []
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for task in sorted(os.listdir(folder), key=int)[:100]:
            status = read_text(f"{folder}/{task}/status")
            state = re.search(r"^State:\s*(.*)$", status, re.MULTILINE)
            name = read_text(f"{folder}/{task}/comm").strip()
            place = read_text(f"{folder}/{task}/wchan").strip("0\n")
            text = f"{name}: state {state.group(1) if state else '?'}"
            found.append(text + (f", in {place}" if place else ""))
    return found


def ranks_of(pid: int) -> tuple[int | None, int | None]:
    """RANK and LOCAL_RANK that `pid` was started with; None without both."""
    pairs = dict(p.partition("=")[::2] for p in read_text(f"/proc/{pid}/environ").split("\0"))
    rank, local_rank = pairs.get("RANK", ""), pairs.get("LOCAL_RANK", "")
    if rank.isdigit() and local_rank.isdigit():
        return int(rank), int(local_rank)
    return None, None


def able_of(pids: Iterable[int], signal_number: int) -> dict[int, str]:
    """The processes that can answer, with their memory files; parents come before children.

    One that was started a moment ago, and is not the program yet that it is to be, has its parent's
    file, and would die of the signal: Python takes its handlers from it.
    """
    able: dict[int, str] = {}
    seen: set[tuple[int, int]] = set()
    for pid in pids:
        path = memory_file(pid)
        if not path or not catches(pid, signal_number):
            continue
        with contextlib.suppress(OSError):
            info = os.stat(path)
            if (info.st_dev, info.st_ino) not in seen:
                seen.add((info.st_dev, info.st_ino))
                able[pid] = path
    return able


def take(root: int, workers: set[int], signal_number: int) -> list[Process]:
    """The stacks of all processes below `root` that can answer, and of all `workers` (pids).

    Asks all at once and waits for ANSWER_SECONDS at most.
    """
    asked: dict[int, tuple[str, int]] = {}  # path and size before
    pids = descendants(root)
    able = able_of(pids, signal_number)
    for pid, path in able.items():
        if not is_stopped(pid):
            with contextlib.suppress(OSError):
                read_from(path, 0)  # the answer to an earlier question may have come too late
                asked[pid] = path, os.stat(path).st_size
                if catches(pid, signal_number):  # still: it may be another program by now
                    os.kill(pid, signal_number)
    texts = answers(asked)
    ranks = workers & set(pids)
    processes = []
    for pid in pids:
        if pid not in able and pid not in ranks:
            continue
        command = " ".join(read_text(f"/proc/{pid}/cmdline").split("\0")).strip()[:200]
        rank, local_rank = ranks_of(pid)
        text = texts.get(pid, "")
        rest = [] if text else threads(pid)
        processes.append(Process(pid, rank, local_rank, command, pid in ranks, text, rest))
    return processes


def answers(asked: dict[int, tuple[str, int]]) -> dict[int, str]:
    """The text that each process has written since it was asked, once it writes no more."""
    sizes = {pid: size for pid, (_, size) in asked.items()}
    texts: dict[int, str] = {}
    looks = round(ANSWER_SECONDS / LOOK_SECONDS)
    # Looks are counted, not seconds: what keeps this process from looking keeps those from writing.
    for look in range(looks + 1):
        if len(texts) == len(asked):
            break
        time.sleep(LOOK_SECONDS)
        for pid in asked.keys() - texts.keys():
            path, before = asked[pid]
            size = before
            with contextlib.suppress(OSError):
                size = os.stat(path).st_size
            if size > before and (size == sizes[pid] or look == looks):
                with contextlib.suppress(OSError):
                    texts[pid] = read_from(path, before)
            sizes[pid] = size
    return texts
