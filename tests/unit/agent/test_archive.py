"""Archives of code: what is unpacked, and that everything hostile is refused."""

import gzip
import os
import shutil
import subprocess
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_agent.code import MOST_BYTES, MOST_MEMBERS, CodeError, members, unpack
from tests.unit.agent.archives import FILES, HOSTILE, member, packed, tar


def tree(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refusal(content: bytes) -> str:
    with pytest.raises(CodeError) as error:
        for _ in members(content):
            pass
    return str(error.value)


@pytest.mark.parametrize("name", ["train.py", "p/" * 200 + "n", "ä日本 b.py"])
def test_files_are_unpacked_with_their_folders(tmp_path: Path, name: str) -> None:
    assert unpack(packed({**FILES, name: b"x"}), str(tmp_path)) == len({*FILES, name})
    assert tree(tmp_path) == {**FILES, name: b"x"}


def test_only_the_executable_bit_is_kept(tmp_path: Path) -> None:
    modes = {"a": 0o777, "b": 0o4666, "c": 0o100, "e/f": 0o644}
    unpack(
        gzip.compress(tar(*(member(name, mode=mode) for name, mode in modes.items()))),
        str(tmp_path),
    )
    found = {path.name: path.stat().st_mode & 0o7777 for path in tmp_path.rglob("*")}
    mask = os.umask(0o022)
    os.umask(mask)
    expected = {"a": 0o755, "b": 0o644, "c": 0o755, "e": 0o777, "f": 0o644}
    assert found == {name: mode & ~mask for name, mode in expected.items()}


@pytest.mark.parametrize(
    "command",
    [
        ["tar", "--format=gnu", "-czf", "-", "-C", "{}", "."],
        ["git", "-C", "{}", "archive", "--format=tar.gz", "HEAD"],
    ],
)
def test_other_programs_make_such_archives_too(tmp_path: Path, command: list[str]) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]}")
    source, target = tmp_path / "from", tmp_path / "to"
    for folder in (source, target):
        folder.mkdir()
    unpack(packed(), str(source))
    if command[0] == "git":
        me = ["-c", "user.name=n", "-c", "user.email=e"]
        for words in (["init", "-q"], ["add", "."], [*me, "commit", "-q", "-m", "m"]):
            subprocess.run(["git", "-C", source, *words], check=True)
    content = subprocess.check_output([word.format(source) for word in command])
    unpack(content, str(target))
    assert FILES.items() <= tree(target).items()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_nothing_leaves_the_folder(
    tmp_path: Path, kind: str
) -> None:
    content, words = HOSTILE[kind]
    into = tmp_path / "a/b/c"
    into.mkdir(parents=True)
    with pytest.raises(CodeError) as error:
        unpack(gzip.compress(content), str(into))
    assert words in str(error.value)
    assert str(error.value).isascii() and str(error.value).isprintable()
    assert [path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "a")] == []
    assert [*(tmp_path / "a").iterdir()] == [tmp_path / "a/b"]
    for path in into.rglob("*"):
        assert path.is_file() or path.is_dir()
        assert not path.is_symlink() and not path.stat().st_mode & 0o7000


def test_a_name_that_is_there_twice_writes_over_nothing(tmp_path: Path) -> None:
    archive = gzip.compress(tar(member("a", b"1"), member("a", b"2")))
    with pytest.raises(FileExistsError):
        unpack(archive, str(tmp_path))


# ---- gzip


def test_what_is_no_gzip_file_is_refused() -> None:
    good = packed()
    for broken in (b"PK\3\4" + good, good[: len(good) // 2], b""):
        assert refusal(broken).startswith("it is no tar.gz, or a broken one: ")


def bomb(size: int, head: bytes = b"") -> bytes:
    """gzip of `head` and so many zeros, made without them in memory."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [deflate.compress(head)]
    parts += [deflate.compress(bytes(2**20)) for _ in range(size >> 20)]
    return b"".join([*parts, deflate.flush()])


def large(size: int) -> bytes:
    """The header of a file of this size."""
    info = tarfile.TarInfo("large")
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def test_a_bomb_is_unpacked_up_to_the_limit_alone(tmp_path: Path) -> None:
    content = bomb(2 * MOST_BYTES, large(2 * MOST_BYTES))
    assert len(content) < 2**20
    tracemalloc.start()
    with pytest.raises(CodeError) as error:
        unpack(content, str(tmp_path))
    assert str(error.value) == "it has more than 256 MiB when it is unpacked"
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    assert sum(map(len, tree(tmp_path).values())) <= MOST_BYTES


def test_files_and_folders_are_counted_also_those_that_no_member_names() -> None:
    limit = "it has more than 10,000 files and folders"
    assert refusal(packed({f"f{i}": b"" for i in range(MOST_MEMBERS + 1)})) == limit
    deep = {"/".join([str(i), *"abcdefghijklmnopqrstuvwxyz"]): b"" for i in range(400)}
    assert refusal(packed(deep)) == limit


@given(st.binary(max_size=3000), st.integers(0, 2**31))
def test_whatever_comes_is_refused_or_read(junk: bytes, at: int) -> None:
    content = bytearray(tar(*(member(name, data) for name, data in FILES.items())))
    at %= len(content)
    content[at : at + len(junk)] = junk
    for archive in (gzip.compress(bytes(content), 1), bytes(junk)):
        try:
            for path, _, _ in members(archive):
                assert path.isprintable() and not path.startswith(("/", "../"))
        except CodeError:
            continue
