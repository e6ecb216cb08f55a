"""Saves of files in a folder that is watched."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from ddpjob.code import saves
from ddpjob.code.archive import CodeArchive, pack
from ddpjob.code.saves import Saves
from ddpjob.errors import DDPJobError, InvalidJob, Unavailable
from tests.repositories import commit, write

SECONDS = 200.0


class Watched:
    """A project that is watched, and what comes of that."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_away = folder, False
        self.looks, self.sent = Queue[CodeArchive](), Queue[CodeArchive]()
        self.told = Queue[DDPJobError]()

    def save(self, text: str, name: str = "train.py") -> None:
        """Save a file at once, as editors do."""
        new = self.folder.parent / "new"
        new.write_text(text)
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        new.replace(self.folder / name)

    def look(self, folder: Path, names: tuple[str, ...]) -> CodeArchive:
        found = pack(folder, names=names)
        self.looks.put(found)
        return found

    def send(self, archive: CodeArchive) -> None:
        if self.is_away:
            raise Unavailable(503, "", "away")
        self.sent.put(archive)

    def has_sent(self) -> bool:
        """Whether the next archive that comes is that of the folder as it is now."""
        return self.sent.get(timeout=SECONDS) == pack(self.folder)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A repository that is watched, once a save that is older than the watch has been sent."""
    watched, is_over = Watched(tmp_path / "project"), threading.Event()
    monkeypatch.setattr(saves, "pack", watched.look)
    write(watched.folder, **{"train.py": "before", "__pycache__/a.pyc": "", ".ddpjob/a.log": ""})
    known = Saves(watched.folder, (), pack(commit(watched.folder)))
    watched.save("meanwhile")
    arguments = (watched.send, watched.told.put, is_over)
    thread = threading.Thread(target=known.send, args=arguments)
    thread.start()
    try:
        assert watched.has_sent() and watched.looks.get()
        yield watched
    finally:
        is_over.set()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert watched.sent.empty() and watched.told.empty()


def test_what_is_saved_is_sent_and_the_same_files_never_again(watched: Watched) -> None:
    watched.save("meanwhile")
    watched.looks.get(timeout=SECONDS)
    watched.save("SIZE = 4", "pack/net.py")
    assert watched.has_sent()


def test_of_many_saves_the_last_is_sent(watched: Watched) -> None:
    for number in range(20):
        watched.save(str(number))
        if number % 4 == 0:
            watched.looks.get(timeout=SECONDS)
    while not watched.has_sent():
        pass


def test_a_save_that_cannot_be_sent_is_told_and_tried_again_with_the_next(watched: Watched) -> None:
    watched.is_away = True
    watched.save("after")
    assert isinstance(watched.told.get(timeout=SECONDS), Unavailable)
    watched.is_away = False
    watched.save("after")
    assert watched.has_sent()
    watched.save("KEY=1", ".env")
    assert isinstance(watched.told.get(timeout=SECONDS), InvalidJob)
    (watched.folder / ".env").unlink()
    watched.save("last")
    assert watched.has_sent()


def test_what_is_never_sent_is_no_change(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_send = Queue[Path](), Saves.may_send

    def ask(self: Saves, path: Path) -> bool:
        asked.put(path)
        return may_send(self, path)

    monkeypatch.setattr(Saves, "may_send", ask)
    for name in (".git/HEAD.lock", "__pycache__/a.pyc", ".ddpjob/a.log"):
        watched.save("x", name)
        while asked.get(timeout=SECONDS) != watched.folder / name:
            pass
    assert watched.looks.empty()
    watched.save("after")
    assert watched.has_sent()


def test_packing_changes_nothing_in_a_repository(tmp_path: Path) -> None:
    write(tmp_path, **{"train.py": "1"})
    index = commit(tmp_path) / ".git/index"
    os.utime(tmp_path / "train.py", (1, 1))
    before = index.read_bytes()
    assert not pack(tmp_path).is_dirty
    assert index.read_bytes() == before


def test_a_folder_that_cannot_be_watched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Iterator[None]:
        raise OSError("OS file watch limit reached")
        yield

    monkeypatch.setattr("watchfiles.watch", refuse)
    write(tmp_path, **{"train.py": "1"})
    with pytest.raises(InvalidJob, match="cannot be watched: OS file watch limit"):
        Saves(tmp_path, (), pack(tmp_path)).send(print, print, threading.Event())
