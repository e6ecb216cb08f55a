"""`launch` on this machine: real processes, with the operator's own controller."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpjob import DDPJobError, InvalidJob, JobFailed, JobTimeout, Refused, Run, launch
from tests.cells import Notebook

# torch takes longer to import than all the rest takes.
COLD = {"launcher": "python", "warmStart": {"enabled": False}}
PLAIN: dict[str, Any] = {"on": "local", "spec": COLD}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which everything happens. No process may be left afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    yield tmp_path
    deadline = time.monotonic() + 200
    while left := [p for p in psutil.process_iter(["cmdline"]) if _is_of(p, tmp_path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    return any(str(folder) in word for word in process.info["cmdline"] or ())


def no_files_of_runs(folder: Path) -> bool:
    return not list((folder / ".ddpjob").glob(".files-*"))


TRAIN = """
import os, time
STEPS = 2

def train(lr, *, mark):
    from helper import FACTOR
    rank = int(os.environ["RANK"])
    print(f"rank {rank} in {os.getcwd()}")
    if rank == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        raise ValueError("not yet")
    while os.environ["DDPJOB_ATTEMPT"] == os.environ["DDPJOB_ROUND"] == "0":
        time.sleep(0.05)  # until it is stopped: who has ended does not restart in place
    time.sleep(0.5 if rank == 1 else 0)
    return {"lr": lr * FACTOR, "steps": STEPS}
"""


def test_a_notebooks_function_runs_in_every_rank_with_restarts_and_returns(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "helper.py").write_text("FACTOR = 10\n")
    train = Notebook()(TRAIN)["train"]
    run = launch(train, 0.5, mark=str(folder / "mark"), nnodes=2, **PLAIN)
    assert isinstance(run, Run) and (run.state, run.body["status"]["restarts"]) == ("Succeeded", 1)
    assert run.result() == {"lr": 5.0, "steps": 2}
    printed = capfd.readouterr()
    assert f"r0 | rank 0 in {folder}" in printed.out and "rank 1 in" not in printed.out
    assert f"{run.name}  Succeeded  nodes 2/2" in printed.err
    assert f"rank 1 in {folder}" in [line.text for line in run.logs(rank=1)]
    with pytest.raises(InvalidJob, match="are those of one rank of the trainer"):
        next(run.logs(container="fetch"))
    assert run.name.startswith("train-") and no_files_of_runs(folder)


def test_a_function_that_fails_is_named_with_its_exception(folder: Path) -> None:
    train = Notebook()("def train():\n    raise KeyError('no such digit')\n")["train"]
    spec = {**COLD, "failurePolicy": {"maxRestarts": 0}}
    with pytest.raises(JobFailed, match="no such digit") as failed:
        launch(train, on="local", spec=spec, stream=False)
    assert (failed.value.rank, failed.value.exception) == (0, "KeyError")
    assert isinstance(failed.value.job, Run)
    with pytest.raises(JobFailed):
        failed.value.job.result()


def test_it_runs_on_after_a_timeout_until_it_is_deleted(folder: Path) -> None:
    wait = Notebook()(
        "import time\ndef wait():\n    print('up', flush=True)\n    time.sleep(600)\n"
    )
    run = launch(wait["wait"], wait=False, **PLAIN)
    with pytest.raises(JobTimeout) as late:
        run.result(timeout=0.1)
    assert late.value.job is run
    lines = run.logs(follow=True)
    while next(lines).text != "up":
        pass
    with pytest.raises(JobTimeout, match="is Running after 0.2 s, not finished"):
        run.follow(timeout=0.2)
    for verb in (run.suspend, run.events, run.rerun):
        with pytest.raises(Refused, match="this machine"):
            verb()
    run.delete()
    with pytest.raises(DDPJobError, match="was ended"):
        run.wait()
    assert list(lines)[-1].text and no_files_of_runs(folder)


def test_scripts_and_modules_run_with_their_folder(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "lib.py").write_text("X = 7\n")
    script = "import json, os, sys\nfrom lib import X\n"
    script += "json.dump([X, *sys.argv[1:]], open(os.environ['DDPJOB_RESULT_FILE'], 'w'))\n"
    (folder / "pkg/train.py").write_text(script)
    assert launch("pkg/train.py", "--lr", 0.5, **PLAIN).result() == [7, "--lr", "0.5"]
    assert launch(folder / "pkg/train.py", **PLAIN).result() == [7]
    assert launch("pkg.train", 1, **PLAIN).result() == [7, "1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"program": "none.py"}, "launch: there is no script 'none.py'"),
        ({"nnodes": 0}, "spec.nnodes: must be at least 1, got 0"),
        ({"program": "json.tool", "x": 1}, "a script takes no keyword arguments: x"),
        ({"on": "cluster"}, "spec.image: is required"),
        ({"on": "mars", "image": "any"}, "on must be 'cluster' or 'local', got 'mars'"),
        ({"gpus": 64}, "GPU"),
    ],
)
def test_what_breaks_a_rule_is_named_before_anything_runs(
    folder: Path, arguments: dict[str, Any], words: str
) -> None:
    program = arguments.pop("program", Notebook()("def train():\n    return 1\n")["train"])
    with pytest.raises(InvalidJob) as refused:
        launch(program, **{**PLAIN, "stream": False, **arguments})
    assert words in str(refused.value)


FAILS_ONCE = """
def train():
    import os, pathlib
    print("round", os.environ["DDPJOB_ROUND"], flush=True)
    once = pathlib.Path("once")
    if not once.exists():
        once.touch()
        raise ValueError("boom")
