"""Lays the job's own code down before each start: an archive, in parts or in a volume."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import time
import zlib
from typing import IO, TYPE_CHECKING, Any, Iterator  # noqa: UP035 - Python 3.8

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


# An archive has so many bytes at most, so many when it is unpacked, and so many files and folders.
ARCHIVE_BYTES, MOST_BYTES, MOST_MEMBERS = 64 * 2**20, 256 * 2**20, 10_000


class CodeError(ValueError):
    """Why an archive is refused. Names in it are quoted, so they are harmless to print."""


class Unpacked:
    """The bytes of a gzip file, at most MOST_BYTES of them."""

    def __init__(self, archive: bytes) -> None:
        self.stream, self.left = gzip.GzipFile(fileobj=io.BytesIO(archive)), MOST_BYTES

    def read(self, size: int) -> bytes:
        """The next bytes. Raises CodeError where there are too many."""
        content = self.stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise CodeError(f"it has more than {MOST_BYTES // 2**20} MiB when it is unpacked")
        return content


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raise CodeError where an archive cannot be read; a file that cannot be written is another."""
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as problem:
        raise CodeError(f"it is no tar.gz, or a broken one: {problem}") from None


def members(archive: bytes) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Path, mode and content of each file; of a folder the content is None. Raises CodeError."""
    stream: Any = Unpacked(archive)
    seen: set[str] = set()
    with reading(), tarfile.open(fileobj=stream, mode="r|", encoding="utf-8") as tar:
        for member in tar:
            path = member.name[2:] if member.name.startswith("./") else member.name
            if member.isdir() and path == ".":  # the folder itself, as of `tar -C folder .`
                continue
            check(member, path)
            parts = path.split("/")
            seen.update("/".join(parts[: count + 1]) for count in range(len(parts)))
            if len(seen) > MOST_MEMBERS:
                raise CodeError(f"it has more than {MOST_MEMBERS:,} files and folders")
            yield path, 0o755 if member.mode & 0o111 else 0o644, tar.extractfile(member)


def check(member: tarfile.TarInfo, path: str) -> None:
    """Raise CodeError unless this is a file or a folder, below the one that it is unpacked into."""
    is_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    if not (is_file or member.isdir()):
        what = "a symbolic link" if member.issym() else "neither a plain file nor a folder"
        raise CodeError(f"{path!a} is {what}")
    if not path.isprintable():
        raise CodeError(f"{path!a} has a name that is not of printable characters in UTF-8")
    if path.startswith("/"):
        raise CodeError(f"{path!a} is an absolute path")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise CodeError(f"{path!a} has a part that is empty, . or ..")


def unpack(archive: bytes, folder: str) -> int:
    """Unpack into an empty folder; the number of files. Raises CodeError, OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    files = 0
    with reading():
        for path, mode, content in members(archive):
            target = os.path.join(os.fsencode(folder), path.encode())  # whatever the locale is
            if content is None:
                os.makedirs(target, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(os.open(target, flags, mode), "wb") as file:
                shutil.copyfileobj(content, file)
            files += 1
    return files
