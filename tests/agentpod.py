"""Pods without a cluster: the agent as a real process, its folder as a pod's volumes would be."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

import ddpjob_agent
from ddpjob import names
from ddpjob.controller.controller import load_agent
from ddpjob.pods.agent_zip import pack

SOURCES = Path(ddpjob_agent.__file__).parent
DEADLINE = 90.0  # s; nothing here takes more than a few on an idle machine
LINGER = 10.0  # s that may pass between the end of an agent and that of all it has started
PORT = 29499
TOKEN = "t0ken"


def archive_with(changes: Mapping[str, str]) -> bytes:
    """The agent with other constants, as its sources have them: a time that a test would wait for.

    There is no other way to set them, in a pod either.
    """
    sources = {
        path.relative_to(SOURCES).as_posix(): path.read_text() for path in SOURCES.rglob("*.py")
    }
    for old, new in changes.items():
        (path,) = (path for path, text in sources.items() if text.count(f"\n{old}\n") == 1)
        sources[path] = sources[path].replace(f"\n{old}\n", f"\n{new}\n")
    return pack(sources)


def without_rank(line: str) -> str:
    """A line of a log as its rank wrote it: the agent names the rank where a pod has several."""
    return re.sub(r"^\[rank [0-9]+\] ", "", line)


def _config_map(folder: Path, archive: bytes) -> None:
    """The agent as the kubelet lays it down: a link to `..data`, a link to a dated folder."""
    dated = folder / "..2027_01_15_08_00_00.1"
    dated.mkdir(parents=True)
    (dated / names.AGENT_ZIP).write_bytes(archive)
    (folder / "..data").symlink_to(dated.name)
    (folder / names.AGENT_ZIP).symlink_to(f"..data/{names.AGENT_ZIP}")


class Pod:
    """One agent, running or ended, and all that it leaves behind."""

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        python: str = sys.executable,
        archive: bytes | None = None,
        streams: tuple[int, int] | None = None,
        **environment: str,
    ) -> None:
        self.folder, self.address = folder, environment["DDPJOB_POD_IP"]
        _config_map(folder / "agent", archive or load_agent().archive)
        self.log_path, self.termination_log = folder / "log", folder / "termination-log"
        self.termination_log.touch()
        with self.log_path.open("wb") as log:
            stdout, stderr = streams or (log.fileno(), subprocess.STDOUT)
            self.process = subprocess.Popen(
                [python, "-u", str(folder / "agent/agent.pyz"), *arguments],
                env=environment,
                cwd=folder,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        """The lines of the log as processes wrote them, without the ranks before them."""
        return [without_rank(line) for line in self.log.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        content = self.termination_log.read_bytes()
        assert len(content) <= 4096
        summary: dict[str, Any] = json.loads(content)
        return summary

    def wait(self) -> int:
        return self.process.wait(DEADLINE)

    def processes(self) -> list[psutil.Process]:
        """All that live, whoever their parents are."""
        found = []
        for process in psutil.process_iter():
            try:
                is_of_it = process.environ().get("DDPJOB_POD_IP") == self.address
                if is_of_it and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def kill(self) -> None:
        """As the kernel ends a container: all of it, also what is being forked meanwhile."""
        self.process.kill()
        self.process.wait(DEADLINE)
        while left := self.processes():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def get(self, path: str, token: str = "", content: bytes | None = None) -> str:
        """What the agent answers; `content` is posted."""
        url = f"http://{self.address}:{PORT}{path}"
        request = urllib.request.Request(url, content)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=200) as answer:
            text: str = answer.read().decode()
            return text

    def progress(self) -> dict[str, Any]:
        """The page at /progress; empty while nothing listens."""
        with suppress(OSError):
            page: dict[str, Any] = json.loads(self.get("/progress"))
            return page
        return {}

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for `condition`; the log is the message where it never comes."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)


def environment(
    folder: Path, address: str, *, rank: int = 0, nnodes: int = 1, nproc: int = 1, port: int = 29500
) -> dict[str, str]:
    """What the operator sets, for a pod that lives in `folder`."""
    ours = ("DDPJOB_", "PET_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "PYTEST")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    inherited.pop("PYTHONPATH", None)
    return inherited | {
        "PET_NNODES": str(nnodes),
        "PET_NPROC_PER_NODE": str(nproc),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": "uid-0",
        "PET_MAX_RESTARTS": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(nnodes),
        **({"LOCAL_RANK": "0"} if nproc == 1 else {}),
        "DDPJOB_JOB": "digits",
        "DDPJOB_NAMESPACE": "default",
        "DDPJOB_ATTEMPT": "0",
        "DDPJOB_NODE_RANK": str(rank),
        "DDPJOB_NNODES": str(nnodes),
        "DDPJOB_NPROC_PER_NODE": str(nproc),
        "DDPJOB_WORLD_SIZE": str(nnodes * nproc),
        "DDPJOB_BACKEND": "gloo",
        "DDPJOB_PROGRESS_FILE": str(folder / "run/progress.json"),
        "DDPJOB_RUN_DIR": str(folder / "run"),
        "DDPJOB_POD_UID": f"uid-{address}",
        "DDPJOB_POD_IP": address,
        "DDPJOB_AGENT_PORT": str(PORT),
        "DDPJOB_TOKEN": TOKEN,
        "DDPJOB_GRACE_SECONDS": "60",
        "DDPJOB_TERMINATION_LOG": str(folder / "termination-log"),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder / "home"),
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }


def python_path() -> str:
    """A PATH on which `python` is the one that runs the tests."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


class Pods:
    """Starts pods, each with a loopback address of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[Pod] = []

    def address(self, number: int) -> str:
        """Of the pod that is, or will be, started as this one."""
        return f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250 + 1}.{number + 1}"

    def start(
        self,
        *arguments: str,
        rank: int = 0,
        nnodes: int = 1,
        nproc: int = 1,
        port: int = 29500,
        python: str = sys.executable,
        archive: bytes | None = None,
        streams: tuple[int, int] | None = None,
        changes: Mapping[str, str | None] = MappingProxyType({}),
    ) -> Pod:
        """Start an agent with these arguments; `changes` to its environment, None removes.

        `archive`: another agent than ours. `streams`: its standard output and error, in the place
        of the log.
        """
        number = len(self.started)
        folder, address = self.root / f"pod-{number}", self.address(number)
        values = environment(folder, address, rank=rank, nnodes=nnodes, nproc=nproc, port=port)
        values.update({name: value for name, value in changes.items() if value is not None})
        for name, value in changes.items():
            if value is None:
                values.pop(name, None)
        pod = Pod(folder, list(arguments), python, archive, streams, **values)
        self.started.append(pod)
        return pod


@contextmanager
def pods(root: Path) -> Iterator[Pods]:
    """Pods below `root`; at the end those that still run are killed.

    Of those that have ended by themselves nothing may be left, as nothing may be in a container.
    """
    group = Pods(root)
    left: list[str] = []
    try:
        yield group
    finally:
        for pod in group.started:
            if pod.process.poll() is not None:
                _, living = psutil.wait_procs(pod.processes(), timeout=LINGER)
                left += [f"{pod.folder}: {process}" for process in living]
            pod.kill()
            pod.process.wait(DEADLINE)
    assert not left, left
