"""How the program of a node is started, in a DDPJob's words."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddpjob.convert.options import Option

Launcher = Literal["torchrun", "accelerate", "python", "none"]

_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?", re.ASCII)
_TORCHRUN = re.compile(r"torchrun|torch\.distributed\.(run|launch)\b")


@dataclass(frozen=True)
class Program:
    """The launcher, command and arguments of a DDPJob, and what its command line has asked for."""

    launcher: Launcher
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    nproc: str = ""
    """Processes on each node, as the command line has them: a number, `auto`, `cpu` or `gpu`."""
    total: int | None = None
    """Processes on all nodes together, as the command line has them."""
    max_restarts: int | None = None
    """Restarts of the workers, as the command line has them."""

    @property
    def is_one_process(self) -> bool:
        """Return whether the program is one process on each node, whatever the job wants."""
        is_python = bool(self.command) and is_python_name(self.command[0])
        return self.launcher == "python" or is_python and not self.starts_workers

    @property
    def starts_workers(self) -> bool:
        """Return whether the program starts several processes on a node, if the job wants them."""
        if self.launcher in ("torchrun", "accelerate"):
            return True
        return bool(_TORCHRUN.search(" ".join((*self.command, *self.args))))


def is_python_name(word: str) -> bool:
    """Return whether the program's name is Python's, such as `/usr/bin/python3.11`."""
    return bool(_PYTHON.fullmatch(posixpath.basename(word)))


def number(text: str) -> int | None:
    """Return the number that `text` is, or None."""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else None


def spelled(options: Sequence[Option], names: frozenset[str]) -> str:
    """Return these options as they are written, without their values; empty if there is none."""
    return ", ".join(
        option.words[0].partition("=")[0] for option in options if option.name in names
    )
