"""Chooses the files of a folder that are a job's code.

What may be a secret, and links that lead elsewhere, are refused. Nothing is read but sizes.
"""

import os
import stat
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ddpjob.code.git import Revision
from ddpjob.code.listing import IGNORE_FILE, Listing
from ddpjob.code.secret_files import is_named_so
from ddpjob.errors import InvalidJob
from ddpjob_agent.archive import MOST_MEMBERS, CodeError, check_path

# So many names are in a message.
SHOWN = 5


@dataclass(frozen=True)
class File:
    """A file to send."""

    path: str
    """Its path from the folder, with slashes."""
    source: Path
    """Where it is, of a link that which it leads to: an absolute path without links."""
    size: int
    is_executable: bool
    identity: tuple[int, int]
    """The device and the number of its inode, by which it is known again."""
    is_named: bool = False
    """Whether it is sent whatever is in it."""

    def is_still(self, info: os.stat_result) -> bool:
        """Return whether an opened file is the one that was chosen."""
        return (info.st_dev, info.st_ino, info.st_size) == (*self.identity, self.size)


@dataclass(frozen=True)
class Selection:
    """The files to send, in the order of their paths."""

    files: tuple[File, ...]
    revision: Revision | None
    """The commit of the folder, if git has listed it."""
    note: str
    """Why git has not, though the folder looks like a repository; else empty."""


def select(folder: Path, names: Collection[str] = ()) -> Selection:
    """Return the files of `folder` that are its code, and those `names` whatever they are.

    Raises InvalidJob: for a file that may hold a secret and for a link that leads elsewhere,
    unless it is named; and for more files than an archive may have.
    """
    folder = Path(os.path.realpath(folder))
    if not folder.is_dir():
        raise _invalid(f"there is no folder {str(folder)!r}")
    if str(folder) in (folder.anchor, os.path.realpath(os.path.expanduser("~"))):
        rule = f"{str(folder)!r} is not the folder of a project"
        raise _invalid(rule, "put the code into a folder of its own")
    named = {_named(folder, name) for name in names}
    listing, found = Listing(folder), set(named)
    for path in listing.paths():
        found.add(path)
        if len(found) > MOST_MEMBERS:
            raise _too_many(found)
    files, links = _by_kind(folder, found - named)
    refuse_secrets({path: "by its name" for path in files if is_named_so(path)})
    files |= {path: file_at(path, folder / path, is_named=True) for path in named}
    for path in links:
        _follow(folder, path, files)
        if len(files) > MOST_MEMBERS:  # each of them may double the number
            raise _too_many(files)
    for path in files:
        try:
            check_path(path)
        except CodeError as problem:
            raise _invalid(str(problem), f"rename it, or add it to {IGNORE_FILE}") from None
    chosen = tuple(files[path] for path in sorted(files))
    return Selection(chosen, listing.revision(), listing.note)


def _named(folder: Path, name: str) -> str:
    """Return a named file's path. Raises InvalidJob if there is no such file."""
    path = os.path.normpath(name)
    if os.path.isabs(path) or path.split(os.sep)[0] == ".." or not os.path.isfile(folder / path):
        raise _invalid(f"{name!r} is no file in {str(folder)!r}")
    return Path(path).as_posix()


def _by_kind(folder: Path, paths: Collection[str]) -> tuple[dict[str, File], list[str]]:
    """Return the files, and the paths of links, those to folders last; no others.

    Raises InvalidJob for one that cannot be looked at.
    """
    files, links = {}, []
    for path in sorted(paths):
        try:
            info = (folder / path).lstat()
        except (FileNotFoundError, NotADirectoryError):  # git still has it
            continue
        except OSError as error:
            raise _unreadable(path, error) from None
        if stat.S_ISLNK(info.st_mode):
            links.append(path)
        elif stat.S_ISREG(info.st_mode):
            files[path] = _file(path, folder / path, info)
    return files, sorted(links, key=lambda path: os.path.isdir(folder / path))


def file_at(path: str, place: Path, *, is_named: bool = False) -> File:
    """Return what is at a place, also where that is a link. Raises InvalidJob."""
    source = Path(os.path.realpath(place))
    try:
        return replace(_file(path, source, source.lstat()), is_named=is_named)
    except OSError as error:
        raise _unreadable(path, error) from None


def _file(path: str, source: Path, info: os.stat_result) -> File:
    identity = info.st_dev, info.st_ino
    return File(path, source, info.st_size, bool(info.st_mode & 0o100), identity)


def refuse_secrets(reasons: Mapping[str, str]) -> None:
    """Raise InvalidJob if there are files that may hold secrets: their paths, and why."""
    if reasons:
        found = [f"{path!r} ({why})" for path, why in reasons.items()]
        include = " ".join(f"--code-include {path!r}" for path in list(reasons)[:SHOWN])
        rule = f"{_some(found)} may hold secrets, so nothing is sent"
        raise _invalid(rule, f"add them to {IGNORE_FILE}, or send them with {include}")


def _follow(folder: Path, path: str, files: dict[str, File]) -> None:
    """Add what a link leads to. Raises InvalidJob if that is nothing of the code."""
    target = Path(os.path.realpath(folder / path))
    is_file = os.path.isfile(target)
    include = f", or send the file with --code-include {path!r}" if is_file else ""
    where = f"{str(target)!r}, outside of the folder"
    if target.is_relative_to(folder):
        whole = target.relative_to(folder).as_posix()
        is_around = whole == "." or f"{path}/".startswith(f"{whole}/")
        try:
            target.stat()
        except PermissionError as error:
            raise _unreadable(path, error) from None
        except OSError:
            return  # of no use here either: an editor's lock, say
        if not is_around:
            found = [file for file in files.values() if f"{file.path}/".startswith(f"{whole}/")]
            for file in found:
                copy = path + file.path.removeprefix(whole)
                files[copy] = replace(file, path=copy)
            if found or os.path.isdir(target):
                return
        where = "a folder that it is in" if is_around else f"{whole!r}, which is not sent"
    rule = f"{path!r} is a link to {where}"
    raise _invalid(rule, f"add it to {IGNORE_FILE}{include}")


def _too_many(paths: Collection[str]) -> InvalidJob:
    """Return the error about more files than an archive may have."""
    tops = Counter(path.partition("/")[0] + "/" for path in paths if "/" in path).most_common(SHOWN)
    most = ", ".join(f"{top!r} ({count:,})" for top, count in tops)
    rule = f"more than {MOST_MEMBERS:,} files" + (
        f". Of the first, most are in {most}" if most else ""
    )
    name = tops[0][0] if tops else "*.png"
    return _invalid(rule, f"add {name!r} to {IGNORE_FILE}")


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


def _unreadable(path: str, error: OSError) -> InvalidJob:
    return _invalid(f"{path!r} cannot be read: {error.strerror}", f"add it to {IGNORE_FILE}")


def _invalid(rule: str, advice: str = "") -> InvalidJob:
    return InvalidJob("code", rule, advice=advice)
