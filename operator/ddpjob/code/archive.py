"""Packs a folder into the archive of `spec.code`, always the same bytes for the same files."""

import base64
import hashlib
import os
import struct
import tarfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddpjob.code.files import SHOWN, File, file_at, refuse_secrets, select
from ddpjob.code.listing import IGNORE_FILE
from ddpjob.code.plain_files import NotPlain, open_plain
from ddpjob.code.secret_files import secret_in
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.names import (
    ARCHIVE_KEY,
    CODE_LABEL,
    MAX_ARCHIVE_PARTS,
    code_config_name,
)
from ddpjob_agent.archive import ARCHIVE_BYTES, BLOCK, CodeError, members

# The API server counts the bytes of a ConfigMap's values, before Base64.
PART_BYTES = 2**20
CONFIG_MAPS_BYTES = MAX_ARCHIVE_PARTS * PART_BYTES
# Files of more bytes in all are not even read.
FILES_BYTES = 64 * 2**20
# gzip's header without a time or a name, for any system.
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"


@dataclass(frozen=True)
class CodeArchive:
    """A job's own code as one tar.gz."""

    data: bytes
    files: tuple[str, ...]
    """The paths of its files, sorted."""
    size: int
    """Bytes of these files before they were packed."""
    revision: str | None = None
    """The commit of the folder, if git knows one."""
    is_dirty: bool = False
    """Whether files of the folder differ from that commit."""
    note: str = ""
    """Why git was not asked, though the folder looks like a repository; else empty."""

    @cached_property
    def sha256(self) -> str:
        """Return the SHA-256 of the archive, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def config_maps(self) -> list[Body]:
        """Return immutable ConfigMaps with the parts of the archive, named by their content.

        They have neither namespace nor owner.
        """
        starts = range(0, len(self.data), PART_BYTES)
        return [self._config_map(part, at) for part, at in enumerate(starts)]

    def _config_map(self, part: int, at: int) -> Body:
        content = base64.b64encode(self.data[at : at + PART_BYTES]).decode()
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": code_config_name(self.sha256, part),
                "labels": {CODE_LABEL: self.sha256[:12]},
            },
            "immutable": True,
            "binaryData": {ARCHIVE_KEY: content},
        }

    def spec(self) -> Body:
        """Return the value of `spec.code` for these ConfigMaps."""
        parts = [config_map["metadata"]["name"] for config_map in self.config_maps()]
        return {"configMaps": parts, "sha256": self.sha256}


def pack(
    folder: Path,
    *,
    names: Collection[str] = (),
    extra: Mapping[str, Path] | None = None,
) -> CodeArchive:
    """Return the archive of the code in `folder`.

    `names` are paths of files that are sent although a rule would refuse them.
    `extra` are files of elsewhere, by the paths that they get; they replace files of the folder.
    Raises InvalidJob with the path `code`, whose advice is the next step.
    """
    selection = select(folder, names)
    files = _with_extra(selection.files, extra or {})
    if not files:
        raise _invalid(f"there is no file to send in {str(folder)!r}")
    size = sum(file.size for file in files)
    if size > FILES_BYTES:
        raise _too_large(f"{_bytes(size)} before gzip, limit {_bytes(FILES_BYTES)}", files)
    stream, secrets = _Gzip(), dict[str, str]()
    for file in files:
        beginning = _add(stream, file)
        if not file.is_named and (found := secret_in(beginning)):
            secrets[file.path] = "line {1}: {0}".format(*found)
    refuse_secrets(secrets)
    stream.write(bytes(2 * BLOCK))  # the end of the archive
    data, size_packed = stream.end()
    if size_packed > CONFIG_MAPS_BYTES:
        limit = _bytes(CONFIG_MAPS_BYTES)
        raise _too_large(f"{_bytes(size_packed)} after gzip, limit {limit}", files)
    verify([data])
    revision = selection.revision
    return CodeArchive(
        data,
        tuple(file.path for file in files),
        size,
        revision=revision.commit if revision else None,
        is_dirty=revision is not None and revision.is_dirty,
        note=selection.note,
    )


def _with_extra(files: Sequence[File], extra: Mapping[str, Path]) -> list[File]:
    found = {file.path: file for file in files}
    found |= {path: file_at(path, file, is_named=True) for path, file in extra.items()}
    return [found[path] for path in sorted(found)]


def verify(parts: Sequence[bytes], sha256: str = "", *, where: str = "code") -> tuple[str, ...]:
    """Return the paths of the files in an archive, by the rules of the agent.

    Raises InvalidJob, about the field `where`, if the agent would refuse it, or if it has another
    SHA-256 than this one.
    """
    data = b"".join(parts)
    found = hashlib.sha256(data).hexdigest()
    if sha256 and sha256 != found:
        rule = f"the archive's sha256 is {found}, and spec.code.sha256 is {sha256}"
        raise InvalidJob(where, rule)
    try:
        if len(data) > ARCHIVE_BYTES:
            raise CodeError(f"it has more than {_bytes(ARCHIVE_BYTES)}")
        return tuple(path for path, _, content in members(data) if content is not None)
    except CodeError as problem:
        raise InvalidJob(where, f"the archive is refused: {problem}") from None


class _Gzip:
    """Compresses what is written, and keeps it while it fits into ConfigMaps."""

    def __init__(self) -> None:
        self._size, self._crc = 0, 0
        self._deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._packed, self._packed_size = [_HEADER], len(_HEADER)

    def write(self, content: bytes) -> None:
        """Add these bytes."""
        self._size += len(content)
        self._crc = zlib.crc32(content, self._crc)
        self._keep(self._deflate.compress(content))

    def end(self) -> tuple[bytes, int]:
        """Return all that was kept, and the size of all."""
        self._keep(self._deflate.flush() + struct.pack("<LL", self._crc, self._size % 2**32))
        return b"".join(self._packed), self._packed_size

    def _keep(self, packed: bytes) -> None:
        self._packed_size += len(packed)
        if self._packed_size <= CONFIG_MAPS_BYTES:
            self._packed.append(packed)


def _add(stream: _Gzip, file: File) -> bytes:
    """Write a file as a member of a tar archive, and return its beginning. Raises InvalidJob."""
    info = tarfile.TarInfo(file.path)
    info.size, info.mode = file.size, 0o755 if file.is_executable else 0o644
    try:
        header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        rule = "has too long a path: 100 bytes for its name, 155 for its folder"
        raise _invalid(f"{file.path!r} {rule}", f"add it to {IGNORE_FILE}") from None
    stream.write(header)
    left, beginning, is_still = file.size, b"", False
    try:
        with open_plain(file.source) as content:
            is_still = file.is_still(os.fstat(content.fileno()))
            while left and is_still and (piece := content.read(min(left, 2**20))):
                beginning = beginning or piece
                stream.write(piece)
                left -= len(piece)
    except NotPlain:
        is_still = False
    except OSError as error:
        words = f"{file.path!r} cannot be read: {error.strerror}"
        raise _invalid(words, f"add it to {IGNORE_FILE}") from None
    if left or not is_still:
        raise _invalid(f"{file.path!r} was changed while it was read", "try again")
    stream.write(bytes(-file.size % BLOCK))
    return beginning


def _too_large(what: str, files: Sequence[File]) -> InvalidJob:
    """Return the error about too many bytes, with the largest files and the next step."""
    largest = sorted(files, key=lambda file: -file.size)[:SHOWN]
    listed = ", ".join(f"{file.path} {_bytes(file.size)}" for file in largest)
    top, slash, _ = largest[0].path.partition("/")
    step = f'add "{top}{slash}" to {IGNORE_FILE}, and put it into the image or a volume'
    return _invalid(f"{what}. Largest: {listed}", step)


def _bytes(size: float) -> str:
    """Return a size in words: 61.0 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"


def _invalid(rule: str, advice: str = "") -> InvalidJob:
    return InvalidJob("code", rule, advice=advice)
