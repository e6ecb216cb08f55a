"""Hangs: the agent as a process around scripts that stand still; no torch."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.failures import stacks
from ddpjob_agent.failures.hangs import is_ending
from ddpjob_agent.failures.stacks import DEVICE, OWN, WAITS, Frame, Process
from tests.agentpod import Pod, Pods
from tests.unit.agent.scripts import start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files and /proc")


def hang(pods: Pods, text: str, *, limit: str = "1", grace_seconds: str = "60") -> tuple[int, Pod]:
    text = textwrap.dedent(text)
    pod = start(pods, text, DDPJOB_HANG_SECONDS=limit, DDPJOB_GRACE_SECONDS=grace_seconds)
    return pod.wait(), pod


# ---- The judgement


def test_a_script_that_stands_still_ends_with_its_stack(pods: Pods) -> None:
    code, pod = hang(
        pods,
        """
        import threading
        threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
        def load_batch():
            time.sleep(1000)
        report(step=7, total_steps=10, loss=0.5)
        load_batch()
        """,
    )
    summary = pod.summary
    assert (code, summary["reason"], summary["peer"]) == (76, "Hang", False)
    assert "no new step for 1 s after step 7; rank 0 (pid " in summary["message"]
    assert "waits for no other rank: it is in load_batch (" in summary["message"]
    assert (summary["rank"], summary["exit_code"], summary["progress"]["step"]) == (0, None, 7)
    assert "in load_batch" in summary["traceback"]
    assert pod.log.count("in load_batch") >= 2 and "in <lambda>" in pod.log, "every thread's"


def test_a_process_busy_in_c_answers(pods: Pods) -> None:
    code, pod = hang(pods, "def burn():\n    sum(range(10**12))\nreport(step=1)\nburn()")
    assert code == 76 and "it is in burn (" in pod.summary["message"]


def test_before_the_first_step_and_after_the_last_nothing_is_judged(pods: Pods) -> None:
    text = "time.sleep(2.5)\nreport(step=3, total_steps=3)\ntime.sleep(2.5)"
    code, pod = hang(pods, text)
    assert (code, pod.summary["reason"]) == (0, "Completed")


def test_during_the_grace_period_nothing_is_judged(pods: Pods) -> None:
    text = """
    def save(*_):
        time.sleep(2.5)
        sys.exit(75)
    signal.signal(signal.SIGTERM, save)
    report(step=1)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1000)
    """
    code, pod = hang(pods, text, grace_seconds="30")
    assert (code, pod.summary["reason"]) == (75, "Preempted")


def test_a_failure_that_is_on_its_way_is_no_hang(pods: Pods) -> None:
    """The end of another pod may break a rank's collective in the moment of the judgement."""
    text = """
    import atexit
    atexit.register(lambda: time.sleep(3))
    report(step=1)
    raise ValueError("boom")
    """
    code, pod = hang(pods, text)
    assert (code, pod.summary["reason"], pod.summary["exception"]) == (1, "Exception", "ValueError")


def test_a_rank_that_does_not_end_after_its_exception_hangs(pods: Pods) -> None:
    text = """
    import atexit
    def clean_up():
        time.sleep(1000)
    atexit.register(clean_up)
    report(step=1)
    raise ValueError("boom")
    """
    code, pod = hang(pods, text)
    assert (code, pod.summary["reason"]) == (76, "Hang") and "in clean_up" in pod.log


def test_ranks_that_wait_for_others_stay_until_these_are_judged(pods: Pods) -> None:
    folder = pods.root / "torch" / "distributed"
    folder.mkdir(parents=True)
    (folder / "fake.py").write_text("import time\ndef all_reduce():\n    time.sleep(1000)\n")
    text = f"sys.path.insert(0, {str(folder)!r})\nimport fake\nreport(step=1)\nfake.all_reduce()"
    pod = start(pods, text, DDPJOB_HANG_SECONDS="1")
    pod.until(lambda: "Hang: no new step" in pod.log)
    began = time.monotonic()
    time.sleep(1.0)
    ended = pod.process.poll() is not None
    assert not ended or time.monotonic() - began > 2, "it lingers, for longer than that"
    pod.terminate()
    assert pod.wait() == 76
    assert (pod.summary["reason"], pod.summary["message"].count("waits for other")) == ("Hang", 1)


# ---- Asking


def ask(pod: Pod) -> str:
    pod.until(lambda: "ready" in pod.log and pod.progress())
    return pod.get("/stacks")


