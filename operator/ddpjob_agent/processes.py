"""The launcher and all other processes of the pod, and what the kernel says of them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Collection, Mapping, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import say
from ddpjob_agent.records import read_text
from ddpjob_agent.requests import is_child, receive, request, send

if TYPE_CHECKING:
    ServerCommand = tuple[list[str], Mapping[str, str]]
    """A fork server's command, to which its descriptor is added, and its environment."""


# So much of the grace period is kept to write the termination message.
LAST_SECONDS = 3.0
# A killed process may take so long to give its memory back, on a GPU above all: before another
# round, and at the end, where the kernel goes on without us.
NEXT_SECONDS, END_SECONDS = 20.0, 2.0
LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Why nothing can be started at this moment, or on this node. Another try may go well.
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE)
# Stands in a command for the number of the descriptor at which a fork server is asked.
DESCRIPTOR = "server"


def stat_words(pid: object) -> list[str]:
    """What /proc has of a process after its name: state, parent, …; nothing where it is gone."""
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def is_alive(words: Sequence[str]) -> bool:
    """Whether a process with these `stat_words` has a thread left.

    One whose first thread has ended before the others looks like a zombie. It has its memory and
    its files until the last thread ends, and a GPU takes its time with both.
    """
    return len(words) > 17 and (words[0] not in "ZX" or int(words[17]) > 1)


def prctl(option: int, value: int) -> bool:
    """Linux' prctl; False where it is refused, and elsewhere."""
    return LIBC is not None and LIBC.prctl(option, value, 0, 0, 0) == 0


def children() -> list[int]:
    """Pids of this process's living children, adopted orphans included; on Linux alone."""
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc") if LIBC is not None else []):
        words = stat_words(pid)
        if words[1:2] == [str(os.getpid())] and is_alive(words):
            found.append(int(pid))
    return found


