"""`ddpjob run --local` from outside: output, exit code, what it leaves behind."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpjob.cli.live import LineDisplay
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.logs import LineMaker, LogLine, local_pod
from tests.terminal import ddpjob

# Rank 0 says so when both ranks have set their traps.
# Where a line of rank 0 comes from, in a record.
FIRST = {"attempt": 0, "round": 0, "rank": 0, "nodeRank": 0}
MEET = "touch /meet/$RANK; until [ -e /meet/0 ] && [ -e /meet/1 ]; do :; done; echo up"
STUBBORN = f"trap '' TERM; {MEET}; while :; do sleep 0.05; done"


def line_of(text: str) -> LogLine:
    return LineMaker(local_pod("digits", 0, 0), 1, from_the_beginning=True).line(text.encode())


def job(script: str, **spec: Any) -> dict[str, Any]:
    """Two nodes that run `script` in a shell."""
    base = {"image": "any", "nnodes": 2, "command": ["sh", "-c"], "args": [script]}
    base |= {"volumes": [{"name": "meet", "persistentVolumeClaim": {"claimName": "meet"}}]}
    base |= {"volumeMounts": [{"name": "meet", "mountPath": "/meet"}]}
    meta = {"name": "shell"}
    return {"apiVersion": "ddpjob.dev/v1alpha1", "kind": "DDPJob", "metadata": meta} | {
        "spec": base | {"failurePolicy": {"maxRestarts": 0}} | spec
    }


def command(folder: Path, content: Any, *options: str) -> list[str]:
    file = folder / "job.yaml"
    file.write_text(json.dumps(content))  # YAML is a superset
    where = ["--directory", str(folder / "out")]
    return [sys.executable, "-m", "ddpjob", "run", *options, str(file), *where]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def finish(
    folder: Path, content: Any, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, content, "--local", *options),
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=200,
    )


@contextmanager
def running(
    folder: Path, content: Any, *options: str, stderr: int = subprocess.STDOUT, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """The command, once rank 0 has printed `up`; afterwards no process of it may be left."""
    process = subprocess.Popen(
        command(folder, content, "--local", *options),
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    assert process.stdout
    try:
        while process.stdout.readline() != "[node 0] up\n":
            assert process.poll() is None
        pods = psutil.Process(process.pid).children(recursive=True)
        assert pods
        yield process
        process.stdout.read()
        process.wait(timeout=200)
        _, left = psutil.wait_procs(pods, timeout=200)
        assert left == []
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def test_a_job_succeeds(tmp_path: Path) -> None:
    checkpoint = {"volume": {"persistentVolumeClaim": {"claimName": "ckpt"}}}
    script = "echo rank $RANK; echo $RANK > /checkpoints/$RANK"
    done = finish(tmp_path, job(script, checkpoint=checkpoint))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "[node 0] rank 0" in lines and "rank 1" not in done.stdout
    assert lines[-1].startswith("shell  Succeeded  nodes 2/2")
    folder = tmp_path / "out" / "shell"
    assert lines[0].startswith(f"logs in {folder / 'logs'}; of no effect on this machine: image")
    assert "rank 1" in (folder / "logs" / "shell-0-1.log").read_text()
    assert (folder / "volumes" / "ckpt" / "1").read_text() == "1\n"
    assert sorted(p.name for p in folder.iterdir()) == [".ddpjob-lock", "logs", "volumes"]


RANK = 'import os; rank = int(os.environ["LOCAL_RANK"])'


def test_of_several_ranks_in_a_pod_rank_0_is_printed_and_the_log_has_all(tmp_path: Path) -> None:
    rank = f"python3 -uc '{RANK}; print(\"trained\", 1 + rank)'"
    script = f"LOCAL_RANK=0 {rank} & LOCAL_RANK=1 {rank}; wait; echo launcher"
    done = finish(tmp_path, job(script, nnodes=1, nprocPerNode=2))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "[node 0] trained 1" in lines and "[node 0] launcher" in lines
    assert "trained 2" not in done.stdout
    log = (tmp_path / "out" / "shell" / "logs" / "shell-0-0.log").read_text().splitlines()
    assert {"[rank 0] trained 1", "[rank 1] trained 2", "launcher"} <= {*log}


def test_a_job_fails_and_names_the_first_cause(tmp_path: Path) -> None:
    script = "echo one; [ $RANK = 0 ] || exit 3; sleep 1234"
    done = finish(tmp_path, job(script), "--quiet", "--keep", "--name", "other")
    log = tmp_path / "out" / "other" / "logs" / "other-0-1.log"
    assert done.returncode == 1 and "one" not in done.stdout
    assert "other failed: " in done.stderr
    assert "first cause: rank 1, ExitCode: exited with code 3" in done.stderr
    assert f"log: {log}" in done.stderr and "one" in log.read_text()
    assert (tmp_path / "out" / "other" / "other-0-1").is_dir()


OWN_CODE = """
import os
from pack import net
print(f"size {net.SIZE}, {open('run.yaml').read()}, {os.path.samefile('.', os.environ['CODE'])}")
print(os.environ["DDPJOB_CODE_DIR"] == os.getcwd(), sorted(n for n in os.environ if "_CODE_" in n))
open("written", "w").close()
"""


@pytest.mark.deep
@pytest.mark.parametrize("named", [True, False])
def test_a_folder_with_code_is_used_as_it_is(tmp_path: Path, named: bool) -> None:
    code = tmp_path / "the code"
    (code / "pack").mkdir(parents=True)
    (code / "pack/net.py").write_text("SIZE = 4\n")
    (code / "run.yaml").write_text("lr: 0.1")
    (code / "below").mkdir()
    (code / "below/train.py").write_text(OWN_CODE)
    volumes = {"persistentVolumeClaim": {"claimName": "code"}}
    spec = {"volume": volumes, "path": "x.tar.gz", "sha256": "0" * 64, "mountPath": "/own"}
    content = job("", **({"code": spec} if named else {}))
    where = "/own/" if named else ""
    content["spec"] |= {"command": ["python3", f"{where}below/train.py"], "args": []}
    content["spec"]["env"] = [{"name": "CODE", "value": str(code)}]
    done = finish(tmp_path, content, "--code", str(code))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"; code in {code};" in done.stdout.splitlines()[0]
    assert "[node 0] size 4, lr: 0.1, True" in done.stdout
    assert "[node 0] True ['DDPJOB_CODE_DIR']" in done.stdout
    assert (code / "written").exists() and (code / "pack/net.py").exists()


@pytest.mark.deep
def test_what_a_dry_run_prints_is_run_with_its_code(tmp_path: Path) -> None:
    folder, place = tmp_path / "project", tmp_path / "elsewhere"
    folder.mkdir()
    place.mkdir()
    (folder / "lib.py").write_text("SIZE = 4\n")
    (folder / "train.py").write_text(
        "import lib, os, sys\nprint('size', lib.SIZE, sys.argv[1:])\nopen('written', 'w').close()\n"
    )
    base = [sys.executable, "-m", "ddpjob"]
    options: dict[str, Any] = {"env": environment(), "capture_output": True, "text": True}
    words = ["submit", "train.py", "--image", "any", "--nnodes", "2", "--dry-run", "--", "--lr"]
    printed = subprocess.run([*base, *words, "3e-4"], cwd=folder, **options, timeout=200)
    (place / "job.yaml").write_text(printed.stdout)
    done = subprocess.run([*base, "run", "job.yaml"], cwd=place, **options, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; code of the job file, unpacked for each node;" in done.stdout.splitlines()[0]
    assert "[node 0] size 4 ['--lr', '3e-4']" in done.stdout
    assert not (folder / "written").exists() and not (place / "written").exists()
    refused = [*base, "run", "job.yaml", "--code", "none"]
    done = subprocess.run(refused, cwd=place, **options, timeout=200)
    assert done.returncode == 2 and "spec.code: is an archive that is not in" in done.stderr


GPUS = 'echo "sees <$CUDA_VISIBLE_DEVICES>"; '


def seen(folder: Path, *, attempts: int = 1, nodes: int = 2) -> list[list[str]]:
    """What each node of each attempt has said of its devices."""
    logs = folder / "out" / "shell" / "logs"
    return [
        re.findall("<.*>", (logs / f"shell-{attempt}-{rank}.log").read_text())
        for attempt in range(attempts)
        for rank in range(nodes)
    ]


def test_as_json_each_change_line_and_note_is_an_object(tmp_path: Path) -> None:
    script = (
        "printf '\\033[31mred\\n'; [ $RANK = 1 ] || echo '{\"value\": [1]}' > $DDPJOB_RESULT_FILE"
    )
    done = finish(tmp_path, job(script), "-o", "json")
    assert done.returncode == 0 and done.stdout.isascii() and "\x1b" not in done.stdout
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {**FIRST, "line": "\x1b[31mred"} in records
    assert any(record.get("note", "").startswith("logs in ") for record in records)
    statuses = [record["status"] for record in records if "status" in record]
    assert statuses[-1]["state"] == "Succeeded"
    assert statuses[-1]["result"] == {"value": '{"value":[1]}', "sizeBytes": 13}


@pytest.mark.deep
def test_each_node_sees_gpus_of_its_own_and_a_restart_the_same(tmp_path: Path) -> None:
    limits = {"limits": {"nvidia.com/gpu": 2}}
    said = f"{tmp_path}/said-$DDPJOB_ATTEMPT"  # a restart ends who has not begun
    both = f"touch {said}-$RANK; until [ -e {said}-0 ] && [ -e {said}-1 ]; do sleep 0.05; done; "
    script = GPUS + both + "[ $DDPJOB_ATTEMPT = 1 ] || exit 3"
    policy = {"maxRestarts": 1, "restartStrategy": "Recreate"}
    spec = job(script, resources=limits, nprocPerNode=1, failurePolicy=policy)
    done = finish(tmp_path, spec, CUDA_VISIBLE_DEVICES="4,GPU-aa,MIG-bb,7,9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert seen(tmp_path, attempts=2) == [["<4,GPU-aa>"], ["<MIG-bb,7>"]] * 2
    (told,) = [line for line in done.stdout.splitlines() if "GPUs: " in line]
    assert told.endswith("GPUs: node 0 has 4,GPU-aa, node 1 has MIG-bb,7")


SECRET = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
RAISES = """
import os, sys, time

