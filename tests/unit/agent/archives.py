"""Archives for tests: good ones, and one of every hostile kind."""

import gzip
import io
import tarfile
from collections.abc import Mapping

FILES = {"train.py": b"print('here')\n", "pack/__init__.py": b"", "pack/net.py": b"SIZE = 4\n"}


def tar(*members: tuple[tarfile.TarInfo, bytes | None], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """An archive of these members."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as archive:
        for info, data in members:
            archive.addfile(info, None if data is None else io.BytesIO(data))
    return content.getvalue()


def member(
    name: str, data: bytes | None = b"", **fields: object
) -> tuple[tarfile.TarInfo, bytes | None]:
    """A file, or whatever `type` says; its data None leaves the size as it is."""
    info = tarfile.TarInfo(name)
    info.size = len(data or b"")
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def packed(files: Mapping[str, bytes] = FILES) -> bytes:
    """A tar.gz of these files."""
    return gzip.compress(tar(*(member(name, data) for name, data in files.items())), mtime=0)


def special(name: str, kind: bytes, **fields: object) -> bytes:
    """An archive with one good file, then a member of this kind."""
    return tar(member("train.py"), member(name, None, type=kind, **fields))


def renamed(name: bytes) -> bytes:
    """An archive whose one file has these bytes for its name: no program would write them."""
    block = bytearray(tar(member("n" * len(name)))[:512])
    block[: len(name)] = name
    return checked(block) + bytes(1024)


def checked(block: bytearray) -> bytes:
    """The header with its check sum corrected."""
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def changed(at: int, value: bytes) -> bytes:
    """An archive whose header has this value at this place."""
    block = bytearray(tar(member("train.py"))[:512])
    block[at : at + len(value)] = value
    return checked(block) + bytes(1024)


# What each must say of itself.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "symbolic link": (special("l", tarfile.SYMTYPE, linkname="train.py"), "'l' is a symbolic link"),
    "hard link": (special("l", tarfile.LNKTYPE, linkname="train.py"), "'l' is a hard link"),
    "device": (special("d", tarfile.CHRTYPE, devmajor=1, devminor=3), "'d' is a device"),
    "fifo": (special("f", tarfile.FIFOTYPE), "'f' is a fifo"),
    "sparse file": (changed(156, b"S"), "'train.py' is a sparse file"),
    "pax header": (
        tar(member("a", pax_headers={"mtime": "1.5"}), form=tarfile.PAX_FORMAT),
        "'././@PaxHeader' is a pax header",
    ),
    "GNU long name": (
        tar(member("a/" * 90 + "a" * 99), form=tarfile.GNU_FORMAT),
        "'././@LongLink' is a GNU header of a long name",
    ),
    "parent": (tar(member("../a")), "'../a' has a part that is empty, . or .."),
    "dot within": (tar(member("a/./b")), "'a/./b' has a part that is empty, . or .."),
    "empty name": (renamed(b""), "'' has a part that is empty, . or .."),
    "absolute path": (tar(member("/etc/passwd")), "'/etc/passwd' is an absolute path"),
    "not UTF-8": (renamed(b"caf\xe9.py"), r"'caf\udce9.py' has a name that is not of printable"),
    "line feed": (renamed(b"a\nddpjob-agent: b"), r"'a\nddpjob-agent: b' has a name that is not"),
    "setuid": (tar(member("a", mode=0o4755)), "'a' has setuid, setgid or sticky bits"),
    "name twice": (tar(member("a", b"1"), member("a", b"2")), "'a' is there twice"),
    "file over a folder": (tar(member("a/b"), member("a")), "'a' is there twice"),
    "folder over a file": (
        tar(member("a"), member("a", None, type=tarfile.DIRTYPE)),
        "'a' is there twice",
    ),
    "file below a file": (tar(member("a"), member("a/b")), "'a/b' is below 'a', which is a file"),
    "folder with content": (
        tar(member("a", b"x", type=tarfile.DIRTYPE)),
        "'a/' is a folder with content",
    ),
    "number in base 256": (changed(124, b"\x80" + bytes(11)), "in place of a number"),
    "more than it has": (changed(124, b"77777777777\0"), "it is cut off"),
    "wrong check sum": (
        b"x" + tar(member("train.py"))[1:],
        "it is no tar archive of the format ustar, or a broken one",
    ),
    "older format": (changed(257, bytes(8)), "it is no tar archive of the format ustar"),
    "not tar": (b"print('here')\n" * 80, "it is no tar archive of the format ustar"),
    "no end": (tar(member("a"))[:512], "it is cut off"),
    "nothing": (b"", "it is cut off"),
    "goes on": (tar(member("a"))[:1024] + tar(member("b")), "it goes on after its end"),
}
