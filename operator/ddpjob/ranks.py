"""How many ranks a job may have, and sets of them as people write them: `0-3,7`."""

import re
from collections.abc import Iterable

MAX_NNODES = 5000
MAX_NPROC = 128
MAX_WORLD_SIZE = MAX_NNODES * MAX_NPROC
PART = "[0-9]{1,4}(-[0-9]{1,4})?"
RANKS = f"^({PART}(,{PART})*)?$"
"""What `format_ranks` writes, for up to 5000 nodes."""


def format_ranks(ranks: Iterable[int]) -> str:
    """Compact and sorted: {0, 1, 2, 7} is `0-2,7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def parse_ranks(text: str, nnodes: int) -> set[int]:
    """The ranks below `nnodes` in what `format_ranks` wrote; nothing in what it did not write.

    Each rank is looked at once, however often a text that somebody else wrote has it.
    """
    if not re.fullmatch(RANKS, text, re.ASCII):
        return set()
    spans = sorted(
        (int(first), int(last or first))
        for first, _, last in (part.partition("-") for part in text.split(",") if part)
    )
    ranks: set[int] = set()
    free = 0
    for first, last in spans:
        ranks.update(range(max(first, free), min(last + 1, nnodes)))
        free = max(free, last + 1)
    return ranks
