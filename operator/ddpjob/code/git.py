"""Asks the user's git which files of a folder belong to a project, and at which commit it is."""

import os
import subprocess
from pathlib import Path

from ddpjob.text import printable

# Repositories, local runs of jobs and compiled modules: never sent, and no change of a project.
NEVER = (".git", ".hg", ".svn", ".ddpjob", "__pycache__")


class GitError(Exception):
    """Why git does not answer, in its own words, made printable."""


def is_repository(folder: Path) -> bool:
    """Return whether the folder, or one above it, looks like a git repository's."""
    return any(os.path.exists(place / ".git") for place in (folder, *folder.parents))


def paths(folder: Path) -> list[str]:
    """Return the paths of all files that git tracks, or would track, from the folder.

    Files of submodules and of other repositories within are among them, by their own rules. A
    tracked file may no longer exist. Raises GitError.
    """
    found = []
    answer = _ask(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for path in filter(None, answer.split("\0")):
        place = folder / path
        if place.is_symlink() or not place.is_dir():
            found.append(path)
        elif os.path.exists(place / ".git"):
            found += [os.path.join(path, below) for below in paths(place)]
    return found


def revision(folder: Path) -> tuple[str | None, bool]:
    """Return the folder's commit, and whether files that may be sent differ from it.

    Without a commit, it is None and False.
    """
    others = [f":(exclude,glob)**/{name}/**" for name in NEVER]
    try:
        commit = _ask(folder, "rev-parse", "--verify", "--quiet", "HEAD").strip()
        return commit, bool(_ask(folder, "status", "--porcelain", "--", ".", *others))
    except GitError:
        return None, False


def _ask(folder: Path, *words: str) -> str:
    """Return git's answer. Raises GitError."""
    try:
        ended = subprocess.run(
            ["git", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError as error:
        raise GitError(f"git cannot be started: {error.strerror}") from None
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").splitlines()
        first = lines[0] if lines else f"exit code {ended.returncode}"
        raise GitError(f"git: {printable(first, 300)}")
    return os.fsdecode(ended.stdout)
