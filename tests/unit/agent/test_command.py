"""The agent as a process, around small Python scripts; no torch."""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob_agent.hooks import ddpjob_counts
from ddpjob_agent.network import say_seconds
from tests import agentpod
from tests.agentpod import Pod, Pods
from tests.unit.agent.scripts import script, start


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with agentpod.pods(tmp_path) as group:
        yield group


# ---- Ends


def test_success_carries_the_final_progress(pods: Pods) -> None:
    pod = start(pods, "report(step=10, total_steps=10, loss=0.25)")
    assert pod.wait() == 0
    assert pod.summary["reason"] == "Completed"
    assert pod.summary["exit_code"] == 0
    progress = pod.summary["progress"]
    assert (progress["state"], progress["source"]) == ("finished", "file")
    assert (progress["step"], progress["loss"], progress["eta_seconds"]) == (10, 0.25, 0.0)


def test_an_exception_is_told_by_type_message_and_last_frames(pods: Pods) -> None:
    before = time.time()
    pod = start(pods, "def broken():\n    raise ValueError('boom')\nbroken()")
    assert pod.wait() == 1
    summary = pod.summary
    assert (summary["reason"], summary["exception"]) == ("Exception", "ValueError")
    assert (summary["message"], summary["peer"]) == ("ValueError: boom", False)
    assert (summary["rank"], summary["local_rank"], summary["exit_code"]) == (0, 0, 1)
    assert "in broken" in summary["traceback"]
    assert before < summary["time"] < time.time()
    assert summary["time"] % 1  # with fractions: whole seconds cannot order ranks
    assert "ValueError: boom" in pod.log  # Python's own report is still printed


def test_a_workers_own_exit_code_is_kept(pods: Pods) -> None:
    pod = start(pods, "sys.exit(3)")
    assert pod.wait() == 1
    assert (pod.summary["reason"], pod.summary["exit_code"]) == ("ExitCode", 3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_signal_is_named_and_becomes_the_exit_code(pods: Pods, number: signal.Signals) -> None:
    pod = start(pods, f"os.kill(os.getpid(), {int(number)})")
    assert pod.wait() == 128 + number
    assert (pod.summary["reason"], pod.summary["signal"]) == ("Signal", number.name)
    assert pod.summary["exit_code"] is None
    assert pod.summary["peer"] is False


def test_an_exception_behind_a_shell_is_found(pods: Pods) -> None:
    path = script(pods, "raise KeyError('missing')")
    pod = pods.start("command", "--", "sh", "-c", f"true; {sys.executable} {path} || exit 1")
    assert pod.wait() == 1
    assert pod.summary["message"] == "KeyError: 'missing'"


def test_an_exception_that_a_replaced_hook_printed_is_found(pods: Pods) -> None:
    pod = start(pods, "sys.excepthook = lambda *a: print('mine')\nraise ValueError('boom')")
    assert pod.wait() == 1
    assert "mine" in pod.log
    assert pod.summary["message"] == "ValueError: boom"


def test_a_helper_process_that_fails_does_not_explain_a_later_exit(pods: Pods) -> None:
    text = "subprocess.call([sys.executable, '-c', 'import nothing_of_that_name'])\nsys.exit(4)"
    pod = start(pods, text)
    assert pod.wait() == 1
    assert (pod.summary["exit_code"], pod.summary["exception"]) == (4, None)


PARSER = "import argparse\nargparse.ArgumentParser('train.py').parse_args(['--lr'])"
CAUGHT = "try:\n    raise OSError('no such data')\nexcept OSError as problem:\n    sys.exit(4)"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("sys.exit('no GPU\\nis free')", 1, "exited with code 1: no GPU is free"),
        (PARSER, 2, "exited with code 2: train.py: error: unrecognized arguments: --lr"),
        (CAUGHT, 4, "exited with code 4: OSError: no such data"),
        ("sys.exit(3)", 3, "exited with code 3"),
        # Words that were taken back, or that nobody knows to be the last, are not believed.
        (
            "try:\n    sys.exit('no')\nexcept SystemExit:\n    raise SystemExit(5)",
            5,
            "exited with code 5",
        ),
        ("try:\n    sys.exit('no')\nexcept SystemExit:\n    os._exit(1)", 1, "exited with code 1"),
    ],
)
def test_what_is_said_with_sys_exit_is_kept(pods: Pods, text: str, code: int, words: str) -> None:
    pod = start(pods, text)
    assert pod.wait() == 1
    assert (pod.summary["reason"], pod.summary["exit_code"]) == ("ExitCode", code)
    assert pod.summary["message"] == words


def test_sys_exit_without_a_failure_stays_what_it_is(pods: Pods) -> None:
    for text in ("sys.exit()", "sys.exit(0)", "try:\n    sys.exit('no')\nexcept SystemExit: pass"):
        pod = start(pods, text)
        assert pod.wait() == 0 and pod.summary["reason"] == "Completed"


