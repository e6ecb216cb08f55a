"""Suites A to E and G of plans, without end: a function of the seed and of nothing else.

A: the operator is killed before and after each write. B: each write fails in each other way. C: one
to six faults of any kind. D: what the operator sees is late, old or broken. E: users meddle. G: two
operators at once, with the faults of A, B and C, and one that is stopped in the midst of a write;
`run.is_late` says what is not asked of two.
"""

import random
from collections.abc import Iterable, Iterator

from tests.chaos.faults import KINDS, LIST, RESOURCES, USER, WATCH, WRITE, Fault
from tests.chaos.plan import Plan

# How many writes a fault-free run has on a real API server, which `Campaign.learn` compares.
WRITES = {
    "succeeds": 10,
    "fails-once": 21,
    "uses-up-its-budget": 22,
    "is-deleted": 8,
    "is-replaced": 15,
    "is-suspended": 22,
    "loses-a-pod": 20,
    "loses-a-finished-pod": 12,
    "finds-its-name-taken": 29,
    "has-rules": 21,
    "ends-with-rank-0": 12,
    "goes-after-its-time": 11,
    "starts-in-part": 20,
    "misses-its-deadline": 13,
    "fails-in-place": 11,
    "fails-in-place-twice": 19,
    "fails-for-good": 10,
    "loses-a-pod-between-rounds": 18,
    "is-not-asked-on": 18,
}
# These come to their end whatever becomes of their pods, names and attempts.
STURDY = ("succeeds", "fails-once", "uses-up-its-budget", "has-rules", "is-deleted") + (
    "fails-in-place",
)
KILLS = ("kill-before", "kill-after")
OTHERS = tuple(kind for kind in WRITE if kind not in (*KILLS, "freeze"))
EVENTS = 12  # of one kind of object in a short run
ORDER = "ABCDABCEABCD"  # a list's end is a run's: plans of all suites come in this turn


def plans(seed: int) -> Iterator[tuple[str, Plan]]:
    """(suite, plan) for one operator: A to E in turn, each in an order of its own."""
    suites = {
        "A": _deck(seed, "A", (w for w in _writes(KILLS))),
        "B": _deck(seed, "B", (w for w in _writes(OTHERS))),
        "C": _mixed(random.Random(f"{seed} C")),
        "D": _deck(seed, "D", _views()),
        "E": _deck(seed, "E", _users()),
    }
    while True:
        for suite in ORDER:
            yield suite, next(suites[suite])


def pairs(seed: int) -> Iterator[tuple[str, Plan]]:
    """(suite, plan) for two operators at once: G."""
    chance = random.Random(f"{seed} G")
    singles = _deck(seed, "G", _writes((*KILLS, *OTHERS, "freeze", "freeze", "freeze")))
    mixed = _mixed(chance)
    while True:
        found = next(chance.choice((singles, singles, mixed)))
        yield "G", Plan(found.workload, found.faults, operators=2)


def _deck(seed: int, suite: str, plans: Iterable[Plan]) -> Iterator[Plan]:
    """All of them in an order that the seed decides, and again."""
    cards = list(plans)
    chance = random.Random(f"{seed} {suite}")
    while True:
        chance.shuffle(cards)
        yield from cards


def _writes(kinds: Iterable[str]) -> Iterator[Plan]:
    kinds = tuple(kinds)
    for workload, count in WRITES.items():
        for number in range(1, count + 1):
            for kind in kinds:
                yield Plan(workload, (Fault("write", number, kind),))


def _views() -> Iterator[Plan]:
    """A view that is broken, and lists that are, after a kill or a 410."""
    for workload, writes in WRITES.items():
        for resource in RESOURCES:
            for number in range(1, EVENTS + 1):
                for kind in WATCH:
                    yield Plan(workload, (Fault("watch", number, kind, resource),))
            for kind in LIST:
                broken = Fault("list", 1, kind, resource)
                for number in range(2, EVENTS, 3):
                    yield Plan(workload, (Fault("watch", number, "gone", resource), broken))
                for number in range(2, writes, 4):
                    yield Plan(workload, (Fault("write", number, "kill-after"), broken))


def _users() -> Iterator[Plan]:
    for kind in USER:
        for workload in STURDY:
            for number in range(1, WRITES[workload] + 1, 2):
                yield Plan(workload, (Fault("user", number, kind),))


def _mixed(chance: random.Random) -> Iterator[Plan]:
    while True:
        workload = chance.choice(sorted(WRITES))
        faults = {_any(chance, WRITES[workload]) for _ in range(chance.randint(1, 6))}
        yield Plan(workload, tuple(sorted(faults, key=lambda f: (f.where, f.number, str(f)))))


def _any(chance: random.Random, writes: int) -> Fault:
    where = chance.choice(("write", "write", "write", "watch", "watch", "list"))
    kind = chance.choice([kind for kind in KINDS[where] if kind != "freeze"])
    if where == "write":
        return Fault(where, chance.randint(1, writes + 6), kind)
    last = EVENTS if where == "watch" else 2
    return Fault(where, chance.randint(1, last), kind, chance.choice(RESOURCES))
