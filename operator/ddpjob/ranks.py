"""The limits of ranks, and sets of ranks as text such as `0-3,7`."""

import re
from collections.abc import Iterable

MAX_NNODES = 5000
MAX_NPROC = 128
MAX_WORLD_SIZE = MAX_NNODES * MAX_NPROC
PART = "[0-9]{1,4}(-[0-9]{1,4})?"
# The texts that `format_ranks` writes, for up to 5000 nodes.
RANKS = f"^({PART}(,{PART})*)?$"


def format_ranks(ranks: Iterable[int]) -> str:
    """Return the ranks as a short sorted text: {0, 1, 2, 7} is `0-2,7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def parse_ranks(text: str, nnodes: int) -> set[int]:
    """Return the ranks below `nnodes` in a text of `format_ranks`; none of any other text.

    The cost of a rank does not grow with the number of times that the text has it.
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
