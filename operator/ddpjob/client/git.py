"""Asks git which files of a folder belong to a project, and in which state that is."""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ddpjob.text import printable

# Bytes of git's answer: paths of many more files than a job may have.
MAX_ANSWER = 32 * 2**20
# What tells git of another repository, as it does in git's own hooks.
_ELSEWHERE = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
)


class GitError(Exception):
    """Why git does not answer, in its own words, made printable."""


@dataclass(frozen=True)
class Revision:
    """The commit of a folder, and whether its files differ from that."""

    commit: str | None
    """None before the first commit."""
    is_dirty: bool


def is_repository(folder: Path) -> bool:
    """Return whether the folder, or one above it, looks like a git repository's."""
    return any((above / ".git").exists() for above in (folder, *folder.parents))


def paths(folder: Path) -> list[str]:
    """Return the paths of all files that git tracks, or would: those of the folder, from there.

    They may no longer exist. Another repository within, a submodule too, is a path of its own,
    without its files. Raises GitError.
    """
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({os.fsdecode(path) for path in _ask(folder, *words).split(b"\0") if path})


def revision(folder: Path) -> Revision:
    """Return the folder's commit. Raises GitError."""
    status = _ask(folder, "status", "--porcelain", "-z", "--", ".")
    try:
        commit = _ask(folder, "rev-parse", "--verify", "--quiet", "HEAD").decode("ascii", "replace")
    except GitError:
        commit = ""
    return Revision(printable(commit.strip(), 64) or None, bool(status))


def _ask(folder: Path, *words: str) -> bytes:
    """Return git's answer. Raises GitError."""
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", "-c", "core.fsmonitor=false", *words]  # which would start a program
    with tempfile.TemporaryFile() as errors:  # a pipe could fill up, and hold git up
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        except OSError as error:
            raise GitError(f"git cannot be started: {error.strerror}") from None
        with process:
            assert process.stdout is not None
            answer: bytes = process.stdout.read(MAX_ANSWER + 1)
            if len(answer) > MAX_ANSWER:
                process.kill()
                raise GitError("git lists more files than are read")
        errors.seek(0)
        problem = errors.read(4096).decode(errors="replace")
    if process.returncode:
        first = next(iter(problem.splitlines()), f"exit code {process.returncode}")
        raise GitError(f"git: {printable(first, 300)}")
    return answer
