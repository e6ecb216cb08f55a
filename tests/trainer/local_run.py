"""`ddpjob run --local` as a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil


class LocalRun:
    """One run of the CLI, with these environment variables; its output goes to a file."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.log = folder / "output"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ddpjob", "run", "--local", *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def workers(self) -> list[psutil.Process]:
        """Training processes: not agents, not torchrun."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if process.cmdline()[1:4] == ["-u", "-m", "ddptrain.native"]:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def until(self, holds: Callable[[], object], seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output
            time.sleep(0.05)
