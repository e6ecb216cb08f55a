"""Nothing of one round reaches the next: no process, no report, no message, no descriptor."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")

from tests import agentpod
from tests.agentpod import Pods
from tests.trainer.rounds import act, all_step, pid_of, said, start, train
from tests.trainer.warm_pods import fork_servers
from tests.waiting import wait_for

pytestmark = pytest.mark.deep

# Makes no group, and takes no notice of SIGTERM.
STUBBORN = """
import os, signal, sys, time
number, begun = os.environ["DDPJOB_ROUND"], time.time()
def say(word, *more):
    line = " ".join(map(str, (word, number, os.environ["RANK"], *more)))
    os.write(1, line.encode() + b"\\n")
signal.signal(signal.SIGTERM, lambda *_: say("refuses"))
say("begins", begun)
while True:
    if os.path.exists(f"act-{number}-{os.environ['RANK']}"):
        exec(open(f"act-{number}-{os.environ['RANK']}").read())
    say("step", os.getpid(), time.time())
    time.sleep(0.01)
"""
# Leaves a process behind that is nobody's: it has a session of its own, and no parent.
LEAVE = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, f"left {round} {os.getpid()}\\n".encode())
        while True:
            time.sleep(1000)
    os._exit(0)
os.wait()
"""
# The same, and its first thread has ended: it looks like a zombie.
SLEEPS = "        while True:\n            time.sleep(1000)\n"
HEADLESS = """\
        import ctypes
        threading.Thread(target=time.sleep, args=(1000,)).start()
        ctypes.CDLL(None).pthread_exit(None)
"""


def test_no_rank_begins_while_one_of_the_round_before_refuses_to_end(pods: Pods) -> None:
    operator = start(pods, STUBBORN, nnodes=2)
    all_step(pods, 0, 2)
    first, second = pods.started
    act(pods, 0, 0, "sys.exit(1)")
    operator.until_failed()
    operator.go_on()
    all_step(pods, 1, 2)
    assert said(second, "refuses", 0), "it was asked to end"
    last = max(float(words[2]) for words in said(second, "step", 0))
    begun = min(float(words[1]) for pod in pods.started for words in said(pod, "begins", 1))
    assert last < begun
    asked = [line.split() for line in second.log.partition("refuses")[2].splitlines()]
    assert len([words for words in asked if words[:2] == ["step", "0"]]) > 10, "it had its time"


@pytest.mark.parametrize(
    "leave", [LEAVE, LEAVE.replace(SLEEPS, HEADLESS)], ids=["whole", "headless"]
)
def test_what_a_script_left_in_a_session_of_its_own_is_dead_before_the_next_round(
    pods: Pods, leave: str
) -> None:
    operator = train(pods)
    (pod,) = pods.started
    act(pods, 0, 0, leave + "os.remove('act-0-0')")
    pod.until(lambda: "left 0 " in pod.log)
    left = int(pod.log.partition("left 0 ")[2].split()[0])
    assert psutil.pid_exists(left)
    begins = (
        "import os, sys\nos.write(1, f'is there: {os.path.exists(\"/proc/PID\")}\\n'.encode())\n"
    )
    path = pods.root / "train.py"
    path.write_text(begins.replace("PID", str(left)) + path.read_text())
    os.kill(pid_of(pod, 0, 0), signal.SIGKILL)
    operator.until_failed()
    operator.go_on()
    all_step(pods, 1, 1)
    assert pod.log.count("is there: False") == 1 and "is there: True" not in pod.log


def test_a_round_has_a_page_a_message_and_reports_of_its_own(pods: Pods) -> None:
    operator = train(pods)
    (pod,) = pods.started
    report = "import json; json.dump({'step': 41}, open(os.environ['DDPJOB_PROGRESS_FILE'], 'w'))\n"
    act(pods, 0, 0, report + "os.remove('act-0-0')")
    pod.until(lambda: pod.progress().get("step") == 41)
    assert (pod.progress()["round"], pod.progress()["source"]) == (0, "file")
    assert pod.termination_log.read_bytes() == b""
    act(pods, 0, 0, "import json\n" + report.replace("41", "42") + "os._exit(3)")
    (told,) = operator.until_failed()
    assert (told["message"]["round"], told["message"]["progress"]["step"]) == (0, 42)
    assert pod.summary["exit_code"] == 3
    operator.go_on()
    all_step(pods, 1, 1)
    pod.until(lambda: pod.progress()["source"] != "none")
    page = pod.progress()
    assert (page["round"], page["state"], page["source"]) == (1, "running", "counted")
    assert pod.termination_log.read_bytes() == b"", "whoever kills it now is not told of round 0"
    act(pods, 1, 0, "sys.exit(4)")
    (told,) = operator.until_failed()
    assert (told["message"]["round"], told["message"]["exit_code"]) == (1, 4)
    assert pod.summary["round"] == 1


