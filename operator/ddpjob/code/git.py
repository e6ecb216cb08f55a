"""Asks git which files of a folder belong to a project, and in which state that is.

A folder's configuration names programs that git would start. The folder may be somebody else's,
and is to be sent, so here git starts none of them.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddpjob.code.ignore import NEVER
from ddpjob.text import printable

# Bytes of git's answer: paths of many more files than a job may have.
MAX_ANSWER = 32 * 2**20
# Seconds for an answer. Git waits for ever for a fifo in the place of a file that it reads.
MAX_SECONDS = 60.0
# What tells git of another repository, as it does in git's own hooks.
_ELSEWHERE = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
)
# Git fetches objects that are missing, by a program that the remote's settings name; no protocol
# is allowed for that.
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "LC_ALL": "C",
}
# How git tells of a folder that it has left out, and goes on.
_LEFT_OUT = "warning: could not open directory"
_NO_PROGRAMS = ("-c", "core.fsmonitor=", "-c", f"core.hooksPath={os.devnull}")


class GitError(Exception):
    """Why git does not answer, in its own words, made printable."""


class Unreadable(GitError):
    """Git has left a folder out, because it cannot be read."""


@dataclass(frozen=True)
class Revision:
    """The commit of a folder, and whether its files differ from that."""

    commit: str | None
    """None before the first commit."""
    is_dirty: bool


def is_repository(folder: Path) -> bool:
    """Return whether the folder, or one above it, looks like a git repository's."""
    return any(map(is_top, (folder, *folder.parents)))


def is_top(folder: Path) -> bool:
    """Return whether the folder looks like the top of a repository, or of a submodule."""
    return os.path.exists(folder / ".git")


def is_ignored(folder: Path) -> bool:
    """Return whether the repository that the folder is in ignores it as a whole."""
    if is_top(folder):
        return False
    try:  # asked from within, git would apply the folder's own rules to itself
        _ask(folder.parent, "check-ignore", "--quiet", "--", folder.name)
    except GitError:
        return False
    return True


def paths(folder: Path) -> list[str]:
    """Return the paths of all files that git tracks, or would: those of the folder, from there.

    They may no longer exist. Another repository within, a submodule too, is a path of its own,
    without its files. Raises GitError, and Unreadable for a folder in it that cannot be read.
    """
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({os.fsdecode(path) for path in _ask(folder, *words).split(b"\0") if path})


def revision(folder: Path) -> Revision:
    """Return the folder's commit. Raises GitError."""
    try:
        commit = _ask(folder, "rev-parse", "--verify", "--quiet", "HEAD").decode("ascii", "replace")
    except GitError:
        commit = ""
    return Revision(printable(commit.strip(), 64) or None, is_dirty(folder))


def is_dirty(folder: Path) -> bool:
    """Return whether files of the folder that may be sent differ from its commit.

    Raises GitError.

    Of a submodule only its commit is compared, because git would ask the submodule's own git for
    more, to which no setting of ours would be passed on.
    """
    words = ("status", "--porcelain", "-z", "--ignore-submodules=dirty", "--", ".")
    others = [f":(exclude,glob)**/{name}/**" for name in NEVER]
    return bool(_ask(folder, *words, *others, settings=_no_filters(folder)))


def _no_filters(folder: Path) -> list[str]:
    """Return options with which git passes no file to a filter. Raises GitError.

    Filters may be configured anywhere, and take arguments and files of this folder.
    """
    names = _ask(folder, "config", "--list", "--name-only", "-z").split(b"\0")
    parts = [os.fsdecode(name).rpartition(".") for name in names if name.startswith(b"filter.")]
    filters = sorted({driver for driver, _, _ in parts if driver != "filter"})
    if any("=" in driver for driver in filters):  # -c would take it for the end of the name
        raise GitError("git: a filter with such a name cannot be turned off")
    off = ("clean=", "process=", "required=false")
    return [word for driver in filters for value in off for word in ("-c", f"{driver}.{value}")]


def _ask(folder: Path, *words: str, settings: Sequence[str] = ()) -> bytes:
    """Return git's answer. Raises GitError."""
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    environment |= {**_ENVIRONMENT, "PATH": _path()}
    command = ["git", *_NO_PROGRAMS, *settings, *words]
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
        with process, _limited(process) as is_late:
            assert process.stdout is not None
            answer: bytes = process.stdout.read(MAX_ANSWER + 1)
            if len(answer) > MAX_ANSWER:
                process.kill()
                raise GitError("git lists more files than are read")
            process.wait()
        errors.seek(0)
        problem = errors.read(4096).decode(errors="replace")
    if is_late.is_set():
        raise GitError(f"git has not answered for {MAX_SECONDS:g} s")
    if process.returncode:
        first = next(iter(problem.splitlines()), f"exit code {process.returncode}")
        raise GitError(f"git: {printable(first, 300)}")
    for line in problem.splitlines():
        if line.startswith(_LEFT_OUT):
            raise Unreadable(f"git: {printable(line.removeprefix('warning: '), 300)}")
    return answer


def _path() -> str:
    """Return where git and its parts are looked for: not in the folder that is sent."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(filter(os.path.isabs, folders)) or os.defpath


@contextmanager
def _limited(process: "subprocess.Popen[bytes]") -> Iterator[threading.Event]:
    """End the process if it takes too long, or if this is left by an error.

    The event is set if it has taken too long.
    """
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(MAX_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()
