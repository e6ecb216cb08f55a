"""Git is asked about a folder of somebody else's, and starts no program that the folder names."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpjob.code import git
from ddpjob.code.archive import pack
from tests.repositories import add_submodule, commit, run_git, write

pytestmark = [
    pytest.mark.skipif(not shutil.which("git"), reason="no git"),
    pytest.mark.timeout(60),
]
# Settings whose value is a program. {} stands for it.
PROGRAMS = """
[core]
    fsmonitor = {}
    hooksPath = {}.hooks
    sshCommand = {}
    pager = {}
    editor = {}
    askPass = {}
    gitProxy = {}
    alternateRefsCommand = {}
[pager]
    status = {}
    ls-files = {}
    config = {}
    rev-parse = {}
[alias]
    status = !{}
    ls-files = !{}
[filter "plain"]
    clean = {}
    smudge = {}
    required = true
[filter "dots.in.it"]
    process = {}
    required
[filter "UPPER"]
    clean = {}
[diff]
    external = {}
[diff "any"]
    command = {}
    textconv = {}
[merge "any"]
    driver = {}
[credential]
    helper = {}
[gpg]
    program = {}
[uploadpack]
    packObjectsHook = {}
[status]
    submoduleSummary = true
    branch = true
[submodule]
    recurse = true
[submodule "sub"]
    update = !{}
    ignore = none
"""
ATTRIBUTES = "*.py filter=plain diff=any merge=any\n*.sh filter=dots.in.it\n*.md filter=UPPER\n"
FILES = {"train.py": "x = 1\n", "run.sh": "true\n", "read.md": "text\n", "pack/net.py": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository, with a submodule."""
    write(tmp_path / "project", **FILES)
    write(tmp_path / "other", **FILES)
    folder, other = commit(tmp_path / "project"), commit(tmp_path / "other")
    add_submodule(folder, other)
    run_git(folder, "commit", "-q", "-m", "second")
    return folder


class Program:
    """A program that leaves a trace if it is started."""

    def __init__(self, place: Path) -> None:
        self.path, self._trace = place / "program", place / "trace"
        self.path.write_text(f"#!/bin/sh\necho $0 $* >> {self._trace}\nexit 1\n")
        self.path.chmod(0o755)
        hooks = Path(f"{self.path}.hooks")
        hooks.mkdir()
        for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
            shutil.copy(self.path, hooks / name)

    def started(self) -> str:
        return self._trace.read_text() if self._trace.exists() else ""

    def fill(self, text: str) -> str:
        return text.replace("{}", str(self.path))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def change(folder: Path) -> None:
    """Have git compare the content of each file, because its time is another one."""
    for path in folder.rglob("*.[psm]*"):
        if ".git" not in path.parts and path.is_file():
            os.utime(path, (1, 1))


def append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def own(folder: Path, program: Program) -> None:
    """Its own configuration."""
    append(folder / ".git/config", program.fill(PROGRAMS))
    append(folder / ".git/info/attributes", ATTRIBUTES)
    shutil.copytree(f"{program.path}.hooks", folder / ".git/hooks", dirs_exist_ok=True)


def of_a_submodule(folder: Path, program: Program) -> None:
    append(folder / ".git/modules/sub/config", program.fill(PROGRAMS))
    append(folder / ".git/modules/sub/info/attributes", ATTRIBUTES)


def of_a_repository_within(folder: Path, program: Program) -> None:
    write(folder / "within", **FILES)
    own(commit(folder / "within"), program)


def included(folder: Path, program: Program) -> None:
    append(folder / ".git/config", "[include]\n    path = more\n")
    append(folder / ".git/more", program.fill(PROGRAMS))
    append(folder / ".git/info/attributes", ATTRIBUTES)


def included_for_this_folder(folder: Path, program: Program) -> None:
    append(folder / ".git/config", '[includeIf "onbranch:main"]\n    path = more\n')
    append(folder / ".git/more", program.fill(PROGRAMS))
    append(folder / ".git/info/attributes", ATTRIBUTES)


def of_the_work_tree(folder: Path, program: Program) -> None:
    settings = "[core]\n    repositoryFormatVersion = 1\n[extensions]\n    worktreeConfig = true\n"
    append(folder / ".git/config", settings)
    append(folder / ".git/config.worktree", program.fill(PROGRAMS))
    append(folder / ".git/info/attributes", ATTRIBUTES)


def elsewhere(folder: Path, program: Program) -> None:
    """A `.git` that names a folder with the configuration."""
    own(folder, program)
    (folder / ".git").rename(folder.parent / "moved")
    (folder / ".git").write_text("gitdir: ../moved\n")
    (folder / "sub/.git").write_text("gitdir: ../../moved/modules/sub\n")
    of_sub = folder.parent / "moved/modules/sub/config"
    run_git(folder.parent, "config", "-f", str(of_sub), "core.worktree", "../../../project/sub")