@pytest.mark.parametrize("arguments", [["/no/such/train.py"], ["-m", "no_such_module"]])
def test_what_python_cannot_find_is_named(pods: Pods, arguments: list[str]) -> None:
    pod = pods.start("command", "--", sys.executable, "-u", *arguments)
    assert pod.wait() == 1
    assert pod.summary["reason"] == "LaunchFailed", pod.summary
    assert arguments[-1] in pod.summary["message"]


def test_a_script_that_has_used_up_its_descriptors_is_recorded(pods: Pods) -> None:
    text = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        files = []
        while True:
            files.append(open(__file__))
    """
    pod = start(pods, text)
    assert pod.wait() == 1
    assert "Too many open files" in pod.summary["message"]


def test_a_script_that_has_used_up_its_memory_is_recorded(pods: Pods) -> None:
    text = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))
        rows = []
        while True:
            rows.append(bytes(2**16))
    """
    pod = start(pods, text)
    assert pod.wait() == 1
    assert pod.summary["exception"] == "MemoryError"


def test_a_signal_handler_that_raises_does_not_cost_the_record(pods: Pods) -> None:
    """As torch's does when a DataLoader worker is killed, wherever the process then is."""
    text = """
        def ended(*_):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            raise RuntimeError("a helper was killed")

        class Trouble(Exception):
            def __str__(self):
                signal.raise_signal(signal.SIGUSR1)
                return "connection lost"

        signal.signal(signal.SIGUSR1, ended)
        raise Trouble
    """
    pod = start(pods, text)
    assert pod.wait() == 1
    told = "Trouble: connection lost (then RuntimeError: a helper was killed)"
    assert pod.summary["message"] == told


def test_an_isolated_python_has_no_hooks_and_works(pods: Pods) -> None:
    path = script(pods, "raise ValueError('boom')")
    pod = pods.start("command", "--", sys.executable, "-I", path)
    assert pod.wait() == 1
    assert (pod.summary["reason"], pod.summary["exit_code"]) == ("ExitCode", 1)


def test_a_command_that_does_not_exist_is_named(pods: Pods) -> None:
    pod = pods.start("command", "--", "/no/such/command")
    assert pod.wait() == 1
    assert pod.summary["reason"] == "LaunchFailed"
    assert "/no/such/command" in pod.summary["message"]
    assert "/no/such/command" in pod.log


def test_an_image_without_torch_says_so(pods: Pods) -> None:
    bare = str(Path(sys.executable).resolve())
    if subprocess.run([bare, "-c", "import torch"], capture_output=True).returncode == 0:
        pytest.skip("every Python here has torch")
    pod = pods.start("torchrun", "--", "train.py", python=bare)
    assert pod.wait() == 1
    assert pod.summary["reason"] == "LaunchFailed"
    assert "No module named 'torch'" in pod.summary["message"]
    assert bare in pod.summary["message"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"DDPJOB_NNODES": None}, "DDPJOB_NNODES is not set"),
        ({"DDPJOB_NODE_RANK": "zero"}, "DDPJOB_NODE_RANK must be an integer"),
    ],
)
def test_a_wrong_environment_is_explained(
    pods: Pods, changes: dict[str, str | None], problem: str
) -> None:
    path = script(pods, "print('never')")
    pod = pods.start("command", "--", sys.executable, path, changes=changes)
    assert pod.wait() == 1
    assert pod.summary["reason"] == "LaunchFailed"
    assert problem in pod.summary["message"]
    assert problem in pod.log
    assert "never" not in pod.log


def test_a_wrong_command_line_is_explained(pods: Pods) -> None:
    pod = pods.start("torchrun", "train.py")
    assert pod.wait() == 1
    assert "usage: agent.pyz torchrun|python|command -- ARGS" in pod.summary["message"]


# ---- SIGTERM

SAVING = """
    import signal
    def save(*_):
        time.sleep(0.3)
        sys.exit({code})
    signal.signal(signal.SIGTERM, save)
    report(step=1, total_steps=10)
    while True:
        time.sleep(0.05)
"""


def stop_when_ready(pod: Pod) -> int:
    pod.until(lambda: (pod.folder / "run/progress.json").exists())
    pod.terminate()
    return pod.wait()


def test_a_worker_that_saved_was_preempted(pods: Pods) -> None:
    pod = start(pods, SAVING.format(code=75))
    assert stop_when_ready(pod) == 75
    assert (pod.summary["reason"], pod.summary["exit_code"]) == ("Preempted", 75)


def test_a_worker_behind_a_shell_may_save_too(pods: Pods) -> None:
    path = script(pods, SAVING.format(code=75))
    pod = pods.start("command", "--", "sh", "-c", f"{sys.executable} {path}; echo after")
    assert stop_when_ready(pod) == 75
    assert pod.summary["reason"] == "Preempted"


