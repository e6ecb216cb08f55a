"""Sees when the script has saved, by what changes below the folder of its checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from typing import Callable  # noqa: UP035 - Python 3.8

# Between two looks. A save is over when nothing has changed from one to the next, nor for half of
# the time that it has taken, up to so long. What goes on for longer than a minute is no save alone.
LOOK_SECONDS, MOST_QUIET_SECONDS, MOST_SECONDS = 0.3, 3.0, 60.0
# A look takes this part of the time at most.
LOOK_PART = 0.1
# So many files are looked at in each folder, in so many folders of a level: those changed last.
MOST_FILES, MOST_FOLDERS, LEVELS = 512, 4, 4


def watch(folder: str, matters: Callable[[], bool], on_save: Callable[[], None]) -> None:
    """Call `on_save` after each save while it `matters`, if the job has such a folder."""

    def run() -> None:
        save, took = Save(), 0.0
        while True:
            time.sleep(max(LOOK_SECONDS, took / LOOK_PART))
            began = time.monotonic()
            found = look(folder) if matters() else None
            took = time.monotonic() - began
            if save.is_over(found, began):
                on_save()

    if folder:
        threading.Thread(target=run, daemon=True, name="saves").start()


class Save:
    """Whether one is under way, by what is seen of the files."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] | None = None
        self.began = self.changed = 0.0  # of the one under way, if they are not 0

    def is_over(self, found: list[tuple[int, int]] | None, now: float) -> bool:
        """Take in what a look has found, None without one; whether a save has just ended."""
        is_known, has_changed = None not in (self.seen, found), self.seen != found
        self.seen = found
        if not is_known:
            self.began = 0.0
        elif has_changed:
            self.began, self.changed = self.began or now, now
        elif self.began and now - self.changed >= self.quiet():
            self.began = 0.0
            return True
        return False

    def quiet(self) -> float:
        """For how long nothing is to change until the save is over, in seconds."""
        took = self.changed - self.began
        return min(took / 2, MOST_QUIET_SECONDS) if took < MOST_SECONDS else 0.0


def look(folder: str) -> list[tuple[int, int]]:
    """The times and sizes of the folder, of what is in it, and in those changed last below it."""
    found, folders = [], [folder]
    with contextlib.suppress(OSError):
        found.append(_stat(os.stat(folder)))
    for _ in range(LEVELS):
        below = []
        for entry in itertools.chain.from_iterable(map(_entries, folders)):
            with contextlib.suppress(OSError):  # it has just been removed
                found.append(_stat(entry.stat()))
                if entry.is_dir():
                    below.append((found[-1][0], entry.path))
        folders = [path for _, path in sorted(below)[-MOST_FOLDERS:]]
    return sorted(found)


def _stat(found: os.stat_result) -> tuple[int, int]:
    return found.st_mtime_ns, found.st_size


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(itertools.islice(entries, MOST_FILES))
    return []
