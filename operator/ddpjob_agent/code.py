"""Lays the job's own code down before each start: an archive, in parts or in a volume."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from typing import TYPE_CHECKING

from ddpjob_agent.archive import ARCHIVE_BYTES, CodeError, unpack
from ddpjob_agent.config import USER_ERROR, Config, say
from ddpjob_agent.failures.failures import Failure
from ddpjob_agent.failures.verdict import Verdict
from ddpjob_agent.records import read_text

if TYPE_CHECKING:
    from typing import Callable, Sequence  # noqa: UP035 - Python 3.8

# What the kernel escapes in /proc/self/mountinfo.
ESCAPES = {ord(character): f"\\{ord(character):03o}" for character in " \t\n\\"}


def lay_down(config: Config, tell: Callable[[str], None] = say) -> Verdict | None:
    """Put the job's code into its folder, and go there. The verdict where that fails, else None.

    `tell` gets a line about it. Nothing of an earlier round is left in the folder. Without parts it
    has the code already.
    """
    folder = config.code_dir
    try:
        if config.code_parts:
            archive = read_parts(config.code_parts)
            found, expected = hashlib.sha256(archive).hexdigest(), config.code_sha256
            if found != expected:
                raise CodeError(f"its sha256 is {found}, and spec.code.sha256 is {expected}")
            empty(folder)
            files = unpack(archive, folder)
            tell(f"code {config.code_sha256[:12]} is in {folder}: {files} files")
        if folder:
            os.chdir(folder)
    except CodeError as problem:
        return invalid(f"the archive of spec.code is refused: {problem}")
    except OSError as problem:
        return invalid(f"the code cannot be unpacked: {problem}", type(problem).__name__)
    return None


def invalid(message: str, exception: str | None = None) -> Verdict:
    """The verdict on code that cannot be used; with an exception, another pod may do better."""
    return Verdict("CodeInvalid", USER_ERROR, Failure(message, time.time(), exception=exception))


def read_parts(paths: Sequence[str]) -> bytes:
    """The archive, whose parts these files are. Raises CodeError, OSError."""
    archive = b""
    for path in paths:
        try:
            with open(path, "rb") as file:
                archive += file.read(ARCHIVE_BYTES + 1 - len(archive))
        except FileNotFoundError:
            of = "no such ConfigMap or volume, or nothing of that name in it"
            raise FileNotFoundError(f"{path} is missing: {of}") from None
        if len(archive) > ARCHIVE_BYTES:
            raise CodeError(f"it has more than {ARCHIVE_BYTES // 2**20} MiB")
    return archive


def empty(folder: str) -> None:
    """Delete what is in a folder, but nothing of a volume that is mounted in it. Raises OSError."""
    below = os.path.realpath(folder).translate(ESCAPES) + "/"
    for line in read_text("/proc/self/mountinfo").splitlines():
        if line.split(" ")[4].startswith(below):
            raise OSError(f"{line.split(' ')[4]} is mounted in {folder}, which is emptied")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
