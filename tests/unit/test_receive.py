"""The program in a pod that takes an archive for a claim, as `python3 -c` runs it."""

import ast
import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpjob.client import receive

CONTENT = b"an archive"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def run(
    path: Path, sent: bytes = CONTENT, before: Callable[[], None] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    program = Path(receive.__file__).read_text()
    command = [sys.executable, "-c", program, str(path), str(len(CONTENT)), SHA256]
    return subprocess.run(command, input=sent, capture_output=True, timeout=200, preexec_fn=before)


def test_what_is_sent_is_kept_and_taken_once(tmp_path: Path) -> None:
    first = run(tmp_path / "archive")
    assert (first.returncode, first.stdout) == (0, b"send\nkept\n")
    assert (tmp_path / "archive").read_bytes() == CONTENT
    assert run(tmp_path / "archive").stdout == b"have\n"
    assert os.listdir(tmp_path) == ["archive"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [(b"an arch", b"the connection was cut"), (b"an archivE", b"other bytes have come")],
)
def test_nothing_else_is_kept(tmp_path: Path, sent: bytes, words: bytes) -> None:
    ended = run(tmp_path / "archive", sent)
    assert ended.returncode == 1 and words in ended.stderr and not os.listdir(tmp_path)


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path) -> None:
    def few_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))

    ended = run(tmp_path / "archive", before=few_bytes)
    assert ended.returncode == 1 and b"File too large" in ended.stderr
    assert ended.stdout == b"send\n" and not os.listdir(tmp_path)
    (tmp_path / "archive" / "within").mkdir(parents=True)
    ended = run(tmp_path / "archive")
    assert ended.returncode == 1 and b"IsADirectoryError" in ended.stderr
    assert os.listdir(tmp_path) == ["archive"]
    ended = run(tmp_path / "gone" / "archive")
    assert ended.returncode == 1 and ended.stderr.count(b"No such file") == 1


def test_it_runs_in_any_image() -> None:
    tree = ast.parse(Path(receive.__file__).read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    words = {word for node in imports for word in ast.unparse(node).split()}
    assert words == {"import", "from", "hashlib", "os", "sys", "contextlib", "suppress"}


@pytest.mark.parametrize(
    "occupy", [os.mkfifo, lambda path: path.write_bytes(b"old"), lambda path: path.symlink_to(path)]
)
def test_what_others_have_put_there_is_replaced(
    tmp_path: Path, occupy: Callable[[Path], object]
) -> None:
    occupy(tmp_path / "archive")
    assert run(tmp_path / "archive").stdout == b"send\nkept\n"
    assert (tmp_path / "archive").read_bytes() == CONTENT
