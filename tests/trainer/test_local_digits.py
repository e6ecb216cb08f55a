"""`ddpjob run --local` on the example, with real torchrun, from outside."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.tiers import ROOT

pytestmark = pytest.mark.timeout(600)
EXAMPLE = ROOT / "examples" / "digits-checkpoint.yaml"


class LocalRun:
    """One run of the CLI; its output goes to a file."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder / "output"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ddpjob", "run", "--local", *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
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


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The example, shortened: a run of some seconds."""
    text = EXAMPLE.read_text().replace('"300"', '"120"').replace('"200"', '"50"')
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def local(tmp_path: Path, job: Path) -> Iterator[LocalRun]:
    run = LocalRun(tmp_path, str(job))
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.wait()


def test_a_killed_rank_costs_one_restart_and_no_progress(local: LocalRun) -> None:
    local.until(lambda: "saved " in local.output and len(local.workers()) == 2)
    local.workers()[-1].kill()
    assert local.process.wait(280) == 0, local.output
    assert "restarts 1" in local.output and "restarts 2" not in local.output
    resumed = re.search(r"resuming from \S*step-(\d+)", local.output)
    assert resumed and int(resumed[1]) > 0
    assert float(re.findall(r"test accuracy (0\.\d+) \(", local.output)[-1]) >= 0.97


def test_an_interrupt_leaves_no_process(local: LocalRun) -> None:
    local.until(lambda: len(local.workers()) == 2)
    family = psutil.Process(local.process.pid).children(recursive=True)
    local.process.send_signal(signal.SIGINT)
    assert local.process.wait(120) == 130
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


@pytest.mark.parametrize(
    ("start", "module"),
    [
        ("launcher: python", "ddptrain.native"),
        ("launcher: accelerate", "ddptrain.accelerated"),
        ("command: [python3, -m, torch.distributed.launch]", "ddptrain.native"),
    ],
    ids=["python", "accelerate", "torch.distributed.launch"],
)
def test_every_launcher_works_without_a_cluster(tmp_path: Path, start: str, module: str) -> None:
    text = (ROOT / "examples" / "digits.yaml").read_text()
    text = text.replace("ddptrain.native", module).replace('"20"', '"2"')
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("nnodes: 2", f"nnodes: 2\n  {start}"))
    run = LocalRun(tmp_path, str(path))
    assert run.process.wait(timeout=280) == 0, run.output
    assert "after 46 steps, world size 2" in run.output


HANDED_ON = """\
import os, sys
from ddptrain import native
first = os.environ["DDPJOB_ATTEMPT"] == "0"
assert ("DDPJOB_CHECKPOINT_DIR" in os.environ) == (os.environ["RANK"] == "0")
code = native.main(["--max-steps", "30" if first else "40"])
sys.exit(3 if first else code)
"""


def test_a_checkpoint_that_rank_0_alone_mounts_is_handed_on(tmp_path: Path, job: Path) -> None:
    (tmp_path / "train.py").write_text(HANDED_ON)
    text = re.sub(r"  args: .*", "  args: [train.py]", job.read_text())
    job.write_text(text.replace("  checkpoint:\n", "  checkpoint:\n    mountOn: Rank0\n"))
    run = LocalRun(tmp_path, str(job))
    assert run.process.wait(timeout=280) == 0, run.output
    assert re.search(r"resuming from \S+/step-00000030-attempt-0.pt", run.output)
    assert "after 40 steps, world size 2" in run.output and "restarts 1" in run.output
