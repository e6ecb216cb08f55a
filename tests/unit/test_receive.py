"""The program in a pod that takes an archive for a claim, as `python3 -c` runs it."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpjob.client import receive

CONTENT = b"an archive"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def run(path: Path, sent: bytes = CONTENT) -> "subprocess.CompletedProcess[bytes]":
    program = Path(receive.__file__).read_text()
    command = [sys.executable, "-c", program, str(path), str(len(CONTENT)), SHA256]
    return subprocess.run(command, input=sent, capture_output=True, timeout=20)


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


@pytest.mark.parametrize(
    "occupy", [os.mkfifo, lambda path: path.write_bytes(b"old"), lambda path: path.symlink_to(path)]
)
def test_what_others_have_put_there_is_replaced(
    tmp_path: Path, occupy: Callable[[Path], object]
) -> None:
    occupy(tmp_path / "archive")
    assert run(tmp_path / "archive").stdout == b"send\nkept\n"
    assert (tmp_path / "archive").read_bytes() == CONTENT
