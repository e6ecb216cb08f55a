"""`ddpjob run --local` on the example, with real torchrun, from outside."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.cluster.tiers import ROOT
from tests.trainer.local_run import LocalRun

EXAMPLE = ROOT / "examples" / "digits-checkpoint.yaml"


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


@pytest.mark.deep
@pytest.mark.parametrize("launcher", ["torchrun", "python"])
def test_a_killed_rank_is_started_again_in_place(tmp_path: Path, job: Path, launcher: str) -> None:
    """The round and the attempt are those of the job's status."""
    in_place = f"  launcher: {launcher}\n  failurePolicy: {{restartStrategy: InPlace}}\n"
    text = job.read_text().replace('"120"', '"60"')
    job.write_text(text.replace("spec:\n", f"spec:\n{in_place}", 1))
    run = LocalRun(tmp_path, str(job))
    run.until(lambda: "saved " in run.output and len(run.workers()) == 2)
    victim = run.workers()[-1]
    victim.kill()
    assert run.process.wait(280) == 0, run.output
    (told,) = re.findall(r"^digits-checkpoint restarts.*", run.output, re.MULTILINE)
    assert re.search(r" in place, as round 1: rank \d, Signal: .*SIGKILL", told), run.output
    assert "restarts 1" in run.output and "restarts 2" not in run.output

    first, second = run.output.split("resuming from ")  # once, as rank 0 has printed it
    before, after = (
        list(map(int, re.findall(r"saved \S*/step-(\d+)", p))) for p in (first, second)
    )
    resumed = re.search(r"/step-(\d+)-attempt-0\.pt", second)
    assert resumed and before[-1] <= int(resumed[1]), "no more is lost than since the checkpoint"
    assert after[0] == int(resumed[1]) + 50
    assert f"step-{after[0]:08d}-attempt-0-round-1.pt" in run.output
    assert float(re.findall(r"test accuracy (0\.\d+) \(", run.output)[-1]) >= 0.97

    logs = sorted((tmp_path / ".ddpjob/digits-checkpoint/logs").iterdir())
    assert [log.name for log in logs] == [f"digits-checkpoint-0-{rank}.log" for rank in (0, 1)]
    for log in logs:
        assert log.read_text().count("round 1 of attempt 0 begins") == 1


@pytest.mark.deep
def test_an_interrupt_leaves_no_process_and_no_temporary_file(tmp_path: Path, job: Path) -> None:
    # A short path, because the names of sockets that torch opens in it have 107 characters at most.
    with TemporaryDirectory() as system:
        local = LocalRun(tmp_path, str(job), TMPDIR=system)
        local.until(lambda: len(local.workers()) == 2)
        family = psutil.Process(local.process.pid).children(recursive=True)
        assert list(Path(system).rglob("torchelastic_*"))
        local.process.send_signal(signal.SIGINT)
        assert local.process.wait(120) == 130
        _, alive = psutil.wait_procs(family, timeout=200)
        assert alive == []
        assert os.listdir(system) == []


@pytest.mark.deep
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
first = os.environ["DDPJOB_ROUND"] == "0"
assert ("DDPJOB_CHECKPOINT_DIR" in os.environ) == (os.environ["RANK"] == "0")
code = native.main(["--max-steps", "30" if first else "40"])
sys.exit(3 if first else code)
"""


@pytest.mark.deep
def test_a_checkpoint_that_rank_0_alone_mounts_is_handed_on(tmp_path: Path, job: Path) -> None:
    (tmp_path / "train.py").write_text(HANDED_ON)
    text = re.sub(r"  args: .*", "  args: [train.py]", job.read_text())
    job.write_text(text.replace("  checkpoint:\n", "  checkpoint:\n    mountOn: Rank0\n"))
    run = LocalRun(tmp_path, str(job))
    assert run.process.wait(timeout=280) == 0, run.output
    assert re.search(r"resuming from \S+/step-00000030-attempt-0.pt", run.output)
    assert "after 40 steps, world size 2" in run.output and "restarts 1" in run.output
