"""A launcher for `test_warm.py`: lies in a pod as `accelerate/commands/launch.py`, and runs cases.

By that name the agent takes it for a launcher, so its `subprocess.Popen` asks the fork server, as
torchrun's does: one import of torch is enough for all cases. It reads cases.json and writes
results.json, both in the folder that it was started in.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

AT_ONCE = 2
CASE_SECONDS = 60.0
# The class that makes a process by fork and exec, under whatever has taken its place.
ORIGINAL: Any = subprocess.Popen.__mro__[-2]
COLD: list[int] = []


def count_cold_starts() -> None:
    """Note the pid of each process that the fork server has not made."""
    execute = ORIGINAL._execute_child

    def _execute_child(self: Any, *args: Any) -> None:
        execute(self, *args)
        COLD.append(self.pid)

    ORIGINAL._execute_child = _execute_child


class Run:
    """One case, from its start on."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.name: str = case["name"]
        self.folder = Path.cwd() / "cases" / self.name
        (self.folder / "run").mkdir(exist_ok=True)
        env = {**os.environ, "DDPJOB_RUN_DIR": str(self.folder / "run"), "LOCAL_RANK": "0"}
        env["DDPJOB_WARM_START"] = "1"  # the one thing in which the pods differ
        env.update(
            {
                name: text.replace("@PYTHONPATH", env["PYTHONPATH"])
                for name, text in case["env"].items()
            }
        )
        command = [sys.executable, *case["options"], *case["words"]]
        self.since = time.monotonic()
        with (
            (self.folder / "output").open("wb") as output,
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd=self.folder / case["cwd"],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.said = said.getvalue()

    def is_over(self) -> bool:
        """Whether it has ended; it may not take for ever."""
        if time.monotonic() - self.since > CASE_SECONDS:
            self.process.kill()
        return self.process.poll() is not None

    def result(self) -> dict[str, Any]:
        """What is compared, and how it started."""
        return {
            "pid": self.process.pid,
            "code": self.process.returncode,
            "is_cold": self.process.pid in COLD,
            "said": self.said,
            "seconds": time.monotonic() - self.since,
        }


def main() -> None:
    """Run all cases, some side by side."""
    count_cold_starts()
    cases = json.loads(Path("cases.json").read_text())
    running: list[Run] = []
    results = {}
    while cases or running:
        if cases and len(running) < AT_ONCE:
            running.append(Run(cases.pop(0)))
        for run in [run for run in running if run.is_over()]:
            results[run.name] = run.result()
            running.remove(run)
        time.sleep(0.002)
    Path("results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
