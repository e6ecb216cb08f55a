"""What `ps` and /proc show of a forked process: its own command and environment."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any, Mapping, Sequence  # noqa: UP035 - Python 3.8

from ddpjob_agent.config import say
from ddpjob_agent.processes import LIBC, stat_words

# Linux' prctl: where the kernel finds a process's words and its environment.
PR_SET_MM, PR_SET_MM_MAP = 35, 14
# What the kernel reads for as long as this process lives.
KEPT: list[Any] = []


def show_words(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Have `ps` and /proc show this command and this environment, not the fork server's."""
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    text = words + b"".join(os.fsencode(f"{name}={env[name]}") + b"\0" for name in env)
    if not move_words(words, text):
        say("ps shows the fork server's command for its processes")


def move_words(words: bytes, text: bytes) -> bool:
    """Show the kernel another place for both: `text` begins with `words`.

    Linux allows it without any right where it has CONFIG_CHECKPOINT_RESTORE, as distributions do.
    """
    # Each at its place in proc(5)'s list.
    stat = [0, 0, 0, 0, *map(int, stat_words("self")[1:])]
    if LIBC is None:
        return False
    LIBC.sbrk.restype = ctypes.c_void_p
    KEPT.append(ctypes.create_string_buffer(text, len(text)))
    begin = ctypes.addressof(KEPT[-1])
    middle, end = begin + len(words), begin + len(text)
    # struct prctl_mm_map: code, data, heap, stack, words, environment; no auxv, no other program
    places = *stat[26:28], *stat[45:48], LIBC.sbrk(0), stat[28], begin, middle, middle, end, 0
    content = struct.pack("=12QIi", *places, 0, -1)
    size = ctypes.c_ulong(len(content))
    failed: int = LIBC.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.c_char_p(content), size, 0)
    return failed == 0
