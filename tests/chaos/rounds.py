"""What the auditor checks of rounds: the processes that come and go in the pods of an attempt."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddpjob import names
from ddpjob.json_depth import Body
from ddpjob.ranks import MAX_NNODES, parse_ranks

# A node waits so long for others, and for rank 0's next pod, and then ends its own.
WAIT_SECONDS, HEAD_SECONDS = 30.0, 120.0
SLACK_SECONDS = 20.0  # for a machine that is slow

What = Literal[
    "ordered",
    "dismissed",
    "begins",
    "fails",
    "rests",
    "clean",
    "ends",
    "stops",
    "goes-on",
    "unheard",
    "heard",
]
Group = tuple[str, int]
"""uid of a job, and the number of its attempt."""


@dataclass(frozen=True)
class Deed:
    """What became of a node's processes, or an order that has reached rank 0's agent.

    `ordered`: the round that the operator asks for. `dismissed`: nodes whose ranks have failed are
    to end their pods, by the operator's order in this round. `begins`: all ranks of the node are
    started. `fails`: one has failed, none is left, and the node waits to be asked on. `rests`: the
    same of a kept pod whose ranks have ended well. `clean`: none is left, and the node waits for
    the others to begin this round. `ends`: none is left, nor is the pod.
    `stops`: nothing of the node does anything, until it `goes-on`. `unheard`: the node may count as
    silent, until it is `heard`.
    """

    what: What
    uid: str  # of the job
    attempt: int
    round: int
    rank: int = 0
    at: float = 0.0  # s, as of entries
    since: int = 0  # the first round of a pod that is there in the place of another one
    args: tuple[str, ...] = ()  # of what begins: what the ranks run


@dataclass(frozen=True)
class Node:
    """A node as its last deed left it."""

    what: What
    round: int
    since: float


class Rounds:
    """Takes in deeds and status writes, and tells `breach` what is wrong: (promise, words)."""

    def __init__(self, breach: Callable[[str, str], None]) -> None:
        self._breach = breach
        self._nodes: defaultdict[Group, dict[tuple[int, int], Node]] = defaultdict(dict)
        """By (rank, since)."""
        self._begun: defaultdict[tuple[Group, int], set[int]] = defaultdict(set)
        self.runs: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {}
        """By uid of the job, its last round that has begun, and what ranks run in it."""
        self._failed: dict[Group, float] = {}  # the last round in which ranks have failed
        self._caused: dict[Group, float] = {}  # the same, or pods; inf: it is not said of which
        self._charged: set[tuple[Group, int]] = set()

    def see(self, deed: Deed, status: Body) -> None:
        """Take in what has been done while the job had this status."""
        group, here = (deed.uid, deed.attempt), (deed.attempt, deed.round)
        if deed.what in ("ordered", "begins") and place_of(status) < here:
            self._breach("R1", f"{deed.what} {here}, but status has {place_of(status)}")
        nodes = self._nodes[group]
        has_cause = self._failed.get(group, -1) >= deed.round or status.get("state") == "Idle"
        if deed.what == "dismissed" and not has_cause:
            self._breach("R5", f"dismissed, but no rank has failed in {here}")
        if deed.what in ("ordered", "dismissed"):
            return
        if deed.what == "begins":
            since = since_of(status)  # of those that have been replaced S1 has to know more
            alive = [
                rank
                for (rank, first), node in nodes.items()
                if node.what == "begins" and node.round < here[1] and first == since.get(rank, 0)
            ]
            if since.get(deed.rank, 0) != deed.since:
                self._breach("R7", f"rank {deed.rank} begins {here} in a pod that was replaced")
            if alive:
                self._breach("R3", f"rank {deed.rank} begins {here}, but {alive} are in another")
            self._begun[group, deed.round].add(deed.rank)
            last, args = self.runs.get(deed.uid, (here, deed.args))
            if last == here and args != deed.args:
                self._breach("R8", f"rank {deed.rank} begins {here} with {deed.args}, not {args}")
            self.runs[deed.uid] = max((last, args), (here, deed.args))
        if deed.what == "fails":
            self._failed[group] = max(deed.round, self._failed.get(group, -1))
            self.fails(group, deed.round)
        if deed.what == "ends":
            nodes.pop((deed.rank, deed.since), None)
        else:
            nodes[deed.rank, deed.since] = Node(deed.what, deed.round, deed.at)

    def fails(self, group: Group, number: float = math.inf) -> None:
        """Take in that something has failed, or is gone, in this round or an unknown one."""
        self._caused[group] = max(number, self._caused.get(group, -1))

    def write(self, uid: str, nnodes: int, old: Body, new: Body, *, silent: bool) -> None:
        """Take in a status write; `silent`: a node of the attempt may count as silent."""
        was, now = place_of(old), place_of(new)
        group, size = (uid, was[0]), size_of(new, nnodes)
        if now < was:
            self._breach("R1", f"from {was} back to {now}")
        if now[1] != 0 and now not in (was, (was[0], was[1] + 1)):
            self._breach("R1", f"from {was} to {now}")
        has_failed = self._failed.get(group, -1) >= was[1]
        if replaces(new) == now[1] > 0:
            has_failed |= silent or self._caused.get(group, -1) >= was[1]
        rests = new.get("state") == "Idle"
        asked = size != size_of(old, nnodes) or is_updated(old, new) or rests
        if now[0] == was[0] and now[1] > was[1] and not (has_failed or asked):
            self._breach("R5", f"{now} begins, but no rank has failed in {was}")
        runs = new.get("state") == "Running" and (old.get("state") != "Running" or now != was)
        if runs and now[1] > 0 and len(self._begun[(uid, now[0]), now[1]]) < size:
            self._breach("I4", f"Running, but not all ranks have begun {now}")
        if charged_of(new) > charged_of(old):
            if (group, was[1]) in self._charged:
                self._breach("R5", f"{was} is charged twice")
            if was[1] > 0 and self._caused.get(group, -1) < was[1]:
                self._breach("R5", f"{was} is charged, but nothing has failed in it")
            self._charged.add((group, was[1]))

    def late(self, now: float, jobs: Mapping[str, Body]) -> None:
        """R6: a node waits for longer than it may."""
        for (uid, attempt), key in list(self._waiting(now)):
            rank, job = key[0], jobs.get(uid)
            status = (job or {}).get("status") or {}
            if replaces(status) or status.get("state") == "Idle":
                continue  # a node has to be found first, or an edit is waited for
            node = self._nodes[uid, attempt].pop(key)
            if job is not None and not job["metadata"].get("deletionTimestamp"):
                words = f"rank {rank} of attempt {attempt} has been waiting since {node.what}"
                self._breach("R6", f"{words} {node.round}")

    def _waiting(self, now: float) -> Iterator[tuple[Group, tuple[int, int]]]:
        for group, nodes in self._nodes.items():
            gone = ("stops", "unheard")
            is_led = any(rank == 0 and node.what not in gone for (rank, _), node in nodes.items())
            seconds = WAIT_SECONDS if is_led else HEAD_SECONDS
            for key, node in nodes.items():
                waits = node.what in ("fails", "clean")
                if waits and now - node.since > seconds + SLACK_SECONDS:
                    yield group, key


def is_updated(old: Body, new: Body) -> bool:
    """Whether the ranks are to run something else."""
    was, now = (status.get("program") or {} for status in (old, new))
    return bool(was) and was["hash"] != now.get("hash")


def _table(status: Body) -> list[Body]:
    attempt = place_of(status)[0]
    tables = [t for t in status.get("pods") or [] if t.get("attempt") == attempt]
    return [entry for table in tables for entry in table.get("replacements") or []]


def replaces(status: Body) -> int:
    """The latest round with new pods in the place of others; 0 without one."""
    return max((entry["round"] for entry in _table(status)), default=0)


def since_of(status: Body) -> dict[int, int]:
    """By node rank, the first round of each pod that is there in the place of another one."""
    entries = _table(status)
    return {rank: e["round"] for e in entries for rank in parse_ranks(e["ranks"], MAX_NNODES)}


def placed(pod: Body, status: Body) -> tuple[int, int, int]:
    """Attempt, node rank and first round of a pod; of a spare that has got a rank by this status.

    Of one that has none, the rank is minus its number.
    """
    labels, metadata = pod["metadata"]["labels"], pod["metadata"]
    place = names.parse_pod_name(labels[names.JOB_LABEL], metadata["name"])
    assert place is not None
    attempt, number, since = place
    for table in status.get("pods") or []:
        for spare in table.get("spares") or []:
            if (table["attempt"], spare["number"]) == (attempt, -number) and "rank" in spare:
                return attempt, spare["rank"], spare["round"]
        for moved in table.get("moved") or []:
            if (table["attempt"], moved["of"], moved["round"]) == place:
                return attempt, moved["rank"], since_of(status)[moved["rank"]]
    return attempt, number, since


def given_twice(status: Body) -> set[int]:
    """The node ranks that the attempt's status gives to more than one pod that was there."""
    since, found = since_of(status), list[int]()
    for table in status.get("pods") or []:
        if table["attempt"] == place_of(status)[0]:
            spares = (spare for spare in table.get("spares") or [] if "rank" in spare)
            found += [s["rank"] for s in spares if since.get(s["rank"]) == s["round"]]
            found += [moved["rank"] for moved in table.get("moved") or []]
    return {rank for rank in found if found.count(rank) > 1}


def size_of(status: Body, nnodes: int) -> int:
    """How many nodes the group has that is to have `nnodes`."""
    tables = [t for t in status.get("pods") or [] if t.get("attempt") == place_of(status)[0]]
    return next((table["size"] for table in tables if table.get("size")), nnodes)


def waiting_spares(status: Body, *, seen: bool) -> set[int]:
    """The numbers of the attempt's spares that have no rank: `seen` ones, or those to be made."""
    here = [t for t in status.get("pods") or [] if t.get("attempt") == place_of(status)[0]]
    every = [spare for table in here for spare in table.get("spares") or []]
    return {s["number"] for s in every if "rank" not in s and ("uid" in s) == seen}


def place_of(status: Body) -> tuple[int, int]:
    """Attempt and round."""
    return status.get("attempt") or 0, status.get("round") or 0


def charged_of(status: Body) -> int:
    """How many failures have been charged."""
    return (status.get("budget") or {}).get("charged") or 0
