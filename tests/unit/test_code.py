"""A folder becomes an archive: of which files, of which bytes, and what is refused."""

import base64
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpjob.api.code import Code
from ddpjob.code.archive import PART_BYTES, CodeArchive, pack, verify
from ddpjob.errors import InvalidJob
from ddpjob_agent.code import unpack
from tests.repositories import add_submodule, commit, run_git, write

TRAIN = {"train.py": "import pack.net\n", "pack/__init__.py": "", "pack/net.py": "SIZE = 4\n"}


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
    for name in (".hg", ".svn", ".ddpjob", "__pycache__", "pack/__pycache__"):
        write(folder / name, file="x")
    write(folder / "env", **{"pyvenv.cfg": "", "lib/torch.py": "x"})
    assert pack(folder).files == ("pack/__init__.py", "pack/net.py", "train.py")
    assert pack(folder / "env").files == ("lib/torch.py", "pyvenv.cfg")


def test_an_environment_that_git_would_track_is_left_out(repository: Path) -> None:
    write(repository, **{"env/pyvenv.cfg": "", "env/lib/torch.py": "x", "environment.py": ""})
    assert {path.partition("/")[0] for path in pack(repository).files} == {
        *("environment.py", "pack", "train.py")
    }


def test_of_a_repository_what_git_ignores_stays_here(repository: Path) -> None:
    write(repository, **{".gitignore": "*.log\n", "new.py": "", "a.log": "", "pack/b.log": ""})
    found = pack(repository)
    assert found.files == (".gitignore", "new.py", "pack/__init__.py", "pack/net.py", "train.py")


def test_a_subfolder_of_a_repository_is_sent_alone(repository: Path) -> None:
    write(repository, **{"pack/.gitignore": "out\n", "pack/out": "", "other/x.py": ""})
    found = pack(repository / "pack")
    assert found.files == (".gitignore", "__init__.py", "net.py")
    assert found.is_dirty and found.revision


def test_files_that_are_deleted_are_not_missed(repository: Path) -> None:
    (repository / "pack/net.py").unlink()
    assert pack(repository).files == ("pack/__init__.py", "train.py")


def test_commit_and_changes_are_told(repository: Path) -> None:
    clean = pack(repository)
    assert clean.revision and len(clean.revision) == 40 and not clean.is_dirty
    write(repository, **{"train.py": "import pack\n"})
    dirty = pack(repository)
    assert (dirty.revision, dirty.is_dirty) == (clean.revision, True)
    run_git(repository, "checkout", "-q", ".")
    write(repository, **{".ddpjob/digits/logs/a.log": "", "pack/__pycache__/net.pyc": ""})
    assert not pack(repository).is_dirty, "of a local run"


def test_a_repository_without_a_commit_has_no_revision(folder: Path) -> None:
    run_git(folder, "init", "-q")
    write(folder, **{".gitignore": "pack\n"})
    found = pack(folder)
    assert (found.files, found.revision) == ((".gitignore", "train.py"), None)


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
    run_git(repository, "add", "sub", "nested/lib.py")
    run_git(repository, "commit", "-q", "-m", "second")
    write(repository / "sub", **{"lib.py": "new"})
    assert pack(repository).is_dirty
    run_git(repository, "submodule", "deinit", "-f", "sub")
    assert "sub" not in {path.partition("/")[0] for path in pack(repository).files}


def test_outside_of_a_repository_its_gitignore_counts(folder: Path) -> None:
    write(folder, **{".gitignore": "*.log\n/data/\n", "a.log": "", "pack/b.log": "", "data/c": ""})
    assert pack(folder).files == (".gitignore", *sorted(TRAIN))


def test_without_git_that_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repository, **{".gitignore": "*.log\n", "a.log": ""})
    monkeypatch.setenv("PATH", "/nowhere")
    found = pack(repository)
    assert found.files == (".gitignore", *sorted(TRAIN)) and found.revision is None
    words = f"so of its rules only '{repository}/.gitignore' counts"
    assert found.note == f"git cannot be started: No such file or directory, {words}"


def test_why_git_refuses_is_told(folder: Path) -> None:
    write(folder, **{".git": "gitdir: /nowhere\n"})
    found = pack(folder)
    assert found.files == tuple(sorted(TRAIN)) and "not a git repository" in found.note


