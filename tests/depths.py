"""How deep a run of the tests goes: `make test`, the gate, or `make test-all`.

quick: no test that is marked `deep`, and nothing built from Go; this is `make test`.
gate: also the deep tests that are marked `gate`, and a third of the others, a sixth of those that
start torch, an API server or a cluster. They are drawn by the product's files: the same product
meets the same tests, and what is changed often meets all of them.
full: everything; this is `make test-all`.
"""

import zlib
from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest

from tests.cluster.tiers import ROOT, tier_of

DEPTHS = ("quick", "gate", "full")
MARKERS = (
    "builds(module, ...): in `make test-all`; what it starts is built from these Go modules",
    "deep(of=..., turn=...): `make test-all` has it, and the gate in its turn, once in `of`",
    "gate: in the gate at all times, although it is deep",
)
# How many turns there are, and how many in tiers whose deep tests take a quarter of a core-minute.
OF, OF_DEAR = 3, 6
DEAR = ("trainer", "api", "e2e")
PRODUCT = ("operator", "images", "charts", "examples")


@cache
def sources_hash() -> int:
    """A number that changes with the product's files, and with nothing else."""
    found = sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*"))
    files = (path for path in found if path.is_file() and "__pycache__" not in path.parts)
    return zlib.crc32(b"\0".join(path.read_bytes() for path in files))


def left_out(items: Iterable[pytest.Item], depth: str) -> list[pytest.Item]:
    """The tests that a run of this depth does not have."""
    if depth == "full":
        return []
    before = Counter[str]()  # deep tests of a file
    left = []
    for item in items:
        if item.get_closest_marker("builds"):
            left.append(item)
            continue
        deep = item.get_closest_marker("deep")
        if deep is None:
            continue
        file = item.location[0]
        of = deep.kwargs.get("of", OF_DEAR if tier_of(item.path) in DEAR else OF)
        turn = deep.kwargs.get("turn", zlib.crc32(file.encode()) + before[file])
        before[file] += 1
        drawn = item.get_closest_marker("gate") or (turn - sources_hash()) % of == 0
        if depth == "quick" or not drawn:
            left.append(item)
    return left
