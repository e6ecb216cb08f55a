"""What the kernel says of the pod's processes, and how a launcher is started."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpjob_agent import processes, records
from ddpjob_agent.failures.verdict import refused
from ddpjob_agent.processes import Launcher


def write_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, **files: str
) -> None:
    """Cgroup files at `where` below the mount, which this process's /proc/self/cgroup names."""
    folder = tmp_path / where.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    monkeypatch.setattr(processes, "CGROUPS", str(tmp_path))
    read = records.read_text
    listed = "9:name=systemd:/\n5:memory:/kubepods/pod-1\n0::/kubepods/pod-1\n"
    monkeypatch.setattr(
        processes, "read_text", lambda path: listed if path == "/proc/self/cgroup" else read(path)
    )


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux'")
def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    """It looks like a zombie once the first one has, but keeps its memory, a GPU's too."""
    process = subprocess.Popen([sys.executable, "-c", HEADLESS])
    try:
        while processes.stat_words(process.pid)[0] != "Z":
            assert process.poll() is None
            time.sleep(0.01)
        assert process.poll() is None and process.pid in processes.children()
        processes.kill(process.pid, signal.SIGKILL)
        while processes.stat_words(process.pid)[17] != "1":
            time.sleep(0.01)
        assert process.pid not in processes.children(), "only its parent has not asked for it yet"
    finally:
        process.kill()
        process.wait()
    assert not processes.is_alive(processes.stat_words(process.pid))


V1 = {
    "memory_oom_control": "oom_kill_disable 0\noom_kill 2\n",
    "memory_limit_in_bytes": "536870912",
}
V2 = {"memory_events": "low 0\noom 1\noom_kill 2\noom_group_kill 0\n", "memory_max": "536870912\n"}


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("/memory", V1),
        ("/kubepods/pod-1", V2),
    ],
    ids=["v1-container", "v2"],
)
def test_the_kernels_count_of_kills_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, files: dict[str, str]
) -> None:
    write_cgroups(tmp_path, monkeypatch, where, **files)
    assert (processes.oom_kills(), processes.memory_limit()) == (2, 512 * 2**20)


def test_no_cgroup_and_no_limit_are_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cgroups(tmp_path, monkeypatch, "/")
    assert (processes.oom_kills(), processes.memory_limit()) == (0, None)
    write_cgroups(tmp_path, monkeypatch, "/", memory_max="max\n")
    assert processes.memory_limit() is None


# ---- The start of a launcher


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE])
def test_a_refusal_for_want_of_room_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", no_room)
    launcher = Launcher(60)
    launcher.start([sys.executable, "-c", ""], os.environ)
    assert os.strerror(number) in launcher.refusal
    verdict = refused(launcher.refusal, launcher.refusal_by or None)
    assert (verdict.reason, verdict.failure.message) == ("LaunchFailed", launcher.refusal)
    assert verdict.failure.exception == type(OSError(number, "")).__name__


def test_a_command_that_is_not_there_is_not(tmp_path: Path) -> None:
    launcher = Launcher(60)
    launcher.start([str(tmp_path / "none")], os.environ)
    assert "No such file" in launcher.refusal and launcher.refusal_by == ""
    assert refused(launcher.refusal).failure.exception is None
