"""Chooses the files of a folder that are a job's code.

They are the files that git tracks or would track; elsewhere, all that `.gitignore` does not name.
`.ddpjobignore` leaves out more of them. What may be a secret is refused.
"""

import os
import stat
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpjob.errors import InvalidJob
from ddpjob.text import printable

IGNORE_FILE, GIT_IGNORE_FILE = ".ddpjobignore", ".gitignore"
# Repositories, local runs of jobs and compiled modules: never sent, and no change of a project.
NEVER = (".git", ".hg", ".svn", ".ddpjob", "__pycache__")
# A file of every virtual environment, which works nowhere else.
ENVIRONMENT_FILE = "pyvenv.cfg"
# So many names are in a message.
SHOWN = 5
# What people forget in a project, in the syntax of .gitignore. Names are compared in lower case.
SECRETS = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", ".pgpass", ".git-credentials", ".npmrc"),
    *(".pypirc", ".htpasswd", ".*_history", ".aws/", ".azure/", ".gnupg/", ".kube/", ".ssh/"),
    *("**/.config/gcloud/", "**/.docker/config.json", "id_rsa*", "id_dsa*", "id_ecdsa*"),
    *("id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*kubeconfig*"),
    *("credentials.*", "secrets.*", "service-account*.json", "auth.json", "kaggle.json"),
    *("token.json", "*.tfstate*", "*.tfvars", "!*.example", "!*.example.*", "!*.sample"),
    *("!*.template", "!*.md", "!*.pub", "!*.py"),
)


@dataclass(frozen=True)
class Selection:
    """The files to send."""

    files: dict[str, Path]
    """Where each of them is, by its path from the folder, with slashes."""
    revision: str | None = None
    """The commit of the folder, if git has listed its files."""
    is_dirty: bool = False
    """Whether files of the folder differ from that commit."""
    note: str = ""
    """Why git has not listed them, though the folder looks like a repository; else empty."""


def select(folder: Path, names: Collection[str] = ()) -> Selection:
    """Return the files of `folder` that are its code, and those `names` whatever they are.

    Raises OSError, and InvalidJob for a file that may hold a secret and for a link that leads out
    of the folder, unless it is named.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise invalid(f"there is no folder {str(folder)!r}")
    named = {_named(folder, name) for name in names}
    listed, note = list[str](), ""
    if any(os.path.exists(place / ".git") for place in (folder, *folder.parents)):
        try:
            listed = _listed(folder)
        except _GitError as problem:
            note = f"{problem}, so of its rules only {str(folder / GIT_IGNORE_FILE)!r} counts"
    # Git lists nothing in a folder that it ignores as a whole.
    paths = _of_git(folder, listed) if listed else _walk(folder)
    files = _follow(folder, (path for path in paths if path not in named))
    _refuse_secrets(folder, files)
    files |= {path: folder / path for path in named}
    revision, is_dirty = _revision(folder) if listed else (None, False)
    return Selection(files, revision, is_dirty, note)


def _named(folder: Path, name: str) -> str:
    """Return a named file's path. Raises InvalidJob if there is no such file."""
    path = os.path.normpath(name)
    if os.path.isabs(path) or path.split(os.sep)[0] == ".." or not (folder / path).is_file():
        raise invalid(f"{name!r} is no file in {str(folder)!r}")
    return path


class _GitError(Exception):
    """Why git does not answer, in its own words, made printable."""


