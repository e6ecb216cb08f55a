"""Counts optimizer steps in a page of memory that the agent reads as a file, at any time.

Beside sitecustomize.py in the pod, which loads it when a script imports torch's optimizers. The
page outlives its process, so the count is exact after a SIGKILL too; a step costs no system call.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

# "DDPJOB1". It and the places of the numbers in a page are as in progress.py.
MAGIC = 0x31424F4A504444
STEP, RANK, LOCAL_RANK, OTHERS = 1, 2, 3, 4
PAGE_BYTES = 4096


class StepCounter:
    """Counts optimizer steps; of several optimizers it shows the one that stepped most often."""

    def __init__(self, folder: str, ranks: dict[str, int | None]) -> None:
        self.folder = folder
        self.ranks = {name: -1 if rank is None else rank for name, rank in ranks.items()}
        self.forget()

    def forget(self) -> None:
        """Begin at 0; also in a forked child, whose parent's steps and page are not its own."""
        self.counts: dict[int, int] = {}  # of optimizers, by id; the leader's is `step`
        self.leader = 0
        self.step = 0
        self.page: Any = None  # integers of eight bytes, each written by one store

    def after_step(self, optimizer: object, args: object, kwargs: object) -> None:
        """Torch calls this after each optimizer step; less than 0.2 µs. `__call__` is slower."""
        if id(optimizer) == self.leader:
            self.step = self.page[STEP] = self.step + 1
        else:
            self.count(id(optimizer))

    def count(self, key: int) -> None:
        """Count a step of an optimizer that does not lead; perhaps it does now."""
        count = self.counts[key] = self.counts.get(key, 0) + 1
        if count > self.step:
            if not self.step:
                self.open()
            self.counts[self.leader] = self.step
            self.leader = key
            self.step = self.page[STEP] = count
        else:
            self.page[OTHERS] += 1  # shown nowhere, but a sign of life

    def open(self) -> None:
        """Begin this process's page; in memory of its own where no file can be made."""
        path = os.path.join(self.folder, f"steps-{os.getpid()}.page")
        try:
            memory: Any = shared_page(path)
        except Exception:
            memory = bytearray(PAGE_BYTES)
        self.page = memoryview(memory).cast("q")
        self.page[RANK], self.page[LOCAL_RANK] = self.ranks["rank"], self.ranks["local_rank"]
        self.page[0] = MAGIC


def shared_page(path: str) -> Any:
    """A new file's bytes in memory. Raises OSError and leaves no file where that fails.

    The bytes are written before they are mapped: a store to a hole would end the script with SIGBUS
    on a full disk.
    """
    if os.path.lexists(path):
        os.unlink(path)  # of an earlier process with this pid
    with open(path, "xb+", buffering=0) as file:
        try:
            if file.write(bytes(PAGE_BYTES)) != PAGE_BYTES:
                raise OSError(errno.ENOSPC, "no room for a page")
            page = mmap.mmap(file.fileno(), PAGE_BYTES)
        except BaseException:
            os.unlink(path)
            raise
    # It is never taken apart, which would close its descriptor: the script may have done that, and
    # used the number again.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(page))
    return page