def kill(pid: int, signal_number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


def end_with(parent: int) -> None:
    """Let the kernel end this process, which `parent` has just started, when that has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # its handlers are in the way until `exec`
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # before the kernel knew
        os._exit(1)


def popen(
    command: list[str], env: Mapping[str, str], pass_fds: Collection[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which ends with this one. Raises OSError.

    Local mode leaves no orphans even where the agent is killed.
    """
    ours = os.getpid()
    process = subprocess.Popen(
        command,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: end_with(ours),
        pass_fds=pass_fds,
    )
    process.returncode = 0  # `reap` collects it: its destructor must not try
    return process


class Launcher:
    """The process that the agent starts, what it leaves behind, and the signals that go to it.

    One after the other, where rounds follow each other.
    """

    def __init__(self, grace_seconds: int, *, keeps_server: bool = False) -> None:
        """`keeps_server`: the fork server stays for the next launcher."""
        self.grace_seconds, self.keeps_server = grace_seconds, keeps_server
        # Unix seconds of the first SIGTERM, and the monotonic end of the grace period.
        self.terminated_at: float | None = None
        self.deadline = math.inf
        self.on_stop: Callable[[], None] = lambda: None
        self.wake = self.waker = 0
        # The fork server, which is asked for the launcher once it is ready.
        self.server: socket.socket | None = None
        self.killing = threading.Lock()  # while another thread kills all processes, none begins
        self.server_pid = 0
        self.is_ready = False
        self.forget()

    def forget(self) -> None:
        """Forget the launcher that has ended."""
        self.pid = 0
        # Its exit code, or minus the signal; None while it lives.
        self.code: int | None = None
        self.orphan_codes: set[int] = set()
        self.told: set[int] = set()
        self.oom_kills = oom_kills()  # before our time; in a pod there are none at first
        self.command: list[str] = []
        self.env: Mapping[str, str] = {}
        self.brings_server = False
        self.is_asked = False
        # Codes of children that ended while the launcher's pid was not known.
        self.early: dict[int, int] = {}
        # Why no launcher could be started.
        self.refusal, self.refusal_by = "", ""

    def catch_signals(self) -> None:
        """Handle signals from now on; each one ends `pause`."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come to us even where we are not PID 1
        self.wake, self.waker = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.waker, False)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for forwarded in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(forwarded, self.forward)

    def wake_up(self) -> None:
        """End `pause`, from another thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.waker, b"\0")

    def forward(self, signal_number: int, frame: Any) -> None:
        """Pass a signal on to the launcher; the first one begins the grace period.

        It imports nothing: the module may be half imported in this moment.
        """
        if self.terminated_at is None:
            self.terminated_at = time.time()
            self.deadline = time.monotonic() + max(1.0, self.grace_seconds - LAST_SECONDS)
            self.on_stop()
        if self.pid and self.code is None:
            kill(self.pid, signal_number)

    def start(
        self,
        command: list[str],
        env: Mapping[str, str],
        server: ServerCommand | None = None,
        *,
        brings_server: bool = False,
    ) -> None:
        """Start it in a session of its own: by a fork server, once that is there, or at once.

        `brings_server`: it makes a fork server itself, of which the next one is asked.
        """
        self.forget()
        self.command, self.env, self.brings_server = command, env, brings_server
        if self.is_ready:
            self.ask()
        elif self.server is None and not (server and self.start_server(*server)):
            self.start_cold()

    def start_server(self, command: list[str], env: Mapping[str, str]) -> bool:
        """Start a fork server; False where it cannot be started."""
        try:
            with self.killing:
                self.server_pid = self.popen_beside([*command, DESCRIPTOR], env)
        except OSError:
            return False
        return True

    def popen_beside(self, command: list[str], env: Mapping[str, str]) -> int:
        """Start a process that is, or makes, a fork server; its pid. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            number, at = theirs.fileno(), command.index(DESCRIPTOR)
            pid = popen([*command[:at], str(number), *command[at + 1 :]], env, [number]).pid
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.server = ours
        return pid

    def start_cold(self, why: str = "") -> None:
        """Start it as a process that has everything before it."""
        if why:
            say(f"cold start: {why}")
        self.close_server()
        try:
            if self.brings_server:
                self.started(self.popen_beside(self.command, self.env))
            else:
                self.started(popen(self.command, self.env).pid)
        except OSError as problem:
            self.refusal = f"cannot start {self.command[0]!r}: {problem}"
            self.refusal_by = type(problem).__name__ if problem.errno in PASSING else ""

    def close_server(self) -> None:
        """Let the fork server end, if there is one."""
        if self.server is not None:
            self.server.close()
        self.server, self.server_pid, self.is_ready = None, 0, False

    def started(self, pid: int) -> None:
        """Know its pid."""
        if not self.keeps_server:
            self.close_server()
        self.pid = pid
        self.code = self.early.get(pid)
        if self.terminated_at is not None:
            kill(pid, signal.SIGTERM)

    def hear(self, server: socket.socket) -> None:
        """Take what the fork server says: who it is, that it can or cannot serve, or the pid."""
        try:
            answer = receive(server)[0]
        except (EOFError, OSError):
            answer = {"cold": "the fork server has ended"}
        if "server" in answer:
            self.server_pid = answer["server"]
        elif "ready" in answer:
            self.is_ready = True
            if self.pid == 0 and self.command:
                self.ask()
        elif "pid" in answer and (answer["pid"] in self.early or is_child(answer["pid"])):
            self.started(answer["pid"])
        elif self.pid == 0 and self.command:
            self.start_cold(answer.get("cold", "its process went to another parent"))
        else:
            self.close_server()

    def ask(self) -> None:
        """Ask the fork server for it."""
        assert self.server is not None
        try:
            wish = request(self.command, self.env, os.getcwd(), new_session=True)
            send(self.server, wish, (0, 1, 2))
            self.is_asked = True
        except OSError as problem:  # it has ended, or the script has removed the working folder
            self.start_cold(f"the fork server cannot be asked: {problem}")

    def pause(self, seconds: float) -> None:
        """Wait for a signal, for so long at most; then collect every child that has ended."""
        server, files = self.server, select.poll()  # select knows no number above 1023
        for file in [self.wake] if server is None else [self.wake, server.fileno()]:
            files.register(file, select.POLLIN)
        ready = dict(files.poll(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        if server is not None and server.fileno() in ready:
            self.hear(server)
        if self.pid == 0 and self.terminated_at is not None and not self.is_asked:
            self.code = -signal.SIGTERM  # as if it had been there already
        self.reap()

    def reap(self) -> None:
        """Collect every child that has ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                signalled = os.WIFSIGNALED(status)
                code = -os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status)
                if pid == self.pid:
                    self.code = code
                elif pid != self.server_pid:
                    self.orphan_codes.add(code)
                    if self.pid == 0:
                        self.early[pid] = code

    def rest(self) -> list[int]:
        """Pids of what the launcher has left behind."""
        return [pid for pid in children() if pid != self.server_pid]

    def stop_orphans(self) -> None:
        """Ask what an ended launcher left behind to end: it did not pass the signal on."""
        for pid in set(self.rest()) - self.told:
            self.told.add(pid)
            kill(pid, signal.SIGTERM)

    def stop(self, seconds: float) -> None:
        """Ask the launcher and what it left behind to end, and wait for so long at most."""
        until, asked = time.monotonic() + seconds, 0
        while time.monotonic() < until and (self.is_awaited or self.rest()):
            if not self.is_awaited:
                self.stop_orphans()
            elif self.pid != asked:  # it may be on its way at first
                asked = self.pid
                kill(asked, signal.SIGTERM)
            self.pause(0.05)

    @property
    def is_awaited(self) -> bool:
        """Whether the launcher lives, or is on its way."""
        return self.code is None and (self.pid > 0 or self.is_asked)

    def kill_now(self) -> None:
        """Kill all other processes, from another thread; `pause` collects them."""
        until = time.monotonic() + END_SECONDS
        with self.killing:
            while time.monotonic() < until:
                rest = children()
                if not rest:
                    break
                for pid in rest:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
        self.wake_up()

    def kill_rest(self, *, spares_server: bool = False) -> bool:
        """Kill all that is left; whether nothing is.

        Nothing outlives the agent, here as in a pod, where the kernel sees to it.
        """
        if self.is_awaited and not self.pid:
            self.close_server()  # what it was asked for begins only once we have read its answer
        until = time.monotonic() + (NEXT_SECONDS if spares_server else END_SECONDS)
        while True:  # the children of a killed child come to us
            rest = self.rest() if spares_server else children()
            if self.pid and self.code is None:
                rest.append(self.pid)
            if not rest:
                return True
            if time.monotonic() > until:
                return False
            for pid in rest:
                kill(pid, signal.SIGKILL)
            time.sleep(0.005)
            self.reap()


CGROUPS = "/sys/fs/cgroup"


def memory_cgroup(v1: str, v2: str) -> str:
    """The text of a file of this process's memory cgroup, which has two names."""
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = (f"{CGROUPS}/memory", v1) if controllers else (CGROUPS, v2)
        for folder in (mount + path, mount):  # in a container the path may be the host's
            text = read_text(f"{folder.rstrip('/')}/{name}")
            if text:
                return text
    return ""


def oom_kills() -> int:
    """The number of processes of this cgroup that the kernel has killed for want of memory."""
    match = re.search(
        r"^oom_kill (\d+)$", memory_cgroup("memory.oom_control", "memory.events"), re.M
    )
    return int(match.group(1)) if match else 0


def memory_limit() -> int | None:
    """The cgroup's limit in bytes; None without one."""
    text = memory_cgroup("memory.limit_in_bytes", "memory.max").strip()
    return int(text) if text.isdigit() and int(text) < 2**60 else None
