"""Between the runner and a pod's main process, as a container's runtime is. A script of its own.

`python shim.py FOLDER COMMAND [ARGUMENT …]` with a pipe on standard input that nobody writes to:
- COMMAND has a temporary folder of its own in FOLDER, as a container has its own /tmp. It is
  deleted at the end, with all that torchrun and killed ranks have left there. If FOLDER is empty,
  there is none;
- COMMAND runs in a session of its own, without input; signals sent to the shim go to it alone;
- when it has ended, whatever it left running is killed, as the end of a container's first process
  would: torchrun's workers have sessions of their own, so no process group holds them all;
- when the pipe closes, by the runner's wish or its death, kill -9 included, all of it is killed;
- the shim ends as COMMAND did: with its exit code or by its signal, 128 if it cannot be started.

On Linux the shim adopts orphans, so nothing escapes while it lives, and COMMAND dies with it.
Elsewhere a process that has left COMMAND's process group and lost its parent can escape.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
CANNOT_START = 128
KILL_SECONDS = 5.0  # for processes that the kernel holds up; then they are left to init


def main(folder: str, argv: list[str]) -> None:
    """Run `argv` and end as it ends."""
    temporary = _make_temporary(folder) if folder else ""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = _start(argv)

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    status = _wait(child, wake_read)
    if temporary:
        import shutil  # 10 ms, which the start of a pod need not wait for

        shutil.rmtree(temporary, ignore_errors=True)
    _end_as(status)


def _make_temporary(folder: str) -> str:
    """Make a folder that nobody else can read, and let TMPDIR name it."""
    path = os.path.join(folder, f"ddpjob-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        os.write(2, f"ddpjob: cannot make the folder {path}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)
    os.environ["TMPDIR"] = path
    return path


def _start(argv: list[str]) -> int:
    shim, child = os.getpid(), os.fork()
    if child:
        return child
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(CANNOT_START)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # as Python found them
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"ddpjob: cannot start {argv[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_START)


def _wait(child: int, wake: int) -> int:
    """The child's wait status, once it and all it left behind have ended."""
    status = None
    while status is None:
        readable, _, _ = select.select([0, wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
        if 0 in readable and not os.read(0, 1):  # the runner let go, or is dead
            break
        status = _reap().get(child)
    return _kill_all(child, status)


def _kill_all(child: int, status: int | None) -> int:
    """Kill everything below this process; `status`, or the child's if it was still running."""
    for number in FORWARDED:  # the child's number is free for others, now or soon
        signal.signal(number, signal.SIG_IGN)
    deadline = time.monotonic() + KILL_SECONDS
    while status is None or time.monotonic() < deadline:
        ended = _reap()
        status = ended.get(child, status)
        left = _descendants()
        if not left and status is not None:
            break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return status


def _reap() -> dict[int, int]:
    """Wait statuses of the children, adopted ones too, that have ended."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _descendants() -> list[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _processes() -> list[tuple[int, int]]:
    """Every process and its parent."""
    if not os.path.isdir("/proc/self"):
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
        pairs = map(str.split, listing.stdout.splitlines())
        return [(int(pid), int(parent)) for pid, parent in pairs]
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()  # the name before may hold anything
            found.append((int(name), int(fields[1])))
    return found


def _end_as(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