@pytest.mark.parametrize("kind", ["folder", "repository"])
def test_the_ignore_file_holds_for_both(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    text = "# large\ndata/\n*.csv\n!keep.csv\n/train.py\n"
    write(folder, **{".ddpjobignore": text, "data/a": "", "x.csv": "", "keep.csv": ""})
    found = pack(folder)
    assert found.files == (".ddpjobignore", "keep.csv", "pack/__init__.py", "pack/net.py")


def test_a_pattern_that_is_none_is_named(folder: Path) -> None:
    write(folder, **{".ddpjobignore": "data\\\n"})
    assert "data\\" in refusal(folder) and ".ddpjobignore" in refusal(folder)


# ---- Refused


@pytest.mark.parametrize("name", [".env", "keys/ID_ed25519", ".aws/config", "a/prod.env"])
def test_what_may_be_a_secret_is_refused_unless_it_is_named(folder: Path, name: str) -> None:
    write(folder, **{name: "s3cret"})
    assert refused(folder) == (
        f"{name!r} may hold secrets, by name",
        f"add them to .ddpjobignore, or send them with --code-include {name!r}",
    )
    assert name in pack(folder, names=[name]).files
    write(folder, **{".ddpjobignore": f"/{name}\n"})
    assert name not in pack(folder).files


def test_names_that_only_look_like_secrets_are_sent(folder: Path) -> None:
    names = [".env.example", "tokenizer.json", "secrets.py", "id_rsa.pub", "secrets.example.toml"]
    write(folder, **dict.fromkeys(names, ""))
    assert {*names} < {*pack(folder).files}


def test_a_named_file_is_sent_although_git_ignores_it(repository: Path) -> None:
    write(repository, **{".gitignore": ".env\n", ".env": "A=1\n"})
    assert ".env" not in pack(repository).files
    assert ".env" in pack(repository, names=["./.env"]).files


@pytest.mark.parametrize("name", ["absent", "pack", "../outside"])
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


def test_a_link_out_of_the_folder_is_refused_unless_it_is_named(folder: Path) -> None:
    write(folder.parent, outside="here")
    (folder / "link").symlink_to("../outside")
    rule, step = refused(folder)
    assert rule == f"'link' is a link to '{folder.parent}/outside', outside of the folder"
    assert step == "add it to .ddpjobignore, or send the file with --code-include 'link'"
    assert contents(pack(folder, names=["link"]))["link"] == b"here"
    (folder / "link").unlink()
    (folder / "link").symlink_to("..")
    assert refused(folder)[1] == "add it to .ddpjobignore"


def test_no_file_is_read_through_a_folder_that_has_become_a_link(repository: Path) -> None:
    (repository / "pack").rename(repository.parent / "elsewhere")
    (repository / "pack").symlink_to("../elsewhere")
    assert "elsewhere" in refusal(repository)
    write(repository, **{".ddpjobignore": "pack\n"})
    assert pack(repository).files == (".ddpjobignore", "train.py")


def test_a_link_that_leads_to_nothing_here_is_left_out(folder: Path) -> None:
    (folder / ".#train.py").symlink_to("user@host.1234")
    assert len(pack(folder).files) == 3


@pytest.mark.parametrize("name", [b"caf\xe9.py", b"a\x1b[2J"])
def test_a_name_that_cannot_be_printed_is_refused(folder: Path, name: bytes) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).touch()
    rule = refusal(folder)
    assert "UTF-8" in rule and rule.isascii() and rule.isprintable()


def test_there_must_be_a_folder_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty/below").mkdir(parents=True)
    assert refusal(tmp_path / "empty").startswith("there is no file to send in ")
    assert refusal(tmp_path / "absent").startswith("there is no folder ")


# ---- Limits


def test_too_large_an_archive_lists_the_largest_files_and_the_next_step(folder: Path) -> None:
    write(folder, **{f"notebooks/{number}.ipynb": "x" * (600 - number) for number in range(6)})
    (folder / "data").mkdir()
    (folder / "data/val.bin").write_bytes(random(5 * 2**20))
    assert refused(folder) == (
        "5 MiB after gzip, limit 4 MiB. Largest: data/val.bin 5 MiB, "
        "notebooks/0.ipynb 600 B, notebooks/1.ipynb 599 B, "
        "notebooks/2.ipynb 598 B, notebooks/3.ipynb 597 B",
        'add "data/" to .ddpjobignore, and put it into the image or a volume',
    )


def test_a_large_folder_is_refused_before_a_byte_is_read(folder: Path) -> None:
    with (folder / "data.bin").open("wb") as file:
        file.truncate(50 * 2**30)
    begin = time.process_time()
    rule = refusal(folder)
    assert time.process_time() - begin < 5  # s; to read it would take minutes
    assert rule.startswith("50 GiB before gzip, limit 64 MiB. Largest: data.bin 50 GiB, ")


def test_more_files_than_an_archive_may_have_are_refused(folder: Path) -> None:
    (folder / "images").mkdir()
    for number in range(10_001):
        (folder / "images" / f"{number}.png").touch()
    assert refusal(folder) == "more than 10,000 files"


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
    assert digest == "db6b7f591a436339582d0151c2bbdcc3930f968b62a99a065d09546d3460cb78"


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


def test_an_archive_becomes_config_maps_named_by_its_content(folder: Path) -> None:
    (folder / "data").write_bytes(random(4 * PART_BYTES - 9000))
    archive = pack(folder)
    made = archive.config_maps()
    names = [body["metadata"]["name"] for body in made]
    first = f"ddpjob-code-{archive.sha256[:12]}"
    assert names == [first, *(f"{first}-{part}" for part in range(1, 4))]
    assert all(body["immutable"] is True and body["kind"] == "ConfigMap" for body in made)
    contents = [base64.b64decode(body["binaryData"]["code.tar.gz"]) for body in made]
    assert b"".join(contents) == archive.data and max(map(len, contents)) <= 2**20
    assert archive.spec() == {
        "configMaps": names,
        "sha256": hashlib.sha256(archive.data).hexdigest(),
    }
    assert Code.model_validate(archive.spec()).mount_path == "/src"
    assert archive.config_maps() == pack(folder).config_maps()


# ---- The verifier


def test_parts_are_joined_and_their_sum_is_checked(folder: Path) -> None:
    archive = pack(folder)
    halves = [archive.data[:100], archive.data[100:]]
    assert verify(halves, archive.sha256) == archive.files
    with pytest.raises(InvalidJob, match=f"sha256 is {archive.sha256}, and spec.code.sha256 is 00"):
        verify(halves, "0" * 64)
    with pytest.raises(InvalidJob, match="it is no tar.gz"):
        verify(halves[:1])


def test_further_files_are_packed_with_those_of_the_folder(folder: Path) -> None:
    extra = {"train.py": b"new", "zz.py": b"2"}
    found = pack(folder, extra=extra)
    assert (found.files, found.size) == ((*sorted(TRAIN), "zz.py"), 13)
    assert contents(found)["train.py"] == b"new"
    assert pack(None, extra=extra).files == ("train.py", "zz.py")
