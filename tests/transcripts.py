"""Terminal sessions in the Markdown files: blocks with lines that begin with `$ `.

A comment stands before each such block: `<!-- session: NAME -->` if a test runs it, under that
name, or `<!-- no session: REASON -->` if none can. A test runs the commands of a name one after
the other, and compares what they print with what the page shows.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tests.cluster.tiers import ROOT

_FENCE = re.compile(r"^ {0,3}```")
_MARK = re.compile(r"<!-- (session|no session): ([^>]*[^> ]) -->")
# What differs from run to run: numbers, times, amounts, curves, and the ends of generated names.
_NUMBER = re.compile(r"(?<![\w.])v?\d[\d.,:/]*(?:(?:[smhd]\d*)+|[KMG]i?B?)?(?!\w)")
_SUFFIX = re.compile(r"(?<=[a-z0-9]-)(?=[a-z]*\d)[a-z0-9]{5}(?![\w-])")
_SUM = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{7,64}\b")
_DAY = re.compile(r"\b[A-Z][a-z]{2}\d\d\b")
# Of losses: with fewer points there is none.
_CURVE = re.compile(r"(?<=\s)[▁-█]+(?!\S)")
ANY = "…"


@dataclass(frozen=True)
class Step:
    """A command, and what the page shows of its output."""

    command: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Session:
    """One block."""

    file: Path
    line: int
    name: str
    """The name under which a test runs it; empty if none does."""
    why_not: str
    """Why no test runs it; empty if one does."""
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def sessions(file: Path, text: str | None = None) -> Iterator[Session]:
    """The blocks of a file, marked or not."""
    lines = (file.read_text() if text is None else text).splitlines()
    mark, begun = "", None
    for number, line in enumerate(lines, start=1):
        if begun is not None and _FENCE.match(line):
            if steps := tuple(_steps(lines[begun : number - 1])):
                found = _MARK.fullmatch(mark)
                kind, words = found.groups() if found else ("", "")
                name, why_not = (words, "") if kind == "session" else ("", words)
                yield Session(file, begun, name, why_not, steps)
            begun, mark = None, ""
        elif begun is None and _FENCE.match(line):
            begun = number
        elif begun is None and line.strip():
            mark = line.strip()


def _steps(block: Sequence[str]) -> Iterator[Step]:
    command, shown = "", list[str]()
    for line in [*block, "$ "]:
        if line.startswith("$ "):
            if command:
                yield Step(re.sub(r"\s{2,}#.*", "", command), tuple(shown))
            command, shown = line.removeprefix("$ "), []
        elif command.endswith("\\"):
            command = f"{command[:-1]}{line.strip()}"
        elif command:
            shown.append(line)


def alike(line: str) -> str:
    """The line without what differs from run to run."""
    line = _SUFFIX.sub("?", _CURVE.sub("", line))
    line = _DAY.sub("day", _SUM.sub("?", line))
    return " ".join(_NUMBER.sub("0", line).split())


def missing(shown: Sequence[str], printed: Sequence[str]) -> str | None:
    """The first shown line that was not printed after the ones before it; None if all were.

    Where one of them is `…`, others may be printed, between any two.
    """
    have = [alike(line) for line in printed if line.strip()]
    wanted = [line for line in shown if line.strip() and line.strip() != ANY]
    if len(wanted) == len([line for line in shown if line.strip()]):  # no …
        pairs = zip_longest(wanted, have)
        return next((a or f"(then) {b}" for a, b in pairs if not a or alike(a) != b), None)
    place = 0
    for line in wanted:
        if alike(line) not in have[place:]:
            return line
        place = have.index(alike(line), place) + 1
    return None