def second():
    raise ValueError("rank 1 has seen enough \\x1b[2J")

if os.environ["RANK"] == "1":
    second()
time.sleep(1 if os.environ["DDPJOB_ATTEMPT"] == "0" else 1234)
raise RuntimeError("Connection closed by peer")  # a node's noise
"""


def test_the_traceback_of_the_rank_that_failed_first_is_printed(tmp_path: Path) -> None:
    spec = {"command": ["python3", "-c"], "args": [RAISES], "failurePolicy": {"maxRestarts": 1}}
    done = finish(tmp_path, job("", **spec))
    assert done.returncode == 1, done.stdout + done.stderr
    *lines, last = done.stderr.splitlines()
    assert last == r"    ValueError: rank 1 has seen enough \x1b[2J"
    assert any(line.endswith("in second") for line in lines)
    assert "first cause: rank 1, Exception: ValueError: rank 1 has seen enough" in done.stderr
    told = done.stdout[done.stdout.index("shell restarts in place") :]
    assert "Traceback (most recent call last)" in told and "in second" in told
    assert "Connection closed" not in done.stderr and "\x1b" not in done.stderr + done.stdout


@pytest.mark.deep
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"launcher": "python", "command": [], "args": ["no.py"]}, "no script"),
        ({"launcher": "none", "command": ["no-such-program"]}, "cannot start 'no-such-program'"),
        ({"env": [SECRET]}, "env[TOKEN]: secretKeyRef is not read here"),
    ],
    ids=("script", "program", "secret"),
)
def test_what_cannot_be_launched_is_not_tried_four_times(
    tmp_path: Path, spec: dict[str, Any], words: str
) -> None:
    done = finish(tmp_path, job("", **{"failurePolicy": {}, **spec}), "--quiet")
    assert done.returncode == 1 and "Restarting" not in done.stdout
    assert words in done.stderr and "a restart would end the same way" in done.stderr


@pytest.mark.deep
@pytest.mark.parametrize("is_link", [False, True])
def test_data_that_the_user_has_put_into_a_volume_is_there(tmp_path: Path, is_link: bool) -> None:
    claim, elsewhere = tmp_path / "out" / "shell" / "volumes" / "meet", tmp_path / "data"
    claim.parent.mkdir(parents=True)
    (elsewhere if is_link else claim).mkdir()
    if is_link:
        claim.symlink_to(elsewhere)
    (claim / "samples").write_text("seven\n")
    done = finish(tmp_path, job("cat /meet/samples"))
    assert done.returncode == 0 and "[node 0] seven" in done.stdout
    assert (claim / "samples").read_text() == "seven\n"


def test_a_deadline_has_no_first_cause(tmp_path: Path) -> None:
    done = finish(tmp_path, job("sleep 1234", activeDeadlineSeconds=2), "--quiet")
    assert done.returncode == 1 and "activeDeadlineSeconds, 2" in done.stderr
    assert "first cause" not in done.stderr and "None" not in done.stderr
    assert f"logs: {tmp_path / 'out' / 'logs'}" in done.stderr.replace("/shell/", "/")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_stops_everything(tmp_path: Path, number: int, code: int) -> None:
    script = f"trap 'echo bye; exit 75' TERM; {MEET}; while :; do sleep 0.05; done"
    with running(tmp_path, job(script)) as process:
        process.send_signal(number)
    assert process.returncode == code
    for rank in "01":
        assert "bye" in (tmp_path / f"out/shell/logs/shell-0-{rank}.log").read_text()


def test_a_namespace_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    spec = job("true")
    spec["metadata"]["namespace"] = "../up"
    (tmp_path / "in").mkdir()
    done = finish(tmp_path / "in", spec)
    assert done.returncode == 2 and "metadata.namespace: must be" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "job.yaml"]


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    spec = job(STUBBORN, terminationGracePeriodSeconds=600)
    with running(tmp_path, spec, "--grace", "600") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout
        while "second signal kills" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130


def stop_reading(process: subprocess.Popen[str]) -> None:
    """Have nobody at the other end of the command's output."""
    assert process.stdout
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(descriptor, process.stdout.fileno())
    os.close(descriptor)