def _listed(folder: Path) -> list[str]:
    """Return the paths of all files that git tracks, or would track, from the folder.

    Files of submodules and of other repositories within are among them, by their own rules. A
    tracked file may no longer exist. Raises _GitError.
    """
    found = []
    answer = _ask(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for path in filter(None, answer.split("\0")):
        place = folder / path
        if place.is_symlink() or not place.is_dir():
            found.append(path)
        elif os.path.exists(place / ".git"):
            found += [os.path.join(path, below) for below in _listed(place)]
    return found


def _revision(folder: Path) -> tuple[str | None, bool]:
    """Return the folder's commit, if any, and whether files that may be sent differ from it."""
    others = [f":(exclude,glob)**/{name}/**" for name in NEVER]
    try:
        commit = _ask(folder, "rev-parse", "--verify", "--quiet", "HEAD").strip()
        return commit, bool(_ask(folder, "status", "--porcelain", "--", ".", *others))
    except _GitError:
        return None, False


def _ask(folder: Path, *words: str) -> str:
    """Return git's answer. Raises _GitError."""
    try:
        ended = subprocess.run(
            ["git", *words],
            cwd=folder,
            # To whoever watches the folder, a refreshed index would be a change.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError as error:
        raise _GitError(f"git cannot be started: {error.strerror}") from None
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").splitlines()
        first = lines[0] if lines else f"exit code {ended.returncode}"
        raise _GitError(f"git: {printable(first, 300)}")
    return os.fsdecode(ended.stdout)


def _of_git(folder: Path, listed: Iterable[str]) -> Iterator[str]:
    """Yield those paths that git has listed and that are sent."""
    is_ignored = _ignored(folder, IGNORE_FILE)
    marks = [path for path in listed if path.endswith(f"/{ENVIRONMENT_FILE}")]
    environments = tuple(path.removesuffix(ENVIRONMENT_FILE) for path in marks)
    for path in listed:
        if not path.startswith(environments) and not is_ignored(path):
            yield path


def _walk(folder: Path) -> Iterator[str]:
    """Yield the paths of all files that are sent, and of links to folders. Raises OSError."""
    is_ignored = _ignored(folder, GIT_IGNORE_FILE, IGNORE_FILE)
    for place, folders, names in os.walk(folder, onerror=_fail):
        below = Path(place).relative_to(folder)
        if below.parts and ENVIRONMENT_FILE in names:
            folders.clear()
            continue
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        paths = [(below / name).as_posix() for name in (*names, *links)]
        yield from (path for path in paths if not is_ignored(path))
        folders[:] = [name for name in folders if not is_ignored(f"{(below / name).as_posix()}/")]


def _fail(error: OSError) -> None:
    raise error


def _ignored(folder: Path, *files: str) -> Callable[[str], bool]:
    """Return a function that tells whether a path is left out; that of a folder ends in a slash.

    `files` are the names of those in the folder that have the patterns. Raises OSError, InvalidJob.
    """
    lines = []
    for name in files:
        if os.path.lexists(folder / name):
            text = (folder / name).read_text("utf-8-sig", "surrogateescape")
            lines += text.splitlines()
    try:
        return _fits([*lines, *NEVER])
    except ValueError as problem:
        raise invalid(f"{' or '.join(files)}: {problem}") from None


def _fits(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a path fits patterns in the syntax of .gitignore.

    Raises ValueError.
    """
    from pathspec import GitIgnoreSpec  # 40 ms

    # Its other backends take no names that are not UTF-8.
    return GitIgnoreSpec.from_lines(patterns, backend="simple").match_file


def _follow(folder: Path, paths: Iterable[str]) -> dict[str, Path]:
    """Return where the files are. A link to a folder becomes those below that are sent.

    Raises OSError, and InvalidJob for a link that leads out of the folder.
    """
    files, links = {}, {}
    for path in paths:
        target = Path(os.path.realpath(folder / path))
        try:
            kind = target.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):  # git still has it; or an editor's lock
            continue
        if not target.is_relative_to(folder):
            include = f", or send the file with --code-include {path!r}" * stat.S_ISREG(kind)
            rule = f"{path!r} is a link to {str(target)!r}, outside of the folder"
            raise invalid(rule, f"add it to {IGNORE_FILE}{include}")
        if stat.S_ISREG(kind):
            files[path] = target
        elif stat.S_ISDIR(kind):
            links[path] = f"{target.relative_to(folder).as_posix()}/"
    for path, below in sorted(links.items()):
        found = [each for each in files if each.startswith(below)]
        files |= {f"{path}/{each.removeprefix(below)}": files[each] for each in found}
    return files


def _refuse_secrets(folder: Path, files: dict[str, Path]) -> None:
    """Raise InvalidJob if there are files that may hold secrets, by their names or a link's."""
    is_secret = _fits(SECRETS)
    found = []
    for path, place in files.items():
        names = {path.lower(), place.relative_to(folder).as_posix().lower()}
        if any(map(is_secret, names)):
            found.append(path)
    if found:
        found.sort()
        include = " ".join(f"--code-include {path!r}" for path in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        rule = f"{', '.join(map(repr, found[:SHOWN]))}{more} may hold secrets, by name"
        raise invalid(rule, f"add them to {IGNORE_FILE}, or send them with {include}")


def invalid(rule: str, advice: str = "") -> InvalidJob:
    """Return the error about a job's code."""
    return InvalidJob("code", rule, advice=advice)
