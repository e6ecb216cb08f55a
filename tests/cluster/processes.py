"""Processes and data folders of a test run, which end with it however it ends."""

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import psutil

from ddpjob_agent.config import PORTS
from tests.cluster.tiers import ROOT

FOLDER_PREFIX = "ddpjob-api-"
# In the environment of a program that works on a run's API server: the run's folder.
RUN = "DDPJOB_TEST_RUN"
MEMORY = Path("/dev/shm")
# Go's collector takes a quarter of an API server's processor time, unless it has room.
COLLECTS_SELDOM = {"GOGC": "400", "GOMEMLIMIT": "3GiB"}


class Guardian:
    """Runs a clean-up command when this process closes it or ends, by `kill -9` too.

    A shell waits for the end of its standard input, which only this process holds open.
    (PR_SET_PDEATHSIG would watch the thread that started a process, and is Linux alone.)
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", 'cat > /dev/null; exec "$@"', "guardian", *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C for the tests is not for the guardian
        )

    def close(self) -> None:
        """Run the clean-up now, and wait until it is through."""
        self._shell.communicate(timeout=600)


class Component:
    """One long-running program, its log, and its life."""

    def __init__(self, program: Path, arguments: Sequence[str], *, log: Path) -> None:
        self.name = program.name
        self.log = log
        self._command = [str(program), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id. Fails before the first start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it has been started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the program; its output is appended to the log."""
        assert not self.runs, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **COLLECTS_SELDOM},
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=200)

    def wait_until(self, ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Wait for `ready()`.

        Raises RuntimeError with the log's end if the program exits first or time is up.
        """
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            assert self._process is not None
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                what = (
                    f"is not ready after {timeout_seconds:.0f} s"
                    if code is None
                    else f"ended with {code}"
                )
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                raise RuntimeError(f"{self.name} {what}; the end of {self.log}:\n{tail}")
            time.sleep(0.05)


def run_folder() -> tuple[Path, Guardian]:
    """A new private folder, in memory where possible, and the guardian of all that uses it.

    Names carry our pid: folders of test runs that are no more are swept here first.
    """
    parent = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(FOLDER_PREFIX).split("-")[0])):
            sweep(folder)
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=parent))
    return folder, Guardian([sys.executable, "-m", "tests.cluster.processes", str(folder)])


def sweep(folder: Path) -> None:
    """End the processes started on this folder, and remove it.

    They are known by its path, in their arguments or in their variable RUN.
    """
    for process in psutil.process_iter(["cmdline", "environ"]):
        arguments, environ = process.info["cmdline"] or [], process.info["environ"] or {}
        is_ours = environ.get(RUN) == str(folder) or any(f"={folder}/" in one for one in arguments)
        if is_ours and process.pid != os.getpid():
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Different ports that nobody uses, below those of outgoing connections and of local runs.

    A port may be taken only some seconds later. So each process of a run has a range of its own,
    and gives each of it once before it gives one again. The next ports belong to the caller too,
    since each round of a pod takes another one.
    """
    return list(islice(filter(_is_free, _PORTS), count))


def _ports() -> Iterator[int]:
    first = 10_300 + 2_400 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4)
    ports = range(first, first + 2_400, PORTS + 1)
    return cycle(random.sample(ports, len(ports)))


_PORTS = _ports()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    sweep(Path(sys.argv[1]))
