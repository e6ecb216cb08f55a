"""Reads the archive of a job's own code: a tar.gz of files and folders, and of nothing else.

`ddpjob` reads archives by the same rules before a job is made.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tarfile
import zlib
from typing import IO, Any, Iterator  # noqa: UP035 - Python 3.8

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
