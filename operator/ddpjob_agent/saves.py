"""Sees when the script has saved, by what changes below the folder of its checkpoints."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from itertools import islice
from typing import Callable  # noqa: UP035 - Python 3.8

# Between two looks. A save is over when nothing has changed from one to the next.
LOOK_SECONDS = 0.3
# So many files are looked at in each folder.
MOST_FILES, MOST_FOLDERS = 512, 4


def watch(folder: str, matters: Callable[[], bool], on_save: Callable[[], None]) -> None:
    """Call `on_save` after each save while it `matters`, if the job has such a folder."""

    def run() -> None:
        seen, is_open = None, False
        while True:
            time.sleep(LOOK_SECONDS)
            now = look(folder) if matters() else None
            was_open, is_open = is_open, None not in (seen, now) and now != seen
            if was_open and now == seen is not None:
                on_save()
            seen = now

    if folder:
        threading.Thread(target=run, daemon=True, name="saves").start()


def look(folder: str) -> list[tuple[int, int]]:
    """The times and sizes of the folder, of what is in it, and in those changed last below it."""
    found, folders = [], []
    with contextlib.suppress(OSError):
        found.append(_stat(os.stat(folder)))
    for entry in _entries(folder):
        with contextlib.suppress(OSError):  # it has just been removed
            found.append(_stat(entry.stat()))
            if entry.is_dir():
                folders.append((found[-1][0], entry.path))
    for _, path in sorted(folders)[-MOST_FOLDERS:]:
        for entry in _entries(path):
            with contextlib.suppress(OSError):
                found.append(_stat(entry.stat()))
    return sorted(found)


def _stat(found: os.stat_result) -> tuple[int, int]:
    return found.st_mtime_ns, found.st_size


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(islice(entries, MOST_FILES))
    return []
