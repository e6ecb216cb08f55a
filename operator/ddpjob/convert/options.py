"""Splits a launcher's command line into its own options, the script, and the script's arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Option:
    """One option of a launcher, such as `--nnodes=2`."""

    name: str
    """The long name with `_` in place of `-`, such as `nproc_per_node`."""
    value: str
    """Its value, empty for a flag."""
    words: tuple[str, ...]
    """How it was written."""


@dataclass(frozen=True)
class Table:
    """The options that a launcher knows, by their long names with `_`."""

    values: frozenset[str]
    """Options that take a value."""
    flags: frozenset[str]
    """Options that take none."""
    shorts: Mapping[str, str] = field(default_factory=dict)
    """The long names of short options, such as `{"-m": "module"}`."""
    has_abbreviations: bool = False
    """Whether `--nproc` stands for `--nproc_per_node`, as argparse has it by default."""

    def takes_value(self, name: str) -> bool:
        """Return whether the option with this long name takes a value."""
        return name in self.values

    def name(self, word: str) -> str | None:
        """Return the long name of the option that `word` stands for; None if it is unknown."""
        if word in self.shorts:
            return self.shorts[word]
        if not word.startswith("--"):
            return None
        known, wanted = self.values | self.flags, word[2:].replace("-", "_")
        if wanted in known or not self.has_abbreviations:
            return wanted if wanted in known else None
        found = [name for name in known if wanted and name.startswith(wanted)]
        return found[0] if len(found) == 1 else None


def split(words: Sequence[str], table: Table) -> tuple[list[Option], list[str]] | None:
    """Return the launcher's options, and the script with its arguments.

    The result is None if there is an unknown option, because it may take the next word or not, and
    if there is no script.
    """
    options: list[Option] = []
    place = 0
    while place < len(words) and words[place].startswith("-"):
        word, equals, value = words[place].partition("=")
        if word[:2] in table.shorts and len(word) > 2:  # -r3
            word, equals, value = word[:2], "=", words[place][2:]
        name = table.name(word)
        if name is None or equals and not table.takes_value(name):
            return None
        takes = int(not equals and table.takes_value(name))
        if place + takes >= len(words):
            return None
        used = tuple(words[place : place + 1 + takes])
        options.append(Option(name, used[1] if takes else value, used))
        place += len(used)
    return (options, list(words[place:])) if place < len(words) else None