def test_whoever_asks_sees_the_stacks_and_the_training_goes_on(pods: Pods) -> None:
    pod = start(
        pods,
        """
        signal.signal(signal.SIGUSR2, lambda *_: sys.exit(9))  # the script's own affair
        def train():
            while not os.path.exists("enough"):
                time.sleep(0.05)
        print("ready")
        train()
        """,
    )
    texts = [ask(pod), pod.get("/stacks")]  # soon enough for the same answer, or a new one
    time.sleep(1.1)
    texts.append(ask(pod))
    assert all(text.count("in train") == 1 for text in texts), "of this moment alone"
    assert "--- rank 0 (pid " in texts[0]
    (pid,) = map(int, re.findall(r"\(pid (\d+)\)", texts[0]))
    path = stacks.memory_file(pid)
    assert path and os.stat(path).st_size == os.stat(path).st_blocks == 0
    (pod.folder / "enough").touch()
    assert pod.wait() == 0


def test_a_file_of_the_script_is_not_emptied(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("checkpoint")
    assert stacks.read_from(str(mine), 0) == "" and mine.read_text() == "checkpoint"
    file = os.memfd_create("ddpjob-spare")
    os.write(file, b"x")
    assert stacks.read_from(f"/proc/self/fd/{file}", 0) == "" and os.fstat(file).st_size == 1
    os.close(file)


def test_forked_and_started_children_answer_for_themselves(pods: Pods) -> None:
    pod = start(
        pods,
        """
        def forked():
            print("ready", flush=True)
            time.sleep(1000)
        def waiting():
            os.waitpid(child, 0)
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1001)"])
        child = os.fork()
        forked() if child == 0 else waiting()
        """,
    )
    pod.until(lambda: ask(pod).count("Current thread") == 3)
    parts = [("in forked" in part, "in waiting" in part) for part in ask(pod).split("--- ")[1:]]
    assert sorted(parts) == [(False, False), (False, True), (True, False)]


def test_who_cannot_answer_is_not_asked(pods: Pods) -> None:
    """The signal ends a process that has no handler, and writes into whatever has the file's number
    where that was closed."""
    pod = start(
        pods,
        """
        is_asked = "iter(lambda: os.path.exists('asked'), True)"
        wait = f"import os, time; [time.sleep(0.05) for _ in {is_asked}]"
        isolated = subprocess.Popen([sys.executable, "-I", "-c", wait])
        shell = subprocess.Popen(["sh", "-c", "until [ -e asked ]; do sleep 0.05; done"])
        os.closerange(3, 64)
        mine = os.open("mine", os.O_CREAT | os.O_RDWR)
        print("ready", flush=True)
        codes = isolated.wait(), shell.wait()
        sys.exit(0 if codes == (0, 0) and not os.path.getsize("mine") else 3)
        """,
    )
    assert "no Python process" in ask(pod)
    (pod.folder / "asked").touch()
    assert pod.wait() == 0


def test_a_helper_that_failed_long_ago_does_not_put_a_hang_off(tmp_path: Path) -> None:
    now = 1000.0
    for at, pid, ends in [
        (now - 60, 2**22 + 1, False),
        (now - 1, 2**22 + 1, True),
        (now - 60, os.getpid(), True),
        (now - 60, None, False),
    ]:
        record = {"pid": pid, "time": at, "ended_at": at}
        assert is_ending(record, now) is ends, record


# ---- What a stack says


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("work.wait()", WAITS),
        ("dist.all_reduce(flag)", WAITS),
        ("total += loss.item()", DEVICE),
        ("data = file.read(size)", OWN),
        ("reduced = reduce_everything(data)", OWN),
    ],
)
def test_the_line_tells_what_a_rank_waits_for(tmp_path: Path, line: str, kind: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"# one\n{line}\n")
    assert stacks.classify(Frame(str(path), 2, "train")) == kind


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("/site-packages/torch/autograd/graph.py", "_engine_run_backward"),
        ("/site-packages/torch/nn/parallel/distributed.py", "_sync_buffers"),
    ],
)
def test_torchs_own_frames_tell_it_too(file: str, function: str) -> None:
    assert stacks.classify(Frame(file, 1, function)) == WAITS


STACKS = """\
Thread 0x00007f0e (most recent call first):
  File "/usr/lib/threading.py", line 5 in wait

Current thread 0x00007f0f (most recent call first):
  File "/app/a file, line 3 in x.py", line 12 in load
  File "/app/train.py", line 2 in <module>
"""