"""


def test_lines_say_which_attempt_and_round_they_are_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {**COLD, "failurePolicy": {"backoffSeconds": {"first": 0}}}
    launch(Notebook()(FAILS_ONCE)["train"], **{**PLAIN, "spec": spec, "stream": True})
    lines = capsys.readouterr().out.splitlines()
    again = "a0.1 r0 | round 1"
    assert "a0 r0 | round 0" in lines and again in lines, lines
    before = lines[: lines.index(again)]
    assert "a0 r0 | ValueError: boom" in before
    assert any(line.startswith("a0 n0 | ddpjob-agent: Exception") for line in before)


def test_code_of_a_job_cannot_launch_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPJOB_ATTEMPT", "0")
    with pytest.raises(DDPJobError, match="__main__"):
        launch("json.tool", **PLAIN)


PROGRAM = """
import sys, time
from ddpjob import launch

def train():
    print("up", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    launch(train, on="local", spec={"launcher": "python"}, wait=sys.argv[1] == "wait")
"""


def program(folder: Path, how: str) -> "subprocess.Popen[str]":
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(folder / "program.py"), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupt_of_a_program_ends_it_and_says_so(folder: Path) -> None:
    with program(folder, "wait") as process:
        assert process.stdout and process.stderr
        while not process.stdout.readline().endswith("| up\n"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == -signal.SIGINT
    assert "detached: train-" in said and "as long as this program does" in said


def test_a_program_that_ends_leaves_no_run_behind(folder: Path) -> None:
    with program(folder, "leave") as process:
        assert process.wait(60) == 0


def test_records_of_a_run_are_read_line_by_line(folder: Path) -> None:
    """Even if a library prints into them."""
    train = Notebook()("def train():\n    print('{\"status\": 1}')\n    return 1\n")["train"]
    run = launch(train, wait=False, **PLAIN)
    news: list[object] = []
    with run.news() as pipe:
        while (found := pipe.take(60)) is not None:
            news += found
    assert run.result() == 1 and len(news) > 3
    with run.news() as pipe:
        assert pipe.take(60) is None
    assert json.dumps({"status": 1}) in [line.text for line in run.logs()]
