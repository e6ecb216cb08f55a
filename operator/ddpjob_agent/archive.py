"""Reads the archive of a job's own code: a tar.gz of files and folders, and of nothing else.

Python's tarfile follows links, extended headers and sparse files, and each version of it refuses
others of them. Here everything is refused that is not known to be harmless. `ddpjob` reads archives
by the same rules before a job is made.

In the agent's zip, under the same rules: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import os
import unicodedata
import zlib
from typing import Iterator  # noqa: UP035 - Python 3.8

# An archive has so many bytes at most, so many when it is unpacked, and so many files and folders.
ARCHIVE_BYTES, MOST_BYTES, MOST_MEMBERS = 64 * 2**20, 256 * 2**20, 10_000
BLOCK, PIECE = 512, 2**16
# Kinds of members that some programs make, and that are refused.
KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a fifo",
    b"L": "a GNU header of a long name",
    b"K": "a GNU header of a long link",
    b"S": "a sparse file",
    b"g": "a pax header",
    b"x": "a pax header",
}


class CodeError(ValueError):
    """Why an archive is refused. Names in it are quoted, so they are harmless to print."""


class Stream:
    """The bytes of one gzip stream, which are unpacked as they are read."""

    def __init__(self, archive: bytes) -> None:
        self.inflate = zlib.decompressobj(31)  # with gzip's header and its check sum
        self.archive, self.at, self.size = archive, 0, 0
        self.ready = bytearray()

    def read(self, size: int) -> bytes:
        """Exactly so many bytes. Raises CodeError."""
        while len(self.ready) < size:
            if not self.more():
                raise CodeError("it is cut off")
        piece = bytes(self.ready[:size])
        del self.ready[:size]
        return piece

    def pieces(self, size: int) -> Iterator[bytes]:
        """So many bytes, in pieces. Raises CodeError."""
        for left in range(size, 0, -PIECE):
            yield self.read(min(left, PIECE))

    def more(self) -> bool:
        """Unpack a little more; False at the end of the stream. Raises CodeError."""
        packed = self.inflate.unconsumed_tail or self.archive[self.at : self.at + PIECE]
        if self.inflate.eof or not packed:
            return False
        if not self.inflate.unconsumed_tail:
            self.at += len(packed)
        try:
            piece = self.inflate.decompress(packed, PIECE)
        except zlib.error as problem:
            raise CodeError(f"it is no gzip file, or a broken one: {problem}") from None
        self.size += len(piece)
        if self.size > MOST_BYTES:
            raise CodeError(f"it has more than {MOST_BYTES // 2**20} MiB when it is unpacked")
        self.ready += piece
        return True

    def end(self) -> None:
        """Raise CodeError where the archive goes on."""
        while not self.ready.strip(b"\0"):  # tar fills its last record with zeros
            self.ready.clear()
            if not self.more():
                break
        if self.ready or self.inflate.unused_data or self.at < len(self.archive):
            raise CodeError("it goes on after its end")
        if not self.inflate.eof:
            raise CodeError("it is cut off")


def members(archive: bytes) -> Iterator[tuple[str, int, Iterator[bytes] | None]]:
    """Path, mode and content of each file; of a folder the content is None. Raises CodeError.

    What was not read of a content is skipped.
    """
    stream = Stream(archive)
    seen: dict[str, bool] = {}
    while True:
        block = stream.read(BLOCK)
        if not block.strip(b"\0"):
            return stream.end()
        path, mode, size, is_folder = parse(block)
        if is_folder and path == ".":  # the folder itself, as of `tar -C folder .`
            continue
        enter(seen, path, is_folder)
        content = stream.pieces(size)
        yield path, mode, None if is_folder else content
        for _ in content:
            pass
        stream.read(-size % BLOCK)


def parse(block: bytes) -> tuple[str, int, int, bool]:
    """Path, mode and size of a member by its header, and whether it is a folder. Raises CodeError.

    Magic and fields: POSIX.1-1988, and GNU's variant, which has other fields in place of a prefix.
    """
    magic, kind, told = block[257:265], block[156:157], block[148:156]
    is_tar = magic in (b"ustar\x0000", b"ustar  \0")
    if not is_tar or number(told) != sum(block) - sum(told) + 8 * ord(" "):
        raise CodeError("it is no tar archive of the format ustar, or a broken one")
    prefix = block[345:500].partition(b"\0")[0] if magic == b"ustar\x0000" else b""
    raw = (prefix + b"/" if prefix else b"") + block[:100].partition(b"\0")[0]
    name = raw.decode("utf-8", "surrogateescape")
    is_folder = kind == b"5"
    if not is_folder and kind not in b"0\0":
        raise CodeError(f"{name!a} is {KINDS.get(kind) or f'a member of kind {kind!r}'}")
    mode, size = number(block[100:108]), number(block[124:136])
    if mode & 0o7000:
        raise CodeError(f"{name!a} has setuid, setgid or sticky bits")
    if is_folder and size:
        raise CodeError(f"{name!a} is a folder with content")
    path = name.rstrip("/") if is_folder else name
    path = path[2:] if path.startswith("./") else path
    return path, 0o755 if mode & 0o111 else 0o644, size, is_folder


def number(field: bytes) -> int:
    """The octal number in a field. Raises CodeError."""
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise CodeError(f"it has {field!r} in place of a number")
    return int(digits or b"0", 8)


def is_printable(character: str) -> bool:
    """Whether it can be printed, by this Python or by a newer one, which knows more characters."""
    return character.isprintable() or unicodedata.category(character) == "Cn"


def check_path(path: str) -> None:
    """Raise CodeError unless this is a path below a folder, which can be printed as it is."""
    if not (path.isprintable() or all(map(is_printable, path))):
        raise CodeError(f"{path!a} has a name that is not of printable characters in UTF-8")
    if path.startswith("/"):
        raise CodeError(f"{path!a} is an absolute path")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise CodeError(f"{path!a} has a part that is empty, . or ..")


def enter(seen: dict[str, bool], path: str, is_folder: bool) -> None:
    """Add a member to those `seen`, which says of each whether it is a folder. Raises CodeError."""
    check_path(path)
    parts = path.split("/")
    for count in range(1, len(parts)):
        parent = "/".join(parts[:count])
        if not seen.setdefault(parent, True):
            raise CodeError(f"{path!a} is below {parent!a}, which is a file")
    if path in seen and not (is_folder and seen[path]):
        raise CodeError(f"{path!a} is there twice")
    seen[path] = is_folder
    if len(seen) > MOST_MEMBERS:
        raise CodeError(f"it has more than {MOST_MEMBERS:,} files and folders")


def unpack(archive: bytes, folder: str) -> int:
    """Unpack into an empty folder; the number of files. Raises CodeError, OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    files = 0
    for path, mode, content in members(archive):
        target = os.path.join(os.fsencode(folder), path.encode())  # whatever the locale is
        if content is None:
            os.makedirs(target, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(os.open(target, flags, mode), "wb") as file:
            for piece in content:
                file.write(piece)
        files += 1
    return files