def with_an_equals_sign(folder: Path, program: Program) -> None:
    """A filter that no option of git's can name."""
    append(folder / ".git/config", program.fill('[filter "a=b"]\n    clean = {}\n'))
    append(folder / ".git/info/attributes", "*.py filter=a=b\n")


def of_a_remote(folder: Path, program: Program) -> None:
    """One from which git fetches what is missing: here the tree of the last commit."""
    tree = subprocess.check_output(["git", "rev-parse", "HEAD^{tree}"], cwd=folder, text=True)
    (folder / ".git/objects" / tree[:2] / tree[2:].strip()).unlink()
    append(
        folder / ".git/config",
        program.fill(
            "[core]\n    repositoryFormatVersion = 1\n[extensions]\n    partialClone = origin\n"
            '[remote "origin"]\n    url = /\n    promisor = true\n    uploadpack = {}\n'
            "[protocol]\n    allow = always\n"
        ),
    )


def of_a_remote_that_is_a_command(folder: Path, program: Program) -> None:
    of_a_remote(folder, program)
    append(folder / ".git/config", program.fill('[remote "origin"]\n    url = ext::{}\n'))


CONFIGURED: list[Callable[[Path, Program], None]] = [
    *(own, of_a_submodule, of_a_repository_within, included, included_for_this_folder),
    *(of_the_work_tree, elsewhere, with_an_equals_sign, of_a_remote, of_a_remote_that_is_a_command),
]
# Here git cannot be asked for changes, so the folder has no revision.
UNASKED = (with_an_equals_sign, of_a_remote, of_a_remote_that_is_a_command)


@pytest.mark.parametrize("configure", CONFIGURED, ids=lambda each: each.__name__)
def test_no_program_that_is_configured_is_started(
    folder: Path, program: Program, configure: Callable[[Path, Program], None]
) -> None:
    configure(folder, program)
    change(folder)
    found = pack(folder)
    assert {"train.py", "pack/net.py", "sub/train.py"} <= set(found.files) and not found.note
    assert program.started() == ""
    assert (found.revision is None) == (configure in UNASKED)


def test_a_filter_of_the_user_is_not_started_either(
    folder: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be run in this folder, and may itself obey the folder's configuration."""
    append(tmp_path / "gitconfig", program.fill(PROGRAMS))
    append(folder / ".gitattributes", ATTRIBUTES)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    change(folder)
    assert pack(folder).is_dirty and program.started() == ""


def test_no_git_of_the_folder_is_started(
    folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(program.path, folder / "git")
    for path in (f".:{os.environ['PATH']}", f":{os.environ['PATH']}", f"./:{os.environ['PATH']}"):
        monkeypatch.setenv("PATH", path)
        assert "git" in pack(folder).files and program.started() == ""
    monkeypatch.setenv("PATH", ".")
    pack(folder)
    assert program.started() == ""


def test_a_touched_file_is_no_change_and_a_filtered_one_is_compared_as_it_is(folder: Path) -> None:
    own_filter = '[filter "plain"]\n    clean = tr a-z A-Z\n    required = true\n'
    append(folder / ".git/config", own_filter)
    append(folder / ".git/info/attributes", ATTRIBUTES)
    change(folder)
    assert not git.is_dirty(folder)
    write(folder, **{"train.py": "x = 2\n"})
    assert git.is_dirty(folder)


@pytest.mark.parametrize("left", [".ddpjob/digits/logs/a.log", "sub/__pycache__/train.pyc"])
def test_what_is_never_sent_makes_nothing_dirty(folder: Path, left: str) -> None:
    """A local run leaves a folder."""
    (folder / left).parent.mkdir(parents=True)
    (folder / left).touch()
    assert not git.is_dirty(folder)
    (folder / "new.py").touch()
    assert git.is_dirty(folder)


def test_changes_of_submodules_make_the_folder_dirty(folder: Path) -> None:
    assert not pack(folder).is_dirty
    write(folder / "sub", **{"train.py": "x = 2\n"})
    assert pack(folder).is_dirty
    run_git(folder / "sub", "commit", "-q", "-a", "-m", "third")
    assert pack(folder).is_dirty  # another commit than the folder's own has
    run_git(folder, "add", "sub")
    run_git(folder, "commit", "-q", "-m", "fourth")
    assert not pack(folder).is_dirty


@pytest.mark.parametrize("name", [".gitignore", ".git/index", ".git/config"])
def test_git_that_does_not_answer_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(git, "MAX_SECONDS", 0.5)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    begin = time.monotonic()
    found = pack(folder)
    assert time.monotonic() - begin < 30
    assert "git has not answered for 0.5 s, so all files of " in found.note
    assert "train.py" in found.files and found.revision is None
