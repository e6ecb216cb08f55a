"""What happens to a pod whose fork server, agent or script is ended, and what cannot be warm."""

import pytest

pytest.importorskip("torch")

from tests.agentpod import Pod, Pods, python_path
from tests.trainer.warm_pods import EVIDENCE, assert_cold, assert_warm, fork_servers, script
from tests.waiting import wait_for

pytestmark = pytest.mark.deep

WAIT = (
    EVIDENCE
    + """
import os, signal, subprocess, time
if "save" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if "stay" in sys.argv:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open("begun", "w").close()
for _ in range(1000):
    time.sleep(0.1)
    if os.path.exists("end"):
        break
"""
)
UNBUFFERED = {"PATH": python_path(), "PYTHONUNBUFFERED": "1"}


def begun(pod: Pod) -> bool:
    """Whether a script that waits has begun."""
    return (pod.folder / "begun").exists()


def assert_nothing_is_left(pod: Pod) -> None:
    wait_for(lambda: not pod.processes())


@pytest.mark.parametrize("mode", ["torchrun", "python"])
def test_a_script_goes_on_without_the_fork_server(pods: Pods, mode: str) -> None:
    words = [script(pods, WAIT)] if mode == "torchrun" else ["python3", script(pods, WAIT)]
    pod = pods.start(mode, "--", *words, changes=UNBUFFERED)
    pod.until(lambda: begun(pod))
    if mode == "torchrun":
        (server,) = fork_servers(pod)
        server.kill()
    wait_for(lambda: not fork_servers(pod))
    assert pod.process.poll() is None
    (pod.folder / "end").touch()
    assert pod.wait() == 0, pod.log
    assert pod.summary["reason"] == "Completed"
    assert_warm(pod)
    assert_nothing_is_left(pod)


def test_without_a_fork_server_a_pod_starts_cold(pods: Pods) -> None:
    pod = pods.start("torchrun", "--", script(pods, EVIDENCE), changes=UNBUFFERED)
    wait_for(lambda: fork_servers(pod))
    fork_servers(pod)[0].kill()
    assert pod.wait() == 0, pod.log
    assert pod.log.count("ddpjob-agent: ") == 1
    assert "ddpjob-agent: cold start: the fork server has ended" in pod.log
    assert_cold(pod)
    assert_nothing_is_left(pod)


def test_sigterm_while_torch_is_imported_ends_the_pod_at_once(pods: Pods) -> None:
    pod = pods.start("torchrun", "--", script(pods, EVIDENCE), changes=UNBUFFERED)
    wait_for(lambda: fork_servers(pod))
    pod.terminate()
    assert pod.wait() == 143, pod.log
    assert (pod.summary["reason"], pod.summary["signal"]) == ("Signal", "SIGTERM")
    assert "is warm" not in pod.log and not begun(pod)
    assert_nothing_is_left(pod)


@pytest.mark.parametrize("warm", ["1", "0"])
@pytest.mark.parametrize("mode", ["torchrun", "python"])
def test_a_script_that_saves_on_sigterm_is_preempted(pods: Pods, mode: str, warm: str) -> None:
    path = script(pods, WAIT)
    words = [path, "save"] if mode == "torchrun" else ["python3", path, "save"]
    pod = pods.start(mode, "--", *words, changes={**UNBUFFERED, "DDPJOB_WARM_START": warm})
    pod.until(lambda: begun(pod))
    pod.terminate()
    assert pod.wait() == 75, pod.log
    assert (pod.summary["reason"], pod.summary["exit_code"]) == ("Preempted", 75)
    (assert_warm if warm == "1" else assert_cold)(pod)
    assert_nothing_is_left(pod)


@pytest.mark.parametrize("mode", ["torchrun", "python"])
def test_nothing_outlives_a_killed_agent(pods: Pods, mode: str) -> None:
    words = [script(pods, WAIT)] if mode == "torchrun" else ["python3", script(pods, WAIT)]
    pod = pods.start(mode, "--", *words, changes=UNBUFFERED)
    pod.until(lambda: begun(pod))
    # The server is asked once, and goes.
    wait_for(lambda: len(pod.processes()) == (4 if mode == "torchrun" else 2))
    pod.process.kill()
    assert_nothing_is_left(pod)
    assert_warm(pod)


# ---- Modules of the job's own


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import socket\nKEPT = socket.socket()", "an import has opened socket:["),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
            "an import has started 1 threads",
        ),
        ("raise ValueError('boom')", "ValueError: boom"),
        (None, "ModuleNotFoundError: No module named 'extra'"),
    ],
)
def test_a_module_that_cannot_be_imported_beforehand_makes_a_cold_start(
    pods: Pods, text: str | None, why: str
) -> None:
    lib = pods.root / "lib"
    lib.mkdir()
    if text is not None:
        (lib / "extra.py").write_text(text)
    changes = {**UNBUFFERED, "DDPJOB_WARM_MODULES": "extra", "PYTHONPATH": str(lib)}
    pod = pods.start("python", "--", "python3", script(pods, EVIDENCE), changes=changes)
    assert pod.wait() == 0, pod.log
    (line,) = (line for line in pod.log.splitlines() if line.startswith("ddpjob-agent: "))
    assert line.startswith(f"ddpjob-agent: cold start: {why}"), pod.log
    assert_cold(pod)
    assert_nothing_is_left(pod)


def test_modules_of_the_job_are_imported_beforehand(pods: Pods) -> None:
    lib = pods.root / "lib"
    lib.mkdir()
    (lib / "extra.py").write_text("import os\nPID = os.getpid()")
    text = EVIDENCE + "import os\nprint('extra' in sys.modules)\nimport extra\n"
    path = script(pods, text + "print(extra.PID != os.getpid())\n")
    changes = {**UNBUFFERED, "DDPJOB_WARM_MODULES": "extra,json", "PYTHONPATH": str(lib)}
    pod = pods.start("python", "--", "python3", path, changes=changes)
    assert pod.wait() == 0 and pod.log == "is warm: True\nTrue\nTrue\n", pod.log
