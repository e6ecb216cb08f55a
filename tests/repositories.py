"""Folders of files, and git repositories of them."""

import os
import subprocess
from pathlib import Path

_USER = ("-c", "user.name=n", "-c", "user.email=e@example.com")


def write(folder: Path, **files: str) -> None:
    """Write files, by their paths in the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run_git(folder: Path, *words: str) -> None:
    """Run git in the folder, without the settings of this machine and its user."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *_USER, *words], cwd=folder, check=True, env=env, capture_output=True)


def commit(folder: Path) -> Path:
    """Make a repository of the folder, with all its files in one commit."""
    run_git(folder, "init", "-q", "-b", "main")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-q", "-m", "first")
    return folder


def add_submodule(folder: Path, other: Path) -> None:
    """Make `other` the submodule `sub` of the folder, without a commit."""
    allow = ("-c", "protocol.file.allow=always")
    run_git(folder, *allow, "submodule", "add", "-q", str(other), "sub")