def test_the_main_threads_innermost_frame_is_found() -> None:
    assert stacks.innermost(STACKS) == Frame("/app/a file, line 3 in x.py", 12, "load")
    others = STACKS.replace("Current thread", "Thread")
    assert stacks.innermost(others) == Frame("/app/a file, line 3 in x.py", 12, "load")
    for garbled in ("", "Current thread", "Current thread 0x1:\n  <no Python frame>\n"):
        assert stacks.innermost(garbled) is None


def process(rank: int | None, file: str, *, trains: bool = True, **more: Any) -> Process:
    stacks = f'Current thread 0x1 (most recent call first):\n  File "{file}", line 1 in f\n'
    values = {"stacks": stacks if file else "", **more}
    return Process(100 + (rank or 0), rank, rank, "python train.py", trains, **values)


WAITING = "/x/torch/distributed/d.py"


@pytest.mark.parametrize(
    ("processes", "rank"),
    [
        ([process(0, WAITING), process(1, "/app/load.py")], 1),
        ([process(0, "/app/load.py"), process(1, ""), process(2, WAITING)], 1),
        ([process(3, WAITING), process(2, WAITING)], 2),
        ([process(None, "/app/a.py", trains=False)], None),
    ],
    ids=["elsewhere", "silent", "all-wait", "no-ranks"],
)
def test_the_rank_that_the_others_wait_for(processes: list[Process], rank: int | None) -> None:
    found = stacks.culprit(processes)
    assert found is not None and found.rank == rank
    assert stacks.culprit([]) is None


def in_collective(rank: int, function: str, line: int = 7) -> Process:
    frames = (
        f'Current thread 0x1 (most recent call first):\n  File "{WAITING}", line 1 in {function}\n'
        f'  File "/x/torch/nn/parallel/distributed.py", line 3 in forward\n'
        f'  File "/app/train.py", line {line} in main\n'
    )
    return process(rank, WAITING, stacks=frames)


@pytest.mark.parametrize(
    ("processes", "rank", "words"),
    [
        (
            [in_collective(0, "reduce"), in_collective(1, "barrier"), in_collective(2, "reduce")],
            1,
            "in barrier (/x/torch/distributed/d.py:1), called by main (/app/train.py:7); "
            "rank 0 (pid 100) in reduce (",
        ),
        (
            [in_collective(2, "reduce"), in_collective(1, "reduce", 9), in_collective(0, "reduce")],
            1,
            "called by main (/app/train.py:9); rank 2",
        ),
    ],
    ids=["another-collective", "another-line"],
)
def test_of_ranks_that_all_wait_the_one_elsewhere_is_named(
    processes: list[Process], rank: int, words: str
) -> None:
    found = stacks.culprit(processes)
    assert found is not None and found.rank == rank
    assert words in stacks.explain(found, processes)


def test_stacks_are_bounded() -> None:
    many = [process(rank, "/app/" + "x" * 4000) for rank in range(200)]
    assert len(stacks.show(many)) < stacks.SHOWN_BYTES + 100


def test_only_a_handled_signal_is_sent() -> None:
    assert not stacks.catches(os.getpid(), signal.SIGRTMAX - 3)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert stacks.catches(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not stacks.catches(2**22 + 1, signal.SIGUSR1), "no such process"
    began = time.monotonic()
    assert stacks.answers({}) == {}
    assert time.monotonic() - began < 1


# A process with a handler and a memory file, and a child that has both from it.
SHARING = """
import os, signal, sys
file = os.memfd_create(sys.argv[1])
os.dup2(file, 64)
os.close(file)
signal.signal(signal.SIGUSR1, lambda *_: None)
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
sys.stdin.read()
if child:
    os.waitpid(child, 0)
"""


def test_of_processes_with_one_memory_file_the_first_alone_is_asked() -> None:
    """The child may be about to become another program, which would die of the signal."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", SHARING, stacks.MEMORY_FILE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout
        parent, child = map(int, process.stdout.readline().split())
        assert stacks.memory_file(child) and stacks.catches(child, signal.SIGUSR1)
        found = stacks.able_of([os.getpid(), parent, child], signal.SIGUSR1)
        assert found == {parent: f"/proc/{parent}/fd/64"}
        assert stacks.able_of([child], signal.SIGUSR1) == {child: f"/proc/{child}/fd/64"}
        assert stacks.able_of([parent, child], signal.SIGUSR2) == {}
