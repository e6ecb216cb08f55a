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
# So many files are looked at, and so many of each folder in that of the checkpoints.
MOST_FILES = 512


def watch(folder: str, on_save: Callable[[], None]) -> None:
    """Call `on_save` after each save from now on, if the job has such a folder."""

    def run() -> None:
        seen, is_open = look(folder), False
        while True:
            time.sleep(LOOK_SECONDS)
            now = look(folder)
            was_open, is_open, seen = is_open, now != seen, now
            if was_open and not is_open:
                on_save()

    if folder:
        threading.Thread(target=run, daemon=True, name="saves").start()


def look(folder: str) -> tuple[int, int]:
    """The newest change of a file in the folder or below its folders, and the size of all."""
    newest = size = 0
    for entry in _files(folder):
        with contextlib.suppress(OSError):  # it has just been removed
            found = entry.stat()
            newest, size = max(newest, found.st_mtime_ns), size + found.st_size
            for file in _files(entry.path) if entry.is_dir() else ():
                found = file.stat()
                newest, size = max(newest, found.st_mtime_ns), size + found.st_size
    return newest, size


def _files(folder: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(islice(entries, MOST_FILES))
    return []
