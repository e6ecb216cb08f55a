"""Archives for tests: good ones, and hostile ones."""

import gzip
import io
import tarfile
from collections.abc import Mapping
from typing import Any

FILES = {"train.py": b"print('here')\n", "pack/__init__.py": b"", "pack/net.py": b"SIZE = 4\n"}


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive of these members."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", errors="surrogateescape") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A file, or whatever `type` says."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def packed(files: Mapping[str, bytes] = FILES) -> bytes:
    """A tar.gz of these files."""
    return gzip.compress(tar(*(member(name, data) for name, data in files.items())), mtime=0)


def special(kind: bytes, **fields: Any) -> bytes:
    """An archive with one good file, then a member of this kind."""
    return tar(member("train.py"), member("l", type=kind, **fields))


# What each must say of itself.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "symbolic link": (special(tarfile.SYMTYPE, linkname="train.py"), "'l' is a symbolic link"),
    "hard link": (special(tarfile.LNKTYPE, linkname="train.py"), "'l' is neither a plain file"),
    "device": (special(tarfile.CHRTYPE, devmajor=1, devminor=3), "'l' is neither a plain file"),
    "sparse file": (
        tar(member("s", pax_headers={"GNU.sparse.size": "9", "GNU.sparse.map": "0,0"})),
        "'s' is neither a plain file",
    ),
    "parent": (tar(member("../a")), "'../a' has a part that is empty, . or .."),
    "absolute path": (tar(member("/etc/passwd")), "'/etc/passwd' is an absolute path"),
    "not UTF-8": (
        tar(member("caf\udce9.py")),
        r"'caf\udce9.py' has a name that is not of printable",
    ),
    "line feed": (
        tar(member("a\nddpjob-agent: b")),
        r"'a\nddpjob-agent: b' has a name that is not",
    ),
    "not tar": (b"print('here')\n" * 80, "it is no tar.gz, or a broken one: "),
    "cut off": (tar(member("a", b"x" * 2000))[:1500], "it is no tar.gz, or a broken one: "),
    "nothing": (b"", "it is no tar.gz, or a broken one: "),
}
