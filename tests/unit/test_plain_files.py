"""A file of somebody else's folder is opened, and nothing that only stands in its place."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpjob.code.plain_files import NotPlain, open_plain


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = Path(os.path.realpath(tmp_path))
    (path / "a/b").mkdir(parents=True)
    (path / "a/b/file").write_text("content")
    return path


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # its whole path may be too long
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


OTHERS: dict[str, Callable[[Path], None]] = {
    "link": lambda path: path.symlink_to("b/file"),
    "link to nothing": lambda path: path.symlink_to("absent"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "socket": _socket,
}


def opened() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_file_is_opened(folder: Path) -> None:
    before = opened()
    with open_plain(folder / "a/b/file") as file:
        assert file.read() == b"content"
    assert opened() == before


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", OTHERS)
def test_nothing_else_is_opened(folder: Path, kind: str) -> None:
    OTHERS[kind](folder / "a/other")
    before = opened()
    with pytest.raises(NotPlain):
        open_plain(folder / "a/other")
    assert opened() == before


def test_neither_is_a_device() -> None:
    with pytest.raises(NotPlain):
        open_plain(Path("/dev/null"))


@pytest.mark.parametrize("target", ["a", "absent"])
def test_no_link_above_a_file_is_followed(folder: Path, target: str) -> None:
    (folder / "link").symlink_to(target)
    before = opened()
    with pytest.raises(NotPlain):
        open_plain(folder / "link/b/file")
    assert opened() == before


def test_what_is_not_there_is_said(folder: Path) -> None:
    for path in ("absent", "absent/file", "a/absent/file"):
        with pytest.raises(FileNotFoundError):
            open_plain(folder / path)


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this system asks for the right to list")
def test_a_folder_that_cannot_be_listed_is_gone_through(folder: Path) -> None:
    (folder / "a").chmod(0o100)
    with open_plain(folder / "a/b/file") as file:
        assert file.read() == b"content"
    (folder / "a").chmod(0o700)
