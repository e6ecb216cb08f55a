"""The agent as a process, around small Python scripts; no torch."""

import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpjob_agent.hooks import ddpjob_counts
from tests import agentpod
from tests.agentpod import Pod, Pods
from tests.unit.agent.scripts import script, start

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


def test_an_exception_that_a_replaced_hook_printed_is_found(pods: Pods) -> None:
    pod = start(pods, "sys.excepthook = lambda *a: print('mine')\nraise ValueError('boom')")
    assert pod.wait() == 1
    assert "mine" in pod.log
    assert pod.summary["message"] == "ValueError: boom"


def test_sys_exit_without_a_failure_stays_what_it_is(pods: Pods) -> None:
    for text in ("sys.exit()", "sys.exit(0)", "try:\n    sys.exit('no')\nexcept SystemExit: pass"):
        pod = start(pods, text)
        assert pod.wait() == 0 and pod.summary["reason"] == "Completed"


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


def test_an_image_without_torch_says_so(pods: Pods) -> None:
    bare = str(Path(sys.executable).resolve())
    if subprocess.run([bare, "-c", "import torch"], capture_output=True).returncode == 0:
        pytest.skip("every Python here has torch")
    pod = pods.start("torchrun", "--", "train.py", python=bare)
    assert pod.wait() == 1
    assert pod.summary["reason"] == "LaunchFailed"
    assert "No module named 'torch'" in pod.summary["message"]
    assert bare in pod.summary["message"]


def test_a_wrong_environment_is_explained(pods: Pods) -> None:
    problem = "DDPJOB_NNODES is not set"
    pod = start(pods, "print('never')", DDPJOB_NNODES=None)
    assert pod.wait() == 1
    assert pod.summary["reason"] == "LaunchFailed"
    assert problem in pod.summary["message"]
    assert problem in pod.log
    assert "never" not in pod.log


# ---- SIGTERM

SAVING = """
    import signal
    def save(*_):
        time.sleep(0.3)
        sys.exit({code})
    signal.signal(signal.SIGTERM, save)
    report(step={step}, total_steps=10)
    while True:
        time.sleep(0.05)
"""


IGNORING = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport(step=1)\ntime.sleep(600)"


def stop_when_ready(pod: Pod) -> int:
    pod.until(lambda: (pod.folder / "run/progress.json").exists())
    pod.terminate()
    return pod.wait()


@pytest.mark.parametrize(
    ("code", "step", "agents", "reason"),
    [(75, 1, 75, "Preempted"), (0, 1, 143, "Signal"), (0, 10, 0, "Completed")],
    ids=["saved", "no-proof-of-success", "after-the-last-step"],
)
def test_the_exit_code_after_sigterm(
    pods: Pods, code: int, step: int, agents: int, reason: str
) -> None:
    pod = start(pods, SAVING.format(code=code, step=step))
    assert stop_when_ready(pod) == agents
    assert pod.summary["reason"] == reason


def test_a_worker_behind_a_shell_may_save_too(pods: Pods) -> None:
    path = script(pods, SAVING.format(code=75, step=1))
    pod = pods.start("command", "--", "sh", "-c", f"{sys.executable} {path}; echo after")
    assert stop_when_ready(pod) == 75
    assert pod.summary["reason"] == "Preempted"


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
    pod = start(pods, IGNORING, DDPJOB_GRACE_SECONDS="4")
    assert stop_when_ready(pod) == 143
    assert pod.summary["progress"]["step"] == 1


def test_the_summary_has_a_draft_as_soon_as_sigterm_came(pods: Pods) -> None:
    pod = start(pods, IGNORING)
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
    page = struct.pack("=4q", ddpjob_counts.MAGIC, 99, 0, 0)
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


# ---- Network


def test_progress_and_metrics_are_served_while_it_runs(pods: Pods) -> None:
    pod = start(pods, "report(step=1, loss=float('nan'))\ntime.sleep(600)")
    pod.until(lambda: pod.progress().get("source") == "file")
    assert (pod.progress()["state"], pod.progress()["step"]) == ("running", 1)
    expected = 'ddpjob_step{namespace="default",job="digits",attempt="0",node_rank="0"} 1.0'
    assert expected in pod.get("/metrics").splitlines()
    with pytest.raises(OSError, match="404"):
        pod.get("/etc/passwd")


ENOUGH = "while not os.path.exists('enough'):\n    time.sleep(0.05)"


def test_a_taken_port_costs_the_progress_alone_until_it_is_free(pods: Pods) -> None:
    first = start(pods, f"report(step=1)\n{ENOUGH}")
    first.until(first.progress)
    second = start(pods, f"report(step=2)\n{ENOUGH}", DDPJOB_POD_IP=first.address)
    second.until(lambda: "no /progress on" in second.log)
    (first.folder / "enough").touch()
    assert first.wait() == 0
    second.until(lambda: second.progress().get("step") == 2)
    (second.folder / "enough").touch()
    assert second.wait() == 0


ABSENT = {"MASTER_ADDR": "digits-0-0.digits.invalid.", "DDPJOB_RENDEZVOUS_SECONDS": "1"}


def test_a_command_may_do_without_a_master(pods: Pods) -> None:
    """It may be found late, elsewhere, or never be asked for."""
    pod = start(pods, ENOUGH, rank=1, nnodes=2, **ABSENT)
    pod.until(lambda: pod.log.count("waiting for the name of node rank 0") == 1)
    assert " s; the training goes on)" in pod.log
    began = time.monotonic()
    pod.until(lambda: time.monotonic() - began > 3)  # three times its limit; it lives
    assert pod.progress()["state"] == "waiting"
    (pod.folder / "enough").touch()
    assert pod.wait() == 0
    assert pod.log.count("waiting for") == 1


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
