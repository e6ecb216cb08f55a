"""Reads `.ddpjobignore`: patterns in the syntax of .gitignore, for machines without git too.

A pattern is matched part by part, between slashes. No expression here is searched for with
backtracking, so no pattern takes long.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

# Folders that are never sent: repositories, local runs of jobs, compiled modules.
NEVER = (".git", ".hg", ".svn", ".ddpjob", "__pycache__")

# `**` between slashes: any number of folders.
ANY_FOLDERS = None

Part = re.Pattern[str] | None
"""What one part of a path must be; ANY_FOLDERS stands for any number of parts."""

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


def ignores(text: str) -> Callable[[str], bool]:
    """Return a function that tells whether a file is ignored, by its path from the folder.

    `text` is the content of the ignore file. The last pattern that fits decides. Nothing in a
    folder that is ignored can be brought back.
    """
    rules = [rule for line in text.removeprefix("\ufeff").split("\n") for rule in _rules(line)]

    @cache
    def folder_is_ignored(path: str) -> bool:
        return bool(path) and is_ignored(path, is_folder=True)

    def is_ignored(path: str, *, is_folder: bool = False) -> bool:
        if folder_is_ignored(path.rpartition("/")[0]):
            return True
        parts = path.split("/")
        for rule in reversed(rules):
            if (is_folder or not rule.of_folders) and _fits(rule.parts, parts):
                return not rule.brings_back
        return False

    def answer(path: str) -> bool:
        return is_ignored(path.rstrip("/"), is_folder=path.endswith("/"))

    return answer


@dataclass(frozen=True)
class _Rule:
    """A line of the file."""

    parts: Sequence[Part]
    of_folders: bool
    brings_back: bool


def _rules(line: str) -> Iterator[_Rule]:
    """Yield the rule of a line, if it is one."""
    line = line.removesuffix("\r")
    if line.startswith("#"):
        return
    line = _trimmed(line)
    brings_back = line.startswith("!")
    line = line[brings_back:]
    of_folders = line.endswith("/")
    line = line.removesuffix("/")
    if not line:
        return
    parts = _parts(line.removeprefix("/"))
    if parts is not None:
        anywhere = [] if "/" in line else [ANY_FOLDERS]
        yield _Rule([*anywhere, *parts], of_folders, brings_back)


def _trimmed(line: str) -> str:
    """Return a line without the spaces at its end. The first one stays behind a backslash."""
    kept = line.rstrip(" ")
    backslashes = len(kept) - len(kept.rstrip("\\"))
    return line[: len(kept) + backslashes % 2]


def _parts(pattern: str) -> list[Part] | None:
    """Return the parts of a pattern; None for one that fits nothing."""
    parts: list[Part] = []
    # Of the part that begins there: what stands between its asterisks.
    pieces, at, begin = [list[str]()], 0, 0
    while at <= len(pattern):
        if pattern.startswith("\\/", at):
            at += 1  # a slash parts, also after a backslash
        character = pattern[at : at + 1]
        if character in ("", "/"):
            whole = pattern[begin:at].removesuffix("\\")
            is_any = len(whole) > 1 and set(whole) == {"*"} and "/" in pattern
            parts.append(ANY_FOLDERS if is_any else _compiled(pieces))
            pieces, begin = [[]], at + 1
        elif character == "*":
            pieces.append([])
        elif character == "?":
            pieces[-1].append(".")
        elif character == "[":
            found = _set(pattern, at + 1)
            if found is None:
                return None
            expression, at = found
            pieces[-1].append(expression)
            continue
        else:
            at += character == "\\"
            if at == len(pattern):
                return None
            pieces[-1].append(re.escape(pattern[at]))
        at += 1
    if parts[-1] is ANY_FOLDERS:  # what is in a folder, and not the folder itself
        parts.append(_compiled([[], []]))
    return parts


def _set(pattern: str, at: int) -> tuple[str, int] | None:
    """Return the expression of a set that begins at `at`, and where it ends; None without an end.

    A class that nobody knows makes the whole pattern fit nothing, as in git.
    """
    is_negated = pattern[at : at + 1] in ("!", "^") and at < len(pattern)
    at += is_negated
    ranges, before, first, close = "", "", at, -1
    while at == first or pattern[at : at + 1] != "]":
        if close < at and (close := pattern.find("]", at)) < 0:  # each is looked for once
            return None
        character = pattern[at : at + 1]
        end = pattern[at + 1 : at + 2]
        if character + end == "[:" and at + 2 < close and pattern[close - 1] == ":":
            name = pattern[at + 2 : close - 1]
            if name not in _CLASSES:
                return None
            ranges += _CLASSES[name]
            at, before = close + 1, ""
        elif character == "-" and before and end not in ("", "]"):
            at += 1 + (end == "\\")
            last = pattern[at : at + 1]
            ranges += f"{re.escape(before)}-{re.escape(last)}" if before <= last else ""
            at, before = at + 1, ""
        else:
            at += character == "\\"
            before = pattern[at : at + 1]
            ranges += re.escape(before)
            at += 1
    if not ranges:
        return ("." if is_negated else r"[^\s\S]"), at + 1
    return f"[{'^' * is_negated}{ranges}]", at + 1


def _compiled(pieces: Sequence[Sequence[str]]) -> re.Pattern[str]:
    """Return the expression of a part: these pieces, with anything between two of them."""
    first, *others = map("".join, pieces)
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    # Each piece is taken where it comes first, once and for all.
    between = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{first}{between}.*{last}", re.DOTALL)


def _fits(parts: Sequence[Part], path: Sequence[str]) -> bool:
    """Return whether the parts of a path fit those of a pattern."""
    at = place = 0
    back: tuple[int, int] | None = None  # behind the last ANY_FOLDERS, and what it takes up to
    while place < len(path):
        part = parts[at] if at < len(parts) else ANY_FOLDERS
        if at < len(parts) and part is ANY_FOLDERS:
            at, back = at + 1, (at + 1, place)
        elif part is not ANY_FOLDERS and part.fullmatch(path[place]):
            at, place = at + 1, place + 1
        elif back:
            at, place = back[0], back[1] + 1
            back = (at, place)
        else:
            return False
    return all(part is ANY_FOLDERS for part in parts[at:])
