"""Packs a folder into the archive of `spec.code`, always the same bytes for the same files."""

import base64
import gzip
import hashlib
import io
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddpjob.code.files import IGNORE_FILE, SHOWN, Selection, invalid, select
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.names import ARCHIVE_KEY, CODE_LABEL, MAX_ARCHIVE_PARTS, code_config_name
from ddpjob_agent.code import ARCHIVE_BYTES, MOST_MEMBERS, CodeError, members

# The API server counts the bytes of a ConfigMap's values, before Base64.
PART_BYTES = 2**20
CONFIG_MAPS_BYTES = MAX_ARCHIVE_PARTS * PART_BYTES
# Files of more bytes in all are not even read.
FILES_BYTES = 64 * 2**20


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
        parts = [base64.b64encode(self.data[at : at + PART_BYTES]).decode() for at in starts]
        return [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": code_config_name(self.sha256, number),
                    "labels": {CODE_LABEL: self.sha256[:12]},
                },
                "immutable": True,
                "binaryData": {ARCHIVE_KEY: content},
            }
            for number, content in enumerate(parts)
        ]

    def spec(self) -> Body:
        """Return the value of `spec.code` for these ConfigMaps."""
        parts = [config_map["metadata"]["name"] for config_map in self.config_maps()]
        return {"configMaps": parts, "sha256": self.sha256}


def pack(
    folder: Path | None,
    *,
    names: Collection[str] = (),
    extra: Mapping[str, bytes] | None = None,
) -> CodeArchive:
    """Return the archive of the code in `folder`.

    `names` are paths of files that are sent although a rule would refuse them.
    `extra` are contents of further files, which replace those of the folder.
    Raises InvalidJob with the path `code`, whose advice is the next step.
    """
    extra = extra or {}
    try:
        selection = select(folder, names) if folder else Selection({})
        places = {path: place for path, place in selection.files.items() if path not in extra}
        sizes = {path: place.stat().st_size for path, place in places.items()}
        sizes |= {path: len(content) for path, content in extra.items()}
        size = sum(sizes.values())
        if not sizes:
            raise invalid(f"there is no file to send in {str(folder)!r}")
        if len(sizes) > MOST_MEMBERS:
            step = f"add what the job does not need to {IGNORE_FILE}"
            raise invalid(f"more than {MOST_MEMBERS:,} files", step)
        if size > FILES_BYTES:
            raise _too_large(f"{in_bytes(size)} before gzip, limit {in_bytes(FILES_BYTES)}", sizes)
        data = _packed(
            {path: (place.read_bytes(), place.stat().st_mode) for path, place in places.items()}
            | {path: (content, 0) for path, content in extra.items()}
        )
    except OSError as error:
        rule = f"{error.filename!r} cannot be read: {error.strerror}"
        raise invalid(rule, f"add it to {IGNORE_FILE}") from None
    if len(data) > CONFIG_MAPS_BYTES:
        limit = in_bytes(CONFIG_MAPS_BYTES)
        raise _too_large(f"{in_bytes(len(data))} after gzip, limit {limit}", sizes)
    paths = verify([data])
    return CodeArchive(
        data,
        paths,
        size,
        revision=selection.revision,
        is_dirty=selection.is_dirty,
        note=selection.note,
    )


def _packed(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Return files, with their modes, as a tar.gz: the same bytes on each machine.

    Raises InvalidJob for a path that the format does not have.
    """
    plain, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(
        fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8", errors="strict"
    ) as tar:
        for path, (content, mode) in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755 if mode & 0o100 else 0o644
            try:
                tar.addfile(info, io.BytesIO(content))
            except ValueError:
                rule = (
                    f"{path!a} must be UTF-8, 100 bytes at most for its name and 155 for its folder"
                )
                raise invalid(rule, f"rename it, or add it to {IGNORE_FILE}") from None
    # gzip.compress writes other headers in other versions of Python.
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream:
        stream.write(plain.getbuffer())
    return packed.getvalue()


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
            raise CodeError(f"it has more than {in_bytes(ARCHIVE_BYTES)}")
        return tuple(path for path, _, content in members(data) if content is not None)
    except CodeError as problem:
        raise InvalidJob(where, f"the archive is refused: {problem}") from None


def _too_large(what: str, sizes: Mapping[str, int]) -> InvalidJob:
    """Return the error about too many bytes, with the largest files and the next step."""
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:SHOWN]
    listed = ", ".join(f"{path} {in_bytes(sizes[path])}" for path in largest)
    top, slash, _ = largest[0].partition("/")
    step = f'add "{top}{slash}" to {IGNORE_FILE}, and put it into the image or a volume'
    return invalid(f"{what}. Largest: {listed}", step)


def in_bytes(size: float) -> str:
    """Return a size as people read it: `812 B`, `61 KiB`, `1.4 MiB`."""
    for unit in ("B", "KiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    amount, unit = (size, "MiB") if size < 1024 else (size / 1024, "GiB")
    return f"{amount:.1f} {unit}".replace(".0 ", " ")
