"""Lists the files of a project's folder, by git where it is a repository.

They are the files that git tracks or would track, else all files; less those that `.ddpjobignore`
names, and those that are of no use elsewhere.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from ddpjob.code import git
from ddpjob.code.ignore import NEVER, ignores
from ddpjob.code.plain_files import open_plain
from ddpjob.errors import InvalidJob

IGNORE_FILE = ".ddpjobignore"
MAX_IGNORE_BYTES = 2**20
# A file of every virtual environment, which works nowhere else.
ENVIRONMENT_FILE = "pyvenv.cfg"


class Listing:
    """The files of `folder`, whose path is absolute and without links.

    `note` says, once all paths are there, why git has not listed them, though the folder looks
    like a repository; else it is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.note = folder, ""
        self._is_ignored = ignores(_ignore_text(folder / IGNORE_FILE))
        # What git has listed: the folder, if it is a repository's, and repositories within.
        self._repositories: list[Path] = []
        self._folders = {""}

    def revision(self) -> git.Revision | None:
        """Return the folder's commit, if git has listed its files."""
        if not self._repositories:
            return None
        try:
            found = git.revision(self._repositories[0])
            is_dirty = found.is_dirty or any(map(git.is_dirty, self._repositories[1:]))
        except git.GitError:
            return None
        return git.Revision(found.commit, is_dirty)

    def paths(self, below: str = "") -> Iterator[str]:
        """Yield the paths of files and links, from the folder. They may no longer exist.

        No path goes through a link, and a path may come several times. `below` is the path of a
        folder within, with a slash at its end. Raises InvalidJob.
        """
        here = self.folder / below
        listed = self._list(here) if git.is_repository(here) else None
        if listed is None or not (listed or below) and git.is_ignored(here):
            yield from self._walk(below)
            return
        self._repositories.append(here)
        marks = [path for path in listed if path.endswith(f"/{ENVIRONMENT_FILE}")]
        environments = tuple(path.removesuffix(ENVIRONMENT_FILE) for path in marks)
        for path in listed:
            if path.startswith("/") or ".." in path.split("/"):  # in an index that git did not make
                raise InvalidJob("code", f"git lists {path!r}, which is not in {str(here)!r}")
            whole = below + path.rstrip("/")
            place = self.folder / whole
            is_folder = os.path.isdir(place) and not os.path.islink(place)
            # Of a submodule that was not fetched, git says "./".
            if path == "./" or path.startswith(environments) or self._skips(whole, is_folder):
                continue
            if link := self._link_above(whole):
                if not self._skips(link, False):
                    yield link
            elif not is_folder:
                yield whole
            elif git.is_top(place):  # another repository
                yield from self.paths(f"{whole}/")
            # Else it was a file, and git lists what is in it now; or a submodule that is not there.

    def _list(self, folder: Path) -> list[str] | None:
        """Return what git lists; None if it does not answer, which the note says then."""
        try:
            return git.paths(folder)
        except git.Unreadable as problem:
            advice = "make it readable, or add it to .gitignore"
            raise InvalidJob("code", str(problem), advice=advice) from None
        except git.GitError as problem:
            self.note = f"{problem}, so all files of {str(folder)!r} are sent"
            return None

    def _link_above(self, path: str) -> str:
        """Return the folder above a path that is a link, or an empty text.

        Git knows files of a folder from a time when that was none.
        """
        parts = path.split("/")[:-1]
        for end in range(1, len(parts) + 1):
            folder = "/".join(parts[:end])
            if folder not in self._folders:
                if os.path.islink(self.folder / folder):
                    return folder
                self._folders.add(folder)
        return ""

    def _walk(self, below: str) -> Iterator[str]:
        """Yield the paths of all files and links below a folder."""
        folders = [below]
        while folders:
            place = folders.pop()
            try:
                with os.scandir(self.folder / place) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                raise InvalidJob("code", f"{place!r} cannot be read: {error.strerror}") from None
            if place and any(entry.name == ENVIRONMENT_FILE for entry in found):
                continue
            for entry in found:
                is_folder = entry.is_dir(follow_symlinks=False)
                if self._skips(place + entry.name, is_folder):
                    continue
                if is_folder:
                    folders.append(f"{place}{entry.name}/")
                else:
                    yield place + entry.name

    def _skips(self, path: str, is_folder: bool) -> bool:
        is_ignored = self._is_ignored(path + "/" * is_folder)
        # Some file systems take .GIT for the same folder.
        return is_ignored or any(part in NEVER for part in path.lower().split("/"))


def _ignore_text(path: Path) -> str:
    """Return the ignore file's text. Raises InvalidJob."""
    try:
        with open_plain(Path(os.path.realpath(path))) as file:
            content = file.read(MAX_IGNORE_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InvalidJob("code", f"{IGNORE_FILE} cannot be read: {error.strerror}") from None
    if len(content) > MAX_IGNORE_BYTES:
        raise InvalidJob("code", f"{IGNORE_FILE} must have at most {MAX_IGNORE_BYTES} bytes")
    return content.decode("utf-8", "surrogateescape")