def test_without_its_fork_server_a_round_begins_cold_and_the_next_one_warm(pods: Pods) -> None:
    operator = train(pods)
    (pod,) = pods.started
    for number, servers in enumerate((1, 2, 1, 2)):
        assert len(fork_servers(pod)) == servers, "in a cold round one server is for both"
        os.kill(pid_of(pod, number, 0), signal.SIGKILL)
        operator.until_failed()
        if number == 1:
            wait_for(lambda: len(fork_servers(pod)) == 1)  # the launcher's own goes with it
            (server,) = fork_servers(pod)
            server.kill()
            wait_for(lambda: not fork_servers(pod))
        operator.go_on()
        all_step(pods, number + 1, 1)


# ---- What a rank is


SHOWN = """
import json, os, signal, stat, sys, time
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
kinds = [os.path.basename(os.readlink(file)).partition(":[")[0] for file in files
         if os.path.lexists(file)]
shown = {
    "env": dict(os.environ),
    "argv": [sys.argv, sys.orig_argv, open("/proc/self/cmdline").read()],
    "folder": os.getcwd(),
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "threads": status["Threads"],
    "files": sorted(kinds),
    "umask": os.umask(0o22),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "score": open("/proc/self/oom_score_adj").read(),
    "path": sys.path,
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
}
name = f"shown-{os.environ['DDPJOB_ROUND']}-{os.environ['RANK']}"
json.dump(shown, open(name + ".tmp", "w"))
os.rename(name + ".tmp", name)
while True:
    time.sleep(0.05)
    if os.path.exists(f"act-{os.environ['DDPJOB_ROUND']}"):
        os._exit(1)
"""
# By design; and torchrun's own temporary folder.
OTHERS = {
    *("DDPJOB_ROUND", "MASTER_PORT", "PET_MASTER_PORT", "PET_RDZV_ID", "TORCHELASTIC_RUN_ID"),
    *("DDPJOB_WARM_START", "DDPJOB_OUTPUT", "TORCHELASTIC_ERROR_FILE"),
}


def exist(files: list[Path]) -> bool:
    return all(file.exists() for file in files)


def shown(pods: Pods, warm: str) -> list[dict[str, Any]]:
    """What the ranks of three rounds in a row are."""
    operator = start(pods, SHOWN, nproc=2, DDPJOB_WARM_START=warm)
    pod, found = pods.started[-1], []
    for number in range(3):
        files = [pod.folder / f"shown-{number}-{rank}" for rank in range(2)]
        pod.until(partial(exist, files))
        found += [json.loads(file.read_text()) for file in files]
        (pod.folder / f"act-{number}").touch()
        operator.until_failed()
        operator.go_on()
    return found


def alike(rank: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rank.items() if name != "env"}


def test_a_cold_rank_is_the_same_in_every_round_and_a_warm_one_is_like_it(tmp_path: Path) -> None:
    found = []
    for warm in ("0", "1"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with agentpod.pods(tmp_path / "x" / warm) as group:
            group.root.mkdir()
            found.append(shown(group, warm))
    cold, warmed = found
    for rank in range(6):
        for ranks in found:
            assert alike(ranks[rank]) == alike(ranks[rank % 2])
        assert cold[rank]["files"] == warmed[rank]["files"]
        for name in cold[rank]["env"].keys() | warmed[rank]["env"].keys():
            same = str(cold[rank]["env"].get(name)).replace("/x/0/", "/x/1/")
            assert name in OTHERS or same == warmed[rank]["env"].get(name), name