def test_when_nobody_reads_it_stops_everything(tmp_path: Path) -> None:
    with running(tmp_path, job("echo up; while sleep 0.05; do echo on; done")) as process:
        stop_reading(process)
    assert process.returncode == 128 + signal.SIGPIPE


SAVES = "trap 'sleep 1; touch /meet/saved-$RANK; exit' TERM"


def test_ctrl_c_that_ends_the_reader_too_lets_the_ranks_save(tmp_path: Path) -> None:
    """As behind `| tee`: that nobody reads any more is no second wish to stop."""
    spec = job(f"{SAVES}; {MEET}; while :; do sleep 0.05; done")
    meet = tmp_path / "out" / "shell" / "volumes" / "meet"
    with (tmp_path / "terminal").open("w+") as terminal:
        with running(tmp_path, spec, stderr=terminal.fileno()) as process:
            stop_reading(process)
            process.send_signal(signal.SIGINT)
        terminal.seek(0)
        assert "shell interrupted; logs in " in terminal.read()
    assert process.returncode == 130
    assert {path.name for path in meet.iterdir()} >= {"saved-0", "saved-1"}


def test_a_second_run_of_the_name_is_refused_while_the_first_lasts(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "shell"
    folder.mkdir(parents=True)
    with (folder / ".ddpjob-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = finish(tmp_path, job("true"))
    assert done.returncode == 2 and "metadata.name: a job of this name is running" in done.stderr


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "out" / "shell" / "src"
    theirs.mkdir(parents=True)
    done = finish(tmp_path, job("true"))
    assert done.returncode == 2 and "--directory" in done.stderr and theirs.exists()


def test_a_suspended_job_runs_here_because_nobody_could_resume_it(tmp_path: Path) -> None:
    done = finish(tmp_path, job("echo up", suspend=True))
    assert done.returncode == 0 and "up" in done.stdout
    assert "of no effect on this machine: image, suspend" in done.stdout


@pytest.mark.deep
def test_a_script_runs_in_its_folder_with_the_options_of_submit(tmp_path: Path) -> None:
    (tmp_path / "lib.py").write_text("def hello():\n    return 'hello'\n")
    (tmp_path / "train.py").write_text(
        "import os, sys\nfrom lib import hello\n"
        "print(hello(), sys.argv[1:], os.environ['LR'], os.environ['WORLD_SIZE'])\n"
    )
    for words in (["run", "train.py"], ["submit", "--local", "train.py"]):
        options = ("--env", "LR=3", "--nproc-per-node", "1", "--", "--epochs", "2")
        done = ddpjob(*words, *options, env=environment(), cwd=tmp_path)
        assert done.code == 0, done
        assert "[node 0] hello ['--epochs', '2'] 3 1" in done.out
        first = done.out.splitlines()[0]
        assert "train/logs; code in ." in first and "image" not in first
    assert (tmp_path / ".ddpjob" / "train" / "logs").is_dir()


def shown_job(**status: Any) -> Snapshot:
    return Snapshot({"metadata": {"name": "digits"}, "status": status})


def test_notes_are_made_printable_and_lines_of_the_job_keep_their_colours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    LineDisplay().note("digits restarts: boom\x1b[2J\nforged\u202e", "  log: there")
    LineDisplay().line(line_of("\x1b[31mred\x1b[0m"))
    text = capsys.readouterr().out
    assert r"digits restarts: boom\x1b[2J\nforged\u202e" in text and "  log: there" in text
    assert "\x1b[31mred\x1b[0m" in text


CONTROLS = (
    *("\x1bc", "\x9b2J", "\x1b\x1b[m[2J", "\x1b[1\x1b[mA", "\x1b]0;title\x07", "\u202eabc"),
    *("\x1b]52;c;eA==\x07\x1b[2J", "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "\x1bP+q\x1b\\"),
    *("\x1b[" + "1;" * 40 + "m", "\x1b[31", "\x1b[2;3H", "\x08\x08", "\x0b", "\u2028", "\x1b(0"),
)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_line_of_the_job_controls_no_terminal(
    control: str, capsys: pytest.CaptureFixture[str]
) -> None:
    LineDisplay().line(line_of(f"a\t\x1b[1;31mred {control} end"))
    text = capsys.readouterr().out
    left = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert left.startswith("[node 0] a") and left.endswith("end\n")
    assert left[:-1].replace("\t", "").isprintable(), ascii(text)
    assert "\x1b[1;31mred" in text and text.endswith("\x1b[0m\n")


def test_each_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LineDisplay()
    for why in ("Invalid: a\x1b[2J", "Invalid: b"):
        shown.job(shown_job(summary={"nodes": "0/2", "reason": why}))
    for step in ("1/9", "2/9"):  # progress alone comes now and then only
        shown.job(shown_job(state="Running", summary={"nodes": "2/2", "step": step}))
    shown.job(shown_job(state="Succeeded", summary={"nodes": "2/2", "step": "9/9"}))
    assert capsys.readouterr().out.splitlines() == [
        "digits  Pending  nodes 0/2  restarts 0  Invalid: a\\x1b[2J",
        "digits  Pending  nodes 0/2  restarts 0  Invalid: b",
        "digits  Running  nodes 2/2  step 1/9  restarts 0",
        "digits  Succeeded  nodes 2/2  step 9/9  restarts 0",
    ]