def test_exit_code_0_after_sigterm_is_no_proof_of_success(pods: Pods) -> None:
    pod = start(pods, SAVING.format(code=0))
    assert stop_when_ready(pod) == 143
    assert (pod.summary["reason"], pod.summary["signal"]) == ("Signal", "SIGTERM")


def test_exit_code_0_after_the_last_step_is_success(pods: Pods) -> None:
    pod = start(pods, SAVING.format(code=0).replace("step=1,", "step=10,"))
    assert stop_when_ready(pod) == 0
    assert pod.summary["reason"] == "Completed"


def test_a_failure_before_sigterm_stays_the_cause(pods: Pods) -> None:
    text = """
        def hook(kind, error, trace, before=sys.excepthook):
            before(kind, error, trace)
            report(step=1)
            time.sleep(1)
        sys.excepthook = hook
        raise ValueError("boom")
    """
    pod = start(pods, text)
    assert stop_when_ready(pod) == 1
    assert pod.summary["message"] == "ValueError: boom"


def test_a_worker_that_ignores_sigterm_is_killed_in_time_for_the_summary(pods: Pods) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport(step=1)\ntime.sleep(600)"
    pod = start(pods, text, DDPJOB_GRACE_SECONDS="4")
    assert stop_when_ready(pod) == 143
    assert pod.summary["progress"]["step"] == 1


def test_the_summary_has_a_draft_as_soon_as_sigterm_came(pods: Pods) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport(step=1)\ntime.sleep(600)"
    pod = start(pods, text)
    pod.until(lambda: (pod.folder / "run/progress.json").exists())
    pod.terminate()
    pod.until(lambda: pod.termination_log.stat().st_size)
    pod.kill()
    assert pod.wait() == -signal.SIGKILL
    assert pod.summary["signal"] == "SIGTERM"


# ---- Processes


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.skipif(sys.platform != "linux", reason="orphans come to the agent on Linux alone")
def test_orphans_are_reaped_and_none_outlives_the_agent(pods: Pods) -> None:
    text = """
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        brief = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', '']).pid)"
        orphan = int(subprocess.check_output([sys.executable, "-c", brief]))
        stays = subprocess.Popen(sleep, start_new_session=True)
        while os.path.exists(f"/proc/{orphan}"):
            time.sleep(0.05)
        report(step=stays.pid)
    """
    pod = start(pods, text)
    assert pod.wait() == 0
    assert not alive(pod.summary["progress"]["step"])


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' parent-death signal")
def test_the_launcher_dies_with_a_killed_agent(pods: Pods) -> None:
    pod = start(pods, "report(step=os.getpid())\ntime.sleep(600)")
    pod.until(lambda: pod.progress().get("step"))
    launcher = pod.progress()["step"]
    pod.process.kill()
    pod.wait()
    deadline = time.monotonic() + agentpod.DEADLINE
    while alive(launcher):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_folders_are_made_and_an_earlier_runs_files_are_gone(pods: Pods) -> None:
    run = pods.root / "pod-0/run"
    run.mkdir(parents=True)
    (run / "progress.json").write_text('{"step": 99}')
    page = struct.pack("=5q", ddpjob_counts.MAGIC, 99, 0, 0, -1)
    (run / "steps-1.page").write_bytes(page)
    (run / "error-1.json").write_text('{"type": "ValueError", "message": "old"}')
    (run / "keep.txt").touch()
    cache = pods.root / "pod-0/home/cache"
    text = 'assert os.path.isdir(os.environ["HOME"]) and os.path.isdir(os.environ["HF_HOME"])'
    pod = start(pods, text, HF_HOME=str(cache))
    assert pod.wait() == 0, pod.log
    assert pod.summary["progress"]["source"] == "none"
    assert (run / "keep.txt").exists()


def test_the_hidden_sitecustomize_and_the_users_path_still_work(pods: Pods) -> None:
    theirs = pods.root / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins; builtins.custom = __name__")
    (theirs / "mine.py").write_text("value = 7")
    text = "import mine, sitecustomize\nassert (mine.value, custom) == (7, 'sitecustomize')"
    text += "\nassert 'theirs' in sitecustomize.__file__\nraise ValueError('boom')"
    pod = start(pods, text, PYTHONPATH=str(theirs))
    assert pod.wait() == 1
    assert pod.summary["message"] == "ValueError: boom", pod.log


def test_a_broken_hidden_sitecustomize_breaks_nothing(pods: Pods) -> None:
    theirs = pods.root / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise RuntimeError('theirs')")
    pod = start(pods, "sys.exit(5)", PYTHONPATH=str(theirs))
    assert pod.wait() == 1
    assert pod.summary["exit_code"] == 5
    assert "RuntimeError('theirs')" in pod.log


