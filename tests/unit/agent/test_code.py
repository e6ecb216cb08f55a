"""A job's own code in a pod: agents as processes that unpack it and start a command there."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_agent.code import CodeError, empty, read_parts
from tests import agentpod
from tests.agentpod import Pod, Pods
from tests.unit.agent.archives import HOSTILE, packed
from tests.unit.agent.scripts import interpreter

TRAIN = """
import os, sys
from pack import net
print("size", net.SIZE, open("config/run.yaml").read().strip())
print("at", os.getcwd() == os.environ["DDPJOB_CODE_DIR"], sys.argv[1:])
print("path", [p for p in sys.path if "hooks" not in p][:2] == [os.getcwd()] * 2, sys.path[-1])
"""
FILES = {
    "train.py": TRAIN.encode(),
    "pack/__init__.py": b"",
    "pack/net.py": b"SIZE = 4\n",
    "config/run.yaml": b"lr: 0.1\n",
}


def start(
    pods: Pods,
    archive: bytes,
    *words: str,
    sha256: str = "",
    parts: int = 1,
    missing: int | None = None,
    python: str = sys.executable,
    **changes: str,
) -> Pod:
    """A pod whose code is this archive, in so many parts; it runs `words`, else train.py."""
    root = pods.root / f"pod-{len(pods.started)}"
    (root / "src").mkdir(parents=True, exist_ok=True)
    files, size = [], -(-len(archive) // parts)
    for part in range(parts):
        files.append(root / f"ddpjob-code-{part}/code.tar.gz")
        if part != missing:
            files[-1].parent.mkdir()
            files[-1].write_bytes(archive[part * size : (part + 1) * size])
    variables = {
        "DDPJOB_CODE_DIR": str(root / "src"),
        "DDPJOB_CODE_PARTS": ":".join(map(str, files)),
        "DDPJOB_CODE_SHA256": sha256 or hashlib.sha256(archive).hexdigest(),
    }
    command = words or (sys.executable, "train.py", "--lr", "1")
    return pods.start("command", "--", *command, python=python, changes=variables | changes)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_command_runs_in_its_own_code(pods: Pods, parts: int) -> None:
    pod = start(pods, packed(FILES), parts=parts, PYTHONPATH="/of/the/image")
    assert pod.wait() == 0, pod.log
    assert "size 4 lr: 0.1\n" in pod.log
    assert "at True ['--lr', '1']\n" in pod.log
    assert "path True" in pod.log
    source = pod.folder / "src"
    assert f"ddpjob-agent: code {pod_sum(pod)[:12]} is in {source}: 4 files\n" in pod.log


def pod_sum(pod: Pod) -> str:
    parts = sorted(pod.folder.glob("ddpjob-code-*/code.tar.gz"))
    return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()


def test_a_module_below_another_folder_finds_the_code(pods: Pods) -> None:
    files = {**FILES, "scripts/run.py": TRAIN.encode()}
    pod = start(pods, packed(files), sys.executable, "scripts/run.py")
    assert pod.wait() == 0, pod.log
    assert "size 4 lr: 0.1\n" in pod.log


def test_nothing_else_is_in_the_folder(pods: Pods) -> None:
    left = pods.root / "pod-0/src/left/pack"
    left.mkdir(parents=True)
    pod = start(pods, packed(FILES), sys.executable, "-c", "import os; print(sorted(os.listdir()))")
    assert pod.wait() == 0
    assert "['config', 'pack', 'train.py']\n" in pod.log


@pytest.mark.deep
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_older_and_newer_pythons_unpack_the_same(pods: Pods, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    pod = start(pods, packed(FILES), python, "train.py", python=python)
    assert pod.wait() == 0 and "size 4 lr: 0.1\n" in pod.log, pod.log


# ---- Refused


def refusal(pod: Pod) -> tuple[str, str | None]:
    """Why a pod has refused its code, after the same has been written into its log."""
    assert pod.wait() == 1, pod.log
    summary = pod.summary
    assert (summary["reason"], summary["peer"], summary["rank"]) == ("CodeInvalid", False, None)
    assert f"ddpjob-agent: CodeInvalid: {summary['message']}\n" in pod.log
    assert "ran" not in pod.log
    return summary["message"], summary["exception"]


RAN = (sys.executable, "-c", "print('ran')")


def test_another_archive_is_refused(pods: Pods) -> None:
    archive, other = packed(FILES), "0" * 64
    message, exception = refusal(start(pods, archive, *RAN, sha256=other))
    found = hashlib.sha256(archive).hexdigest()
    words = f"its sha256 is {found}, and spec.code.sha256 is {other}"
    assert (message, exception) == (f"the archive of spec.code is refused: {words}", None)
    assert not [*(pods.started[0].folder / "src").iterdir()]


@pytest.mark.parametrize("kind", ["symbolic link", "line feed"])
def test_a_hostile_archive_is_refused(pods: Pods, kind: str) -> None:
    content, words = HOSTILE[kind]
    message, exception = refusal(start(pods, gzip.compress(content), *RAN))
    assert message.startswith(f"the archive of spec.code is refused: {words}")
    assert exception is None


def test_a_missing_part_is_named_and_another_pod_may_have_it(pods: Pods) -> None:
    message, exception = refusal(start(pods, packed(FILES), *RAN, parts=3, missing=1))
    path = pods.started[0].folder / "ddpjob-code-1/code.tar.gz"
    assert message.startswith(f"the code cannot be unpacked: {path} is missing: no such ConfigMap")
    assert exception == "FileNotFoundError"


def test_a_file_without_end_in_its_place_holds_nothing_up(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(CodeError, match="it has more than 64 MiB"):
        read_parts([str(tmp_path / "large")])


# ---- Leftovers


def test_the_folder_is_emptied_whatever_a_round_has_left(tmp_path: Path) -> None:
    folder, outside = tmp_path / "src", tmp_path / "outside"
    (folder / "a/b").mkdir(parents=True)
    outside.mkdir()
    outside.chmod(0o750)
    (outside / "data").write_text("kept")
    (folder / "file").touch()
    (folder / "a/b/file").touch(0o000)
    (folder / "to").symlink_to(outside)
    (folder / "a/to").symlink_to(outside)
    (folder / "broken").symlink_to("nowhere")
    os.link(outside / "data", folder / "hard")
    os.mkfifo(folder / "fifo")
    empty(str(folder))
    assert [*folder.iterdir()] == []
    assert (outside / "data").read_text() == "kept"
    assert outside.stat().st_mode & 0o777 == 0o750


def test_nothing_is_deleted_where_a_volume_is_mounted_below(tmp_path: Path) -> None:
    folder, volume = tmp_path / "the src", tmp_path / "volume"
    (folder / "data").mkdir(parents=True)
    volume.mkdir()
    (volume / "precious").touch()
    script = "mount --bind '{}' '{}' && exec '{}' -c '{}'".format(
        volume,
        folder / "data",
        sys.executable,
        f'from ddpjob_agent.code import empty; empty("{folder}")',
    )
    root = Path(agentpod.SOURCES).parent
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, cwd=root)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if "ddpjob_agent" not in ended.stderr:
        pytest.skip(f"nothing can be mounted here: {ended.stderr}")
    assert "is mounted in" in ended.stderr
    assert (volume / "precious").exists()
