"""The stacks of a job's ranks, and which of them stand at the same place. Pure.

The texts come from pods, so they may be anything. No file that they name is read here.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from ddpjob.text import printable
from ddpjob_agent.failures.stacks import Frame, frames

# The line before each process in an agent's answer.
_TITLE = re.compile(r"^--- (?:rank (\d{1,9}) \()?pid \d+\)?: ", re.MULTILINE)
# Characters of a file's or function's name that are shown.
SHOWN = 120


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads have the same stack."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    """Innermost first; empty for ranks that do not answer."""
    state: str
    """Of ranks that do not answer: the state of their main thread."""
    differs: bool = False
    """Whether most ranks are elsewhere."""

    @property
    def place(self) -> str:
        """Return where these ranks are, printable: the innermost frame, and who has called torch.

        `all_reduce (torch/distributed/c10d.py:2501), called by step (train.py:88)`.
        """
        if not self.frames:
            return f"no answer: {self.state}"
        own = next((frame for frame in self.frames if "/torch/" not in frame.file), None)
        called = f", called by {_shown(own)}" if own and own != self.frames[0] else ""
        return f"{_shown(self.frames[0])}{called}"


def by_rank(text: str, ranks: Container[int]) -> dict[int, str]:
    """Return the part of an agent's answer about each of these ranks of its pod.

    Of the processes of a rank this is the first, which has started the others.
    """
    found: dict[int, str] = {}
    marks = [*_TITLE.finditer(text)]
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    for mark, end in zip(marks, ends, strict=False):
        rank = int(mark[1]) if mark[1] else -1
        if rank in ranks and rank not in found:
            found[rank] = text[mark.start() : end]
    return found


def group(stacks: Mapping[int, str]) -> list[Group]:
    """Return the groups of ranks with equal stacks, the largest first.

    The others are marked, if one group is larger than each of them.
    """
    places: dict[tuple[tuple[Frame, ...], str], list[int]] = {}
    for rank, text in sorted(stacks.items()):
        found = tuple(frames(text))
        state = "" if found else _state(text)
        places.setdefault((found, state), []).append(rank)
    order = sorted(places.items(), key=lambda item: (-len(item[1]), item[1]))
    most = [len(ranks) for _, ranks in order[:2]]
    is_clear = len(most) == 2 and most[0] > most[1]
    return [
        Group(tuple(ranks), place, state, differs=is_clear and number > 0)
        for number, ((place, state), ranks) in enumerate(order)
    ]


def _state(text: str) -> str:
    """Return the state of the main thread, as /proc has it: `state T (stopped)`."""
    found = re.search(r"^  [^\n]{0,64}: (state [^\n]{1,200})$", text, re.MULTILINE)
    return printable(found[1], SHOWN) if found else "nothing is known"


def _shown(frame: Frame) -> str:
    return printable(str(frame), 2 * SHOWN)
