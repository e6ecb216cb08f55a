"""A folder becomes an archive: of which files, of which bytes, and what is refused."""

import base64
import gzip
import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpjob.api.code import Code
from ddpjob.code import git
from ddpjob.code.archive import PART_BYTES, CodeArchive, pack, verify
from ddpjob.code.files import Selection, select
from ddpjob.code.listing import Listing
from ddpjob.errors import InvalidJob
from ddpjob_agent.archive import members, unpack
from tests.repositories import add_submodule, commit, run_git, write
from tests.terminal import Ended, environment
from tests.unit.agent.archives import HOSTILE

TRAIN = {"train.py": "import pack.net\n", "pack/__init__.py": "", "pack/net.py": "SIZE = 4\n"}
# It looks as if it were real, and stands in no file of the repository.
TOKEN = "hf_" + base64.b64encode(hashlib.sha256(b"token").digest()).decode()[:34].replace("/", "x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of three files that git does not know."""
    path = tmp_path / "project"
    write(path, **TRAIN)
    return path


@pytest.fixture
def repository(folder: Path) -> Path:
    """The same, committed."""
    if not shutil.which("git"):
        pytest.skip("no git")
    return commit(folder)


def random(size: int) -> bytes:
    """Bytes that gzip makes no smaller, and always the same."""
    return hashlib.shake_128(b"seed").digest(size)


def refused(folder: Path, **more: Any) -> tuple[str, str]:
    """The rule, and the next step, of the error about the folder."""
    with pytest.raises(InvalidJob) as error:
        pack(folder, **more)
    assert error.value.path == "code"
    return error.value.rule, error.value.advice


def refusal(folder: Path, **more: Any) -> str:
    return refused(folder, **more)[0]


# ---- Which files


def test_every_file_of_a_folder_is_sent(folder: Path) -> None:
    found = pack(folder)
    assert found.files == ("pack/__init__.py", "pack/net.py", "train.py")
    assert (found.size, found.revision, found.is_dirty, found.note) == (25, None, False, "")


def test_folders_of_no_use_elsewhere_are_left_out(folder: Path) -> None:
    for name in (".git", ".hg", ".svn", ".ddpjob", "__pycache__", "pack/__pycache__"):
        if name != ".git":
            write(folder / name, file="x")
    write(folder / "env", **{"pyvenv.cfg": "", "lib/torch.py": "x"})
    assert pack(folder).files == ("pack/__init__.py", "pack/net.py", "train.py")


def test_an_environment_that_git_would_track_is_left_out(repository: Path) -> None:
    write(repository, **{"env/pyvenv.cfg": "", "env/lib/torch.py": "x", "environment.py": ""})
    assert {path.partition("/")[0] for path in pack(repository).files} == {
        *("environment.py", "pack", "train.py")
    }


def test_the_folder_itself_may_be_an_environment(folder: Path) -> None:
    write(folder, **{"pyvenv.cfg": ""})
    assert "train.py" in pack(folder).files


def test_of_a_repository_what_git_ignores_stays_here(repository: Path) -> None:
    write(repository, **{".gitignore": "*.log\n", "new.py": "", "a.log": "", "pack/b.log": ""})
    found = pack(repository)
    assert found.files == (".gitignore", "new.py", "pack/__init__.py", "pack/net.py", "train.py")


def test_a_tracked_file_is_sent_although_git_would_ignore_it(repository: Path) -> None:
    write(repository, **{".gitignore": "pack/\n"})
    assert "pack/net.py" in pack(repository).files


def test_a_subfolder_of_a_repository_is_sent_alone(repository: Path) -> None:
    write(repository, **{"pack/.gitignore": "out\n", "pack/out": "", "other/x.py": ""})
    found = pack(repository / "pack")
    assert found.files == (".gitignore", "__init__.py", "net.py")
    assert found.is_dirty and found.revision


def test_files_that_are_deleted_are_not_missed(repository: Path) -> None:
    (repository / "pack/net.py").unlink()
    assert pack(repository).files == ("pack/__init__.py", "train.py")


def test_a_folder_in_the_place_of_a_tracked_file_is_sent(repository: Path) -> None:
    (repository / "train.py").unlink()
    write(repository, **{"train.py/__main__.py": ""})
    assert pack(repository).files == ("pack/__init__.py", "pack/net.py", "train.py/__main__.py")


def test_what_git_ignores_is_not_sent_wherever_it_is(repository: Path) -> None:
    write(repository, **{".gitignore": "*.bin\n", "was-a-link": ""})
    run_git(repository, "add", ".")
    (repository / "was-a-link").unlink()
    write(repository, **{"was-a-link/a.bin": "", "was-a-link/b.py": ""})
    write(repository / "nested", **{".gitignore": "*\n", "secret": ""})
    run_git(repository / "nested", "init", "-q")
    sent = (".gitignore", "pack/__init__.py", "pack/net.py", "train.py", "was-a-link/b.py")
    assert pack(repository).files == sent
    write(repository / "pack", **{".gitignore": "*\n"})
    run_git(repository, "rm", "-q", "--cached", "-r", "pack")
    assert refusal(repository / "pack").startswith("there is no file to send in ")


def submitted(folder: Path) -> Ended:
    """What submit says to somebody who may not do all that root may."""
    rights = "-dac_override,-dac_read_search"
    command = ["setpriv", "--bounding-set", rights, "--inh-caps", rights]
    words = ["-m", "ddpjob", "submit", "train.py", "--image", "i", "--dry-run=client"]
    ended = subprocess.run(
        [*(command if os.geteuid() == 0 else ()), sys.executable, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["folder", "repository"])
@pytest.mark.parametrize("mode", [0o000, 0o644])
def test_what_may_not_be_read_is_not_left_out_in_silence(
    kind: str, mode: int, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    write(folder, **{"new/b.py": ""})
    for name in ("new", "pack"):
        (folder / name).chmod(mode)
        ended = submitted(folder)
        assert ended.code == 2 and name in ended.err, ended.err
        assert "cannot be read: Permission denied" in ended.err or "could not open" in ended.err
        (folder / name).chmod(0o755)
    (folder / "link").symlink_to("new/b.py")
    assert submitted(folder).code == 0
    (folder / "link").unlink()
    (folder / "link").symlink_to("x" * 300)
    assert submitted(folder).code == 0, "an editor's lock"


def test_commit_and_changes_are_told(repository: Path) -> None:
    clean = pack(repository)
    assert clean.revision and len(clean.revision) == 40 and not clean.is_dirty
    write(repository, **{"train.py": "import pack\n"})
    dirty = pack(repository)
    assert (dirty.revision, dirty.is_dirty) == (clean.revision, True)


def test_a_repository_without_a_commit_has_no_revision(folder: Path) -> None:
    run_git(folder, "init", "-q")
    write(folder, **{".gitignore": "pack\n"})
    found = pack(folder)
    assert (found.files, found.revision, found.is_dirty) == ((".gitignore", "train.py"), None, True)


def test_a_folder_that_git_ignores_is_sent_whole(repository: Path) -> None:
    write(repository, **{".gitignore": "build\n", "build/a.py": ""})
    found = pack(repository / "build")
    assert (found.files, found.revision, found.note) == (("a.py",), None, "")


def test_submodules_and_repositories_within_are_sent_with_their_own_rules(
    repository: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write(other, **{"lib.py": "", ".gitignore": "*.tmp\n", "a.tmp": ""})
    commit(other)
    add_submodule(repository, other)
    shutil.copytree(other, repository / "nested")
    found = set(pack(repository).files)
    assert {"sub/lib.py", "sub/.gitignore", "nested/lib.py", "nested/.gitignore"} <= found
    assert not [path for path in found if path.endswith(".tmp") or ".git/" in path]
    run_git(repository, "submodule", "deinit", "-f", "sub")
    assert "sub" not in {path.partition("/")[0] for path in pack(repository).files}


def test_without_git_all_files_are_sent_and_that_is_said(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, **{".gitignore": "*.log\n", "a.log": ""})
    monkeypatch.setenv("PATH", "/nowhere")
    found = pack(repository)
    assert "a.log" in found.files and found.revision is None
    assert found.note.startswith("git cannot be started: No such file")
    assert found.note.endswith(f"so all files of {str(repository)!r} are sent")


def test_where_git_refuses_its_words_are_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    found = pack(repository)
    assert "dubious ownership" in found.note and "train.py" in found.files


def test_a_broken_repository_is_sent_whole(folder: Path) -> None:
    write(folder, **{".git": "gitdir: /nowhere\n"})
    found = pack(folder)
    assert found.files == ("pack/__init__.py", "pack/net.py", "train.py")
    assert "not a git repository" in found.note


def test_git_asks_no_other_repository_and_starts_no_program_of_this_one(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    hook.chmod(0o755)
    run_git(repository, "config", "core.fsmonitor", str(hook))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    found = pack(repository)
    assert found.files == ("pack/__init__.py", "pack/net.py", "train.py")
    assert found.revision and not found.note
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("kind", ["folder", "repository"])
def test_the_ignore_file_holds_for_both(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    text = "# large\ndata/\n*.csv\n!keep.csv\n/train.py\n"
    write(folder, **{".ddpjobignore": text, "data/a": "", "x.csv": "", "keep.csv": ""})
    found = pack(folder)
    assert found.files == (".ddpjobignore", "keep.csv", "pack/__init__.py", "pack/net.py")


def test_an_ignored_folder_is_not_even_entered(folder: Path) -> None:
    write(folder, **{".ddpjobignore": "data/\n"})
    for number in range(100):
        write(folder, **{f"data/{number}/file": ""})
    opened: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> object:
        opened.append(str(path))
        return scandir(path)

    os.scandir = counted  # type: ignore[assignment]
    try:
        assert len(pack(folder).files) == 4
    finally:
        os.scandir = scandir
    assert not [path for path in opened if "data" in path]


# ---- Refused


@pytest.mark.parametrize("name", [".env", "keys/id_ed25519", ".aws/config"])
def test_what_may_be_a_secret_is_refused_unless_it_is_named(folder: Path, name: str) -> None:
    write(folder, **{name: "s3cret"})
    assert refused(folder) == (
        f"{name!r} (by its name) may hold secrets, so nothing is sent",
        f"add them to .ddpjobignore, or send them with --code-include {name!r}",
    )
    assert name in pack(folder, names=[name]).files
    write(folder, **{".ddpjobignore": f"/{name}\n"})
    assert name not in pack(folder).files


def test_files_with_keys_or_tokens_are_refused_unless_they_are_named(folder: Path) -> None:
    texts = {f"{number}.py": f"\nTOKEN = '{TOKEN}'\n" for number in range(7)}
    write(folder, **texts)
    rule, step = refused(folder)
    assert rule.startswith("'0.py' (line 2: a token of Hugging Face), '1.py' (line 2: ")
    assert rule.endswith(" and 2 more may hold secrets, so nothing is sent") and TOKEN not in rule
    assert step.endswith("--code-include '3.py' --code-include '4.py'") and TOKEN not in step
    assert "'6.py'" in refusal(folder, names=[f"{number}.py" for number in range(6)])
    assert len(pack(folder, names=list(texts)).files) == 10


def test_a_token_of_a_file_that_is_linked_is_found_in_both(folder: Path) -> None:
    write(folder, **{"train.py": TOKEN})
    (folder / "also.py").symlink_to("train.py")
    assert refusal(folder).startswith("'also.py' (line 1: a token of Hugging Face), 'train.py' (")


def test_a_named_file_is_sent_although_git_ignores_it(repository: Path) -> None:
    write(repository, **{".gitignore": ".env\n", ".env": "A=1\n"})
    assert ".env" not in pack(repository).files
    assert ".env" in pack(repository, names=["./.env"]).files


@pytest.mark.parametrize("name", ["absent", "pack", "../outside", "/etc/hostname", ""])
def test_only_a_file_of_the_folder_can_be_named(folder: Path, name: str) -> None:
    write(folder.parent, outside="")
    assert refusal(folder, names=[name]).startswith(f"{name!r} is no file in ")


def test_a_link_to_a_file_that_is_sent_becomes_a_copy(folder: Path) -> None:
    (folder / "net.py").symlink_to("pack/net.py")
    (folder / "pack/again.py").symlink_to(folder / "net.py")
    found = contents(pack(folder))
    assert found["net.py"] == found["pack/again.py"] == found["pack/net.py"]


def test_a_link_to_a_folder_that_is_sent_becomes_a_copy(folder: Path) -> None:
    (folder / "pack/link.py").symlink_to("net.py")
    (folder / "a").symlink_to("pack")
    found = contents(pack(folder))
    assert found["a/net.py"] == found["a/link.py"] == b"SIZE = 4\n"
    assert {"a/__init__.py", "pack/link.py"} <= set(found)


def test_links_that_lead_to_ever_more_files_are_not_followed_to_their_end(folder: Path) -> None:
    write(folder, **{"d00/file": ""})
    for number in range(1, 40):
        (folder / f"d{number:02}").mkdir()
        for name in "ab":
            (folder / f"d{number:02}/{name}").symlink_to(f"../d{number - 1:02}")
    begin = time.process_time()
    assert refusal(folder).startswith("more than 10,000 files")
    assert time.process_time() - begin < 10  # s; there would be 2 to the 39th of them


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("/etc/hostname", "'/etc/hostname', outside of the folder"),
        ("../outside", "outside', outside of the folder"),
        ("/etc", "'/etc', outside of the folder"),
        ("../absent", "absent', outside of the folder"),
        ("pack/../../project2/a", "project2/a', outside of the folder"),
        (".", "a folder that it is in"),
        ("sub", "a folder that it is in"),
        (".env", "'.env', which is not sent"),
        (".git/config", "'.git/config', which is not sent"),
    ],
)
def test_a_link_elsewhere_is_refused(repository: Path, target: str, words: str) -> None:
    write(repository.parent, outside="", **{"project2/a": ""})
    write(repository, **{".gitignore": ".env\n", ".env": "", "sub/x": ""})
    link = "sub/link" if target == "sub" else "link"
    at = repository / target if not target.startswith("/") else Path(target)
    (repository / link).symlink_to(os.path.normpath(at) if target != "." else repository)
    rule, step = refused(repository)
    assert f"{link!r} is a link to " in rule and words in rule
    assert step.startswith("add it to .ddpjobignore")
    write(repository, **{".ddpjobignore": "link\n"})
    assert link not in pack(repository).files


def test_a_named_link_is_sent_wherever_it_leads(folder: Path) -> None:
    write(folder.parent, outside="here")
    (folder / "link").symlink_to("../outside")
    assert "--code-include 'link'" in refused(folder)[1]
    assert contents(pack(folder, names=["link"]))["link"] == b"here"


def replace_by_link(place: Path, target: Path) -> None:
    """Put a link in the place of a folder that git knows files of."""
    shutil.rmtree(place)
    place.symlink_to(target)


@pytest.mark.parametrize("ignored", ["", "pack\n"])
def test_no_file_is_read_through_a_folder_that_has_become_a_link(
    repository: Path, tmp_path: Path, ignored: str
) -> None:
    write(tmp_path / "home/.kube", **{"net.py": "s3cret", "more/deep.py": ""})
    write(repository, **{"pack/more/deep.py": ""})
    run_git(repository, "add", ".")
    write(repository, **{".git/info/exclude": ignored})
    replace_by_link(repository / "pack", tmp_path / "home/.kube")
    rule = "; ".join(refused(repository))
    assert rule == (
        f"'pack' is a link to {os.path.realpath(tmp_path / 'home/.kube')!r}, outside of the "
        "folder; add it to .ddpjobignore"
    )
    write(repository, **{".ddpjobignore": "pack\n"})
    assert pack(repository).files == (".ddpjobignore", "train.py")
    assert contents(pack(repository, names=["pack/net.py"]))["pack/net.py"] == b"s3cret"


@pytest.mark.parametrize("path", ["../secret/file_x", "/tmp/secret/file", ".git/info/exclud"])
def test_an_index_of_somebody_elses_leads_nowhere(repository: Path, path: str) -> None:
    """Git lists what is in it as it stands there."""
    write(repository.parent, **{"secret/file_x": "s3cret"})
    index = repository / ".git/index"
    content = index.read_bytes()[:-20].replace(b"pack/__init__.py", path.encode())
    index.write_bytes(content + hashlib.sha1(content).digest())
    assert path in git.paths(repository)
    if path.startswith(".git"):
        assert pack(repository).files == ("pack/__init__.py", "pack/net.py", "train.py")
    else:
        assert refusal(repository).startswith(f"git lists {path!r}, which is not in ")


def test_a_folder_that_has_become_a_link_within_is_copied(repository: Path) -> None:
    write(repository, **{"new/net.py": "SIZE = 8\n", ".gitignore": "pack\n"})
    replace_by_link(repository / "pack", Path("new"))
    found = contents(pack(repository))
    assert found["pack/net.py"] == found["new/net.py"] == b"SIZE = 8\n"
    assert "pack/__init__.py" not in found


def test_no_repository_is_asked_for_files_below_a_link(repository: Path, tmp_path: Path) -> None:
    write(tmp_path / "home/sub", **{"private.py": ""})
    run_git(tmp_path / "home/sub", "init", "-q")
    id_ = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()
    run_git(repository, "update-index", "--add", "--cacheinfo", f"160000,{id_},lib/sub")
    (repository / "lib").symlink_to(tmp_path / "home")
    assert set(Listing(repository).paths()) == {"lib", *TRAIN}


def test_a_link_that_leads_to_nothing_here_is_left_out(folder: Path) -> None:
    (folder / ".#train.py").symlink_to("user@host.1234")
    assert len(pack(folder).files) == 3


def test_what_is_no_file_is_left_out(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(folder)
        server.bind("socket")
    assert len(pack(folder).files) == 3


@pytest.mark.parametrize("name", [b"caf\xe9.py", b"a\nb.py", b"a\x1b[2J"])
def test_a_name_that_cannot_be_printed_is_refused(folder: Path, name: bytes) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).touch()
    rule, step = refused(folder)
    assert "has a name that is not of printable characters in UTF-8" in rule
    assert rule.isascii() and rule.isprintable()
    assert step == "rename it, or add it to .ddpjobignore"


def test_too_long_a_path_is_refused_with_its_name(folder: Path) -> None:
    write(folder, **{"a" * 101 + ".py": ""})
    assert "has too long a path: 100 bytes for its name, 155 for its folder" in refusal(folder)


def test_there_must_be_a_folder_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty/below").mkdir(parents=True)
    assert refusal(tmp_path / "empty").startswith("there is no file to send in ")
    assert refusal(tmp_path / "absent").startswith("there is no folder ")


def test_neither_the_home_folder_nor_all_of_a_disk_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    for path in (folder, Path("/")):
        assert "is not the folder of a project" in refusal(path)


# ---- Limits


def test_too_large_an_archive_lists_the_largest_files_and_the_next_step(folder: Path) -> None:
    write(folder, **{f"notebooks/{number}.ipynb": "x" * (600 - number) for number in range(6)})
    (folder / "data").mkdir()
    (folder / "data/val.bin").write_bytes(random(5 * 2**20))
    assert refused(folder) == (
        "5.0 MiB after gzip, limit 4 MiB. Largest: data/val.bin 5 MiB, "
        "notebooks/0.ipynb 600 bytes, notebooks/1.ipynb 599 bytes, "
        "notebooks/2.ipynb 598 bytes, notebooks/3.ipynb 597 bytes",
        'add "data/" to .ddpjobignore, and put it into the image or a volume',
    )


def test_a_large_folder_is_refused_before_a_byte_is_read(folder: Path) -> None:
    with (folder / "data.bin").open("wb") as file:
        file.truncate(50 * 2**30)
    begin = time.process_time()
    rule = refusal(folder)
    assert time.process_time() - begin < 5  # s; to read it would take minutes
    assert rule.startswith("50.0 GiB before gzip, limit 64 MiB. Largest: data.bin 50 GiB, ")


def test_more_files_than_an_archive_may_have_are_refused_before_all_are_listed(
    folder: Path,
) -> None:
    for number in range(10_050):
        path = folder / "images" / str(number % 50) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    rule, step = refused(folder)
    assert rule.startswith("more than 10,000 files. Of the first, most are in 'images/' (")
    assert step == "add 'images/' to .ddpjobignore"


def test_more_folders_than_an_archive_may_have_are_refused(folder: Path) -> None:
    for number in range(500):
        write(folder, **{"/".join([str(number), *"abcdefghijklmnopqrstuvwxyz"]): ""})
    rule = "the archive is refused: it has more than 10,000 files and folders"
    assert refusal(folder) == rule


def emptied(path: Path) -> None:
    path.write_text("")


def with_a_link(path: Path) -> None:
    """A link to a file of the same size, which is elsewhere."""
    write(path.parent.parent, secret="x" * path.stat().st_size)
    path.unlink()
    path.symlink_to(path.parent.parent / "secret")


def with_a_link_above(path: Path) -> None:
    """A link in the place of a folder, and in it the same file."""
    path.parent.rename(path.parent.parent.parent / "elsewhere")
    path.parent.symlink_to(path.parent.parent.parent / "elsewhere")


def with_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def with_another_file(path: Path) -> None:
    """A file of the same size."""
    write(path.parent, other="x" * path.stat().st_size)
    (path.parent / "other").replace(path)


CHANGED = "was changed while it was read; try again"
CHANGES: list[tuple[str, Callable[[Path], None], str]] = [
    ("train.py", emptied, CHANGED),
    ("train.py", with_a_link, CHANGED),
    ("pack/__init__.py", with_a_link, CHANGED),
    ("pack/net.py", with_a_link_above, CHANGED),
    ("train.py", with_a_fifo, CHANGED),
    ("pack/__init__.py", with_a_fifo, CHANGED),
    ("train.py", with_another_file, CHANGED),
    (
        "train.py",
        Path.unlink,
        "cannot be read: No such file or directory; add it to .ddpjobignore",
    ),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("name", "change", "words"), CHANGES)
def test_a_file_that_changes_meanwhile_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[Path], None],
    words: str,
) -> None:
    def then_change(*args: Any) -> Selection:
        found = select(*args)
        change(folder / name)
        return found

    monkeypatch.setattr("ddpjob.code.archive.select", then_change)
    names = {name, "pack/__init__.py"} if change is with_a_link_above else {name}
    assert "; ".join(refused(folder)) in {f"{each!r} {words}" for each in names}


def test_a_named_link_that_changes_meanwhile_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder.parent, wanted="1234")
    (folder / "link").symlink_to("../wanted")

    def then_change(*args: Any) -> Selection:
        found = select(*args)
        with_a_link(folder.parent / "wanted")
        return found

    monkeypatch.setattr("ddpjob.code.archive.select", then_change)
    assert "; ".join(refused(folder, names=["link"])) == f"'link' {CHANGED}"


@pytest.mark.timeout(20)
def test_an_ignore_file_that_is_none_is_refused(folder: Path) -> None:
    os.mkfifo(folder / ".ddpjobignore")
    assert refusal(folder) == ".ddpjobignore cannot be read: it is no plain file"
    (folder / ".ddpjobignore").unlink()
    (folder / ".ddpjobignore").symlink_to("/dev/zero")
    assert refusal(folder) == ".ddpjobignore cannot be read: it is no plain file"


def test_an_ignore_file_may_be_a_link(folder: Path) -> None:
    write(folder, **{"ignored": "/pack\n"})
    (folder / ".ddpjobignore").symlink_to("ignored")
    assert pack(folder).files == (".ddpjobignore", "ignored", "train.py")


# ---- The bytes


def contents(archive: CodeArchive) -> dict[str, bytes]:
    """The files of an archive, as tarfile reads them."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as opened:
        for info in opened:
            content = opened.extractfile(info)
            assert content is not None
            found[info.name] = content.read()
    return found


def test_the_bytes_follow_from_paths_contents_and_executable_bits_alone(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere/copy"
    for name in reversed(TRAIN):
        write(other, **{name: TRAIN[name]})
    os.utime(other / "train.py", (0, 1))
    (other / "pack").chmod(0o700)
    (other / "train.py").chmod(0o600)
    assert pack(folder).data == pack(other).data
    (other / "train.py").chmod(0o755)
    assert pack(folder).data != pack(other).data


def test_the_bytes_are_these(folder: Path) -> None:
    """A change of them would store every folder anew; zlib decides the compressed ones."""
    data = pack(folder).data
    assert data[:10] == b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"
    plain = gzip.decompress(data)
    digest = hashlib.sha256(plain).hexdigest()
    assert digest == "1ef84f0efee335cd9a75c93c7af19320888ee7592fed4535c18005107ee58168"


def test_executable_files_stay_so(folder: Path, tmp_path: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o744)
    (tmp_path / "to").mkdir()
    unpack(pack(folder).data, str(tmp_path / "to"))
    assert os.access(tmp_path / "to/run.sh", os.X_OK)
    assert not (tmp_path / "to/train.py").stat().st_mode & 0o111


paths = st.from_regex(r"\A[a-zA-Zäß][a-zA-Z0-9_. é-]{0,20}(/[a-z][a-z0-9]{0,9}){0,3}\Z")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(paths, st.binary(max_size=2000), min_size=1, max_size=8))
def test_the_agent_unpacks_what_was_packed(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    root, to = tmp_path_factory.mktemp("from"), tmp_path_factory.mktemp("to")
    for name, content in files.items():
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        except OSError:  # a file and a folder of one name
            continue
    present = {
        p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()
    }
    if not present:
        return
    archive = pack(root)
    unpack(archive.data, str(to))
    found = {p.relative_to(to).as_posix(): p.read_bytes() for p in to.rglob("*") if p.is_file()}
    assert found == present == contents(archive)
    assert archive.files == verify([archive.data], archive.sha256) == tuple(sorted(present))


# ---- ConfigMaps


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (PART_BYTES, 2), (4 * PART_BYTES - 9000, 4)])
def test_an_archive_becomes_config_maps_named_by_its_content(
    folder: Path, size: int, parts: int
) -> None:
    (folder / "data").write_bytes(random(size))
    archive = pack(folder)
    made = archive.config_maps()
    names = [body["metadata"]["name"] for body in made]
    first = f"ddpjob-code-{archive.sha256[:12]}"
    assert names == [first, *(f"{first}-{part}" for part in range(1, parts))]
    assert all(body["immutable"] is True and body["kind"] == "ConfigMap" for body in made)
    contents = [base64.b64decode(body["binaryData"]["code.tar.gz"]) for body in made]
    assert b"".join(contents) == archive.data and max(map(len, contents)) <= 2**20
    assert archive.spec() == {
        "configMaps": names,
        "sha256": hashlib.sha256(archive.data).hexdigest(),
    }
    assert Code.model_validate(archive.spec()).mount_path == "/src"
    assert archive.config_maps() == pack(folder).config_maps()


def test_nothing_but_the_content_is_in_a_config_map(repository: Path, folder: Path) -> None:
    """Jobs of several users share one, whatever commit each of them is at."""
    before = pack(repository).config_maps()
    run_git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    assert pack(repository).config_maps() == before


# ---- The verifier


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_the_agent_refuses_is_refused_here(kind: str) -> None:
    content, words = HOSTILE[kind]
    with pytest.raises(InvalidJob) as error:
        verify([gzip.compress(content)])
    assert error.value.rule.startswith("the archive is refused: ") and words in error.value.rule


def test_parts_are_joined_and_their_sum_is_checked(folder: Path) -> None:
    archive = pack(folder)
    halves = [archive.data[:100], archive.data[100:]]
    assert verify(halves, archive.sha256) == archive.files
    with pytest.raises(InvalidJob, match=f"sha256 is {archive.sha256}, and spec.code.sha256 is 00"):
        verify(halves, "0" * 64)
    with pytest.raises(InvalidJob, match="it is cut off"):
        verify(halves[:1])


def test_git_has_no_answer_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(git.GitError):
        git.paths(tmp_path / "absent")


def test_files_of_elsewhere_are_packed_under_their_own_paths(tmp_path: Path) -> None:
    folder, empty = tmp_path / "folder", tmp_path / "empty"
    empty.mkdir()
    write(folder, **{"train.py": "one", "call.py": "old"})
    (tmp_path / "made").write_text("new")
    extra = {"call.py": tmp_path / "made", "zz.py": tmp_path / "made"}
    found = pack(folder, extra=extra)
    assert found.files == ("call.py", "train.py", "zz.py") and found.size == 9
    contents = {path: b"".join(content or ()) for path, _, content in members(found.data)}
    assert contents == {"call.py": b"new", "train.py": b"one", "zz.py": b"new"}
    assert pack(empty, extra=extra).files == ("call.py", "zz.py")
    assert pack(folder, extra=extra).sha256 == found.sha256 != pack(folder).sha256