def test_a_run_folder_that_is_not_writable_costs_no_training(pods: Pods) -> None:
    pod = start(pods, "print('trained')", DDPJOB_RUN_DIR="/proc/nowhere")
    assert pod.wait() == 0
    assert "trained" in pod.log


# ---- Network


def test_progress_and_metrics_are_served_while_it_runs(pods: Pods) -> None:
    pods_of_a_job = [
        start(pods, "report(step=int(sys.argv[0][-4]) + 1, loss=float('nan'))\ntime.sleep(600)")
        for _ in range(2)
    ]
    for number, pod in enumerate(pods_of_a_job):
        pod.until(lambda pod=pod: pod.progress().get("source") == "file")  # type: ignore[misc]
        assert pod.progress()["state"] == "running"
        assert pod.progress()["step"] == number + 1
        expected = f'ddpjob_step{{job="digits",attempt="0",node_rank="0"}} {number + 1}.0'
        assert expected in pod.get("/metrics").splitlines()
        with pytest.raises(OSError, match="404"):
            pod.get("/etc/passwd")


def test_a_taken_port_costs_the_progress_alone(pods: Pods) -> None:
    first = start(pods, "report(step=1)\ntime.sleep(600)")
    first.until(first.progress)
    second = start(pods, "report(step=2)", DDPJOB_POD_IP=first.address)
    assert second.wait() == 0
    assert "no /progress on" in second.log
    assert second.summary["progress"]["step"] == 2


ABSENT = {"MASTER_ADDR": "digits-0-0.digits.invalid.", "DDPJOB_RENDEZVOUS_SECONDS": "1"}


def test_a_master_that_never_appears_ends_torchrun(pods: Pods) -> None:
    path = script(pods, "time.sleep(600)")
    pod = pods.start("torchrun", "--", path, rank=1, nnodes=2, changes=ABSENT)
    assert pod.wait() == 77
    assert pod.summary["reason"] == "Rendezvous"
    assert "digits-0-0.digits.invalid." in pod.summary["message"]
    assert "waiting for the name of node rank 0, digits-0-0.digits.invalid." in pod.log


def test_a_command_may_do_without_a_master(pods: Pods) -> None:
    """It may be found late, elsewhere, or never be asked for."""
    text = "while not os.path.exists('enough'):\n    time.sleep(0.05)"
    pod = start(pods, text, rank=1, nnodes=2, **ABSENT)
    pod.until(lambda: pod.log.count("waiting for the name of node rank 0") == 1)
    assert " s; the training goes on)" in pod.log
    began = time.monotonic()
    pod.until(lambda: time.monotonic() - began > 3)  # three times its limit; it lives
    assert pod.progress()["state"] == "waiting"
    (pod.folder / "enough").touch()
    assert pod.wait() == 0
    assert pod.log.count("waiting for") == 1


def test_a_command_that_makes_steps_without_a_master_runs(pods: Pods) -> None:
    pod = start(pods, "report(step=1)\ntime.sleep(600)", rank=1, nnodes=2, **ABSENT)
    pod.until(lambda: pod.progress().get("state") == "running")


def test_what_ends_no_wait_is_said_less_and_less_often() -> None:
    pauses = [say_seconds(waited, math.inf) for waited in (0, 10, 100, 10**6)]
    assert pauses == [15, 15, 100, 1800]
    assert say_seconds(10**6, 900) == 15


def test_a_master_that_is_found_ends_the_waiting_state(pods: Pods) -> None:
    pod = start(
        pods,
        "report(step=1)\ntime.sleep(600)",
        rank=1,
        nnodes=2,
        MASTER_ADDR="localhost",
        DDPJOB_RENDEZVOUS_SECONDS="30",
    )
    pod.until(lambda: "waiting for the name of node rank 0, localhost" in pod.log)
    pod.until(lambda: pod.progress().get("state") == "running")


def test_without_work_the_agent_sleeps(pods: Pods) -> None:
    pod = start(pods, "report(step=1)\ntime.sleep(600)")
    pod.until(lambda: pod.progress().get("source") == "file")
    stat = Path(f"/proc/{pod.process.pid}/stat")
    if not stat.exists():
        pytest.skip("no /proc")

    def ticks() -> int:
        return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))

    before = ticks()
    time.sleep(2)
    assert (ticks() - before) / os.sysconf("SC_CLK_TCK") < 0.2  # s of CPU in 2 s


def test_a_record_is_one_json_object(pods: Pods) -> None:
    pod = start(pods, "raise ValueError('\\ud800 half a pair')", LOCAL_RANK="0", RANK="0")
    assert pod.wait() == 1
    (record,) = (pod.folder / "run").glob("error-*.json")
    assert json.loads(record.read_text())["rank"] == 0
    assert "half a pair" in pod.summary["message"]
