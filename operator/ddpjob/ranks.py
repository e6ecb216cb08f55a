"""Sets of ranks as people write them: `0-3,7`."""

from collections.abc import Iterable


def format_ranks(ranks: Iterable[int]) -> str:
    """Compact and sorted: {0, 1, 2, 7} is `0-2,7`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def parse_ranks(text: str) -> set[int]:
    """The set that `format_ranks` wrote."""
    ranks: set[int] = set()
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        ranks.update(range(int(first), int(last or first) + 1))
    return ranks
