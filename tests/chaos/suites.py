"""Plans without end: by a seed, and by how many writes each workload makes."""

import random
from collections.abc import Iterator, Mapping
from itertools import cycle

from tests.chaos.faults import KINDS, LIST, RESOURCES, WATCH, WRITE, Fault
from tests.chaos.plan import Plan

Writes = Mapping[str, int]
"""How many writes the operator makes in a run without a fault, by workload."""
EVENTS = 12  # of one kind of object in a short run


def plans(seed: int, writes: Writes) -> Iterator[Plan]:
    """In turn: a write that fails, many faults, a view that is broken, a list that is."""
    chance = random.Random(seed)
    for draw in cycle((_write, _mixed, _view, _list, _mixed)):
        yield draw(chance, writes)


def _write(chance: random.Random, writes: Writes) -> Plan:
    workload = chance.choice(sorted(writes))
    number = chance.randint(1, writes[workload])
    return Plan(workload, (Fault("write", number, chance.choice(WRITE)),))


def _view(chance: random.Random, writes: Writes) -> Plan:
    kind, resource = chance.choice(WATCH), chance.choice(RESOURCES)
    fault = Fault("watch", chance.randint(1, EVENTS), kind, resource)
    return Plan(chance.choice(sorted(writes)), (fault,))


def _list(chance: random.Random, writes: Writes) -> Plan:
    """A list that is broken, after a 410 or a kill: at other times there is none."""
    workload, resource = chance.choice(sorted(writes)), chance.choice(RESOURCES)
    gone = Fault("watch", chance.randint(2, EVENTS), "gone", resource)
    killed = Fault("write", chance.randint(2, writes[workload]), "kill-after")
    broken = Fault("list", 1, chance.choice(LIST), resource)
    return Plan(workload, (chance.choice((gone, killed)), broken))


def _mixed(chance: random.Random, writes: Writes) -> Plan:
    workload = chance.choice(sorted(writes))
    faults = {_any(chance, writes[workload]) for _ in range(chance.randint(1, 6))}
    return Plan(workload, tuple(sorted(faults, key=lambda f: (f.where, f.number, str(f)))))


def _any(chance: random.Random, writes: int) -> Fault:
    where = chance.choice(("write", "write", "write", "watch", "watch", "list"))
    kind = chance.choice(KINDS[where])
    if where == "write":
        return Fault(where, chance.randint(1, writes + 6), kind)
    last = EVENTS if where == "watch" else 2
    return Fault(where, chance.randint(1, last), kind, chance.choice(RESOURCES))
